// Command judge is a crash test for a controller; see internal/judge. It exits with 0
// if the level was reached, 1 if not, and 2 if that could not be judged.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/judge"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

func main() {
	ctx, stop := interrupt.Context()
	ctx, cancel := proc.EndWithReader(ctx)
	defer cancel()
	code, err := run(ctx)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		interrupt.SayLeft(os.Stderr, err)
		code = 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		code = 2
	}
	os.Exit(code)
}

func run(ctx context.Context) (code int, err error) {
	klog.SetLogger(klog.Logger{}) // client-go would report every request that an end or a restart cuts off
	var o judge.Options
	flag.StringVar(&o.Controller, "controller", "", "the command to judge; {{.Namespace}} in it stands for the namespace of a case")
	flag.StringVar(&o.Name, "contract", "", "what it has to do: a contract of the workshop, or a folder")
	flag.IntVar(&o.Level, "level", 0, "how far to go (default: as far as the contract allows)")
	flag.IntVar(&o.Seeds, "seeds", 1, "how many seeds to try")
	flag.Uint64Var(&o.Seed, "seed", 0, "try only this seed (default: new ones)")
	flag.StringVar(&o.Only, "case", "", "only the cases whose name matches this regular expression")
	flag.StringVar(&o.Cluster, "cluster", "", "a cluster to use: kwok, kind or existing (default: one of its own)")
	flag.BoolVar(&o.Shrink, "shrink", false, "make the first case that fails as small as it gets, and record it")
	flag.StringVar(&o.Replay, "replay", "", "play a recording again")
	mutants := flag.String("mutants", "", "try the judge itself, with the faulty controllers whose names match this regular expression")
	table := flag.String("table", "", "with -mutants: write what it said of each into this file")
	asJSON := flag.Bool("json", false, "print the verdict as JSON")
	flag.Parse()

	if o.Workspace, err = workspace.Find(); err != nil {
		return 0, err
	}
	if *mutants != "" {
		return 0, tryMutants(ctx, o, *mutants, *table)
	}
	if o.Replay != "" {
		return verdictOf(ctx, o, *asJSON)
	}
	if o.Controller == "" || o.Name == "" || flag.NArg() > 0 || o.Seeds < 1 {
		return 0, errors.New(judge.Usage(o.Workspace))
	}
	if o.Contract, err = judge.FindContract(o.Workspace, o.Name); err != nil {
		return 0, err
	}
	return verdictOf(ctx, o, *asJSON)
}

// verdictOf judges, and prints the verdict.
func verdictOf(ctx context.Context, o judge.Options, asJSON bool) (code int, err error) {
	var out io.Writer = os.Stdout
	if asJSON { // which has the standard output to itself
		out = os.Stderr
	}
	verdict, err := judge.Judge(ctx, o, out)
	if verdict == nil {
		return 0, err
	}
	if asJSON { // also if the end has failed, which leaves something behind, but says nothing about the controller
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return verdict.ExitCode(), errors.Join(encoder.Encode(verdict), err)
	}
	return verdict.ExitCode(), errors.Join(verdict.Print(os.Stdout), err)
}

// tryMutants judges the faulty controllers, and writes the table of what was said of them.
func tryMutants(ctx context.Context, o judge.Options, only, table string) error {
	told, err := judge.TellMutants(ctx, o.Workspace, only, cmp.Or(o.Seed, 1), os.Stdout)
	text := judge.MutantsTable(told)
	fmt.Printf("\n%s", text)
	if err != nil || table == "" {
		return err
	}
	const head = "# What the judge says of faulty controllers\n\nWritten by `make judge-mutants`, from a run of [mutants.yaml](mutants.yaml). Each was judged as a program of its own.\n\n"
	return os.WriteFile(table, []byte(head+text), 0o644)
}
