package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/terminal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// tour executes the READMEs of the path in order; with N=all it goes on beyond it.
func tour(ctx context.Context, ws workspace.Workspace, _ []string) error {
	steps, err := ws.Steps()
	if err != nil {
		return err
	}
	switch n := os.Getenv("N"); n {
	case "":
		steps = slices.DeleteFunc(steps, func(s workspace.Step) bool { return !s.OnPath() })
	case "all":
	default:
		return fmt.Errorf("make tour takes the whole path, and N=all what lies beyond it: make step N=%s runs one step", n)
	}
	if err := shareable(steps); err != nil {
		return err
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error { return runLessons(ctx, ws, c, steps, false) })
}

// shareable returns why steps cannot share a cluster, if WORKSHOP_PREFIX says that they should.
func shareable(steps []workspace.Step) error {
	prefix, err := lesson.ParsePrefix(os.Getenv(lesson.PrefixVariable))
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := prefix.Check(s); err != nil {
			return err
		}
	}
	return nil
}

// step executes one step's README and leaves the cluster as the lesson leaves it.
func step(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return oneLesson(ctx, ws, false)
}

// updateREADME executes one step's README and rewrites the outputs that differ.
func updateREADME(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return oneLesson(ctx, ws, true)
}

func oneLesson(ctx context.Context, ws workspace.Workspace, update bool) error {
	s, err := ws.Step(os.Getenv("N"))
	if err != nil {
		return err
	}
	if err := shareable([]workspace.Step{s}); err != nil {
		return err
	}
	c, err := keepUp(ctx, ws)
	if err != nil {
		return err
	}
	return runLessons(ctx, ws, c, []workspace.Step{s}, update)
}

// ownDefinitions waits until no check and no test of this clone uses the definitions that a step would replace.
func ownDefinitions(ctx context.Context, c *cluster.Cluster, s workspace.Step) (unlock func() error, err error) {
	if owns, err := lesson.Owns(s); err != nil || len(owns) == 0 {
		return func() error { return nil }, err
	}
	return c.OwnDefinitions(ctx, os.Stdout)
}

func runLessons(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster, steps []workspace.Step, update bool) error {
	type row struct {
		name    string
		summary readme.Summary
		took    time.Duration
		result  string
	}
	var rows []row
	var failed error
	preparation := lesson.Prepare(ctx, ws, steps)
	defer preparation.Stop()
	for i, s := range steps {
		title := fmt.Sprintf("━━━ Step %d of %d: %s — %s", i+1, len(steps), s.Name, s.Title)
		fmt.Printf("\n%s\n", terminal.Bold.Paint(os.Stdout, title))
		if failed != nil || ctx.Err() != nil {
			rows = append(rows, row{name: s.Name, result: "not run"})
			continue
		}
		preparation.Wait(s, os.Stdout)
		start := time.Now()
		var summary readme.Summary
		unlock, err := ownDefinitions(ctx, c, s)
		if err == nil {
			summary, err = lesson.Run(ctx, ws, c, s, os.Stdout, update)
			err = errors.Join(err, unlock())
		}
		r := row{name: s.Name, summary: summary, took: time.Since(start), result: "ok"}
		if err != nil {
			failed = err
			r.result = "FAILED"
			if ctx.Err() != nil {
				r.result = "interrupted"
			}
		}
		rows = append(rows, r)
	}

	fmt.Println()
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "STEP\tBLOCKS\tCOMMANDS\tBY HAND\tTIME\tRESULT")
	for _, r := range rows {
		result := r.result
		if r.summary.Updated > 0 {
			result = fmt.Sprintf("%d outputs rewritten", r.summary.Updated)
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.1fs\t%s\n", r.name, r.summary.Blocks, r.summary.Commands, r.summary.ByHand, r.took.Seconds(), result)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.Join(failed, ctx.Err())
	}
	return failed
}
