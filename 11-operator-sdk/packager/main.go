// Command packager does what operator-sdk and opm do for an operator that is to be installed by
// OLM: it writes a bundle, validates it, puts bundles into a catalog, makes plain manifests of
// one, and scores what is installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

const usage = `usage: packager COMMAND [FLAG...] ARGUMENT...
  bundle -version 0.1.0 -flavour IMAGE [-replaces NAME] DIR   write the bundle of step 10's operator into DIR
  validate DIR                                                say what is wrong with a bundle
  catalog [-mermaid] [-package FILE] DIR...                   print a catalog of bundles, or its upgrade graph
  check FILE                                                  say what is wrong with a catalog
  upgrades [-also NAME,...] FILE                              print where each version of a catalog's channels goes
  manifests -namespace NS [-target NS,...] DIR                print plain manifests, with the rights that OLM would grant
  scorecard [-namespace NS] [-selector LABELS] [-output yaml] DIR
                                                              run the bundle's scorecard tests against what is installed
`

// errFound says that something is wrong with what was looked at. It has been printed already.
var errFound = errors.New("found")

func main() {
	logrus.SetOutput(io.Discard) // operator-registry logs warnings, and what is wrong it returns
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(os.Stderr, usage)
		if err != flag.ErrHelp {
			fmt.Fprintln(os.Stderr, "error:", strings.TrimPrefix(err.Error(), flag.ErrHelp.Error()+": "))
		}
		os.Exit(2)
	case errors.Is(err, errFound):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run runs one command. It returns flag.ErrHelp if there is no such command, or if its arguments are wrong.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return flag.ErrHelp
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var b bundleOptions
	var m manifestOptions
	var s scorecardOptions
	var asMermaid bool
	var packageFile, also string
	var command func(dir string) error
	switch args[0] {
	case "bundle":
		flags.StringVar(&b.project, "project", "10-kubebuilder/icecream", "the `folder` of the operator's project")
		flags.StringVar(&b.version, "version", "", "the bundle's version")
		flags.StringVar(&b.replaces, "replaces", "", "the `name` of the bundle that this one replaces")
		flags.StringVar(&b.image, "image", "workshop/icecream:1", "the `image` of the operator")
		flags.StringVar(&b.flavour, "flavour", "", "the `image` of the operator's Deployments")
		command = func(dir string) error { return writeBundle(b, dir) }
	case "validate":
		command = func(dir string) error { return validate(dir, out) }
	case "catalog":
		flags.BoolVar(&asMermaid, "mermaid", false, "print the upgrade graph as a diagram")
		flags.StringVar(&packageFile, "package", filepath.Join("11-operator-sdk", "package.yaml"), "the `file` with the package and its channels")
	case "check":
		command = func(file string) error { return checkCatalog(file, out) }
	case "upgrades":
		flags.StringVar(&also, "also", "", "`bundles` that somebody may still have, although no entry names them")
		command = func(file string) error {
			return printUpgrades(file, strings.FieldsFunc(also, func(r rune) bool { return r == ',' }), out)
		}
	case "manifests":
		flags.StringVar(&m.namespace, "namespace", "", "the `namespace` of the operator")
		flags.StringVar(&m.targets, "target", "", "the `namespaces` that it works in; the default is its own, and * means all")
		command = func(dir string) error { return printManifests(m, dir, out) }
	case "scorecard":
		flags.StringVar(&s.namespace, "namespace", "default", "the `namespace` in which the operator works")
		flags.StringVar(&s.selector, "selector", "", "run only the tests with these `labels`")
		flags.StringVar(&s.output, "output", "text", "the `format` of the results: text or yaml")
		flags.DurationVar(&s.wait, "wait-time", 30*time.Second, "how long a test may take")
		command = func(dir string) error { return scorecard(ctx, s, dir, out) }
	default:
		return flag.ErrHelp
	}
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: %w", flag.ErrHelp, err)
	}
	switch {
	case args[0] == "catalog" && flags.NArg() > 0:
		return printCatalog(packageFile, flags.Args(), asMermaid, out)
	case command != nil && flags.NArg() == 1:
		return command(flags.Arg(0))
	}
	return flag.ErrHelp
}
