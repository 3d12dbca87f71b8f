package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/workspace"
)

// runChecks runs the checks of tasks of one step against the learner's files. With an error it also returns
// the verdicts that there are.
func runChecks(ctx context.Context, ws workspace.Workspace, tasks []exercise.Task) (map[string]exercise.Verdict, error) {
	c, _, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER"))
	if err != nil {
		return nil, err
	}
	if state, detail, err := c.Use(ctx, os.Stdout); err != nil {
		return nil, err
	} else if state != cluster.Ready {
		return nil, fmt.Errorf("no cluster is up, %s is %s (%s): run make up first", c.Name(), state, detail)
	}
	defer func() { _ = c.Release(ctx, os.Stdout) }()
	for _, t := range tasks {
		if err := t.Refresh(ws); err != nil {
			return nil, err
		}
	}
	step := tasks[0].Step
	environ := c.Environ()
	if other, err := otherDefinition(ctx, c, ws, step); err != nil {
		return nil, err
	} else if other != "" {
		if environ, err = checksCluster(ctx, ws, other); err != nil {
			return nil, err
		}
	}
	binary, err := checkBinary(ctx, ws, step)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "workshop-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var names []string
	for _, t := range tasks {
		names = append(names, t.Name)
	}
	// Most checks end before anybody wonders.
	what, unannounced := "Checking "+strings.Join(names, ", "), 5*time.Second
	if long := slices.IndexFunc(tasks, func(t exercise.Task) bool { return t.Takes != "" }); long >= 0 {
		what, unannounced = fmt.Sprintf("Checking %s, which takes %s", tasks[long].Name, tasks[long].Takes), 0
	}
	p, err := proc.Start(ctx, proc.Cmd{Path: binary, Dir: step.Dir, Grace: time.Minute, Session: true,
		Args: []string{"-test.run=^" + exercise.TestName + "$/^(" + strings.Join(names, "|") + ")$", "-test.parallel=4", "-test.timeout=10m"},
		Env:  append(environ, exercise.WorkEnv+"="+exercise.Work(ws), exercise.VerdictsEnv+"="+dir, "TMPDIR="+dir)})
	if err != nil {
		return nil, err
	}
	checked := make(chan error, 1)
	go func() { checked <- p.Wait() }()
	var failed error
	select {
	case failed = <-checked:
	case <-time.After(unannounced):
		done := progress.Start(os.Stdout, what)
		failed = <-checked
		done(nil)
	}
	if _, err := p.KillSession(context.WithoutCancel(ctx)); err != nil { // the learner's programs, if the checks have crashed
		failed = errors.Join(failed, interrupt.CleanUp(err))
	}
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), failed)
	}
	verdicts, errs := map[string]exercise.Verdict{}, []error(nil)
	for _, t := range tasks {
		data, err := os.ReadFile(filepath.Join(dir, t.Name+".json"))
		if err != nil {
			errs = append(errs, fmt.Errorf("the check of task %s has not come to an end", t.ID()))
			continue
		}
		var v exercise.Verdict
		if err := json.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		verdicts[t.Name] = v
	}
	if len(errs) > 0 {
		return verdicts, fmt.Errorf("%w: %w\n%s%s", errors.Join(errs...), failed, p.Stdout(), p.Stderr())
	}
	return verdicts, nil
}

// otherDefinition returns a definition of another step that the cluster has in another
// form, if this step needs it. The learner may have objects of it, so it stays.
func otherDefinition(ctx context.Context, c *cluster.Cluster, ws workspace.Workspace, step workspace.Step) (string, error) {
	owns, err := lesson.Owns(step)
	if err != nil {
		return "", err
	}
	config, err := c.Config()
	if err != nil {
		return "", err
	}
	for _, number := range owns {
		owner, err := ws.Step(number)
		if err != nil || owner.Number == step.Number {
			continue // of no step, or of this one
		}
		files, err := filepath.Glob(filepath.Join(owner.Dir, "config", "crd", "*.yaml"))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			if other, err := lesson.Other(ctx, config, file); err != nil || other {
				return filepath.Join(owner.Name, "config", "crd", filepath.Base(file)), err
			}
		}
	}
	return "", nil
}

// checksCluster starts a kwok cluster for checks, which make down removes.
func checksCluster(ctx context.Context, ws workspace.Workspace, other string) ([]string, error) {
	const name = "checks"
	if _, err := os.Stat(ws.Bin("kube-apiserver")); err != nil { // building it would take minutes
		return nil, fmt.Errorf("the cluster has another definition than %s: kubectl apply --server-side --force-conflicts -f %s replaces it, and make up CLUSTER=kwok makes a cluster without it", other, filepath.Dir(other))
	}
	c, err := cluster.NewKwok(ws, name, cluster.KwokOptions{})
	if err != nil {
		return nil, err
	}
	if state, _ := c.State(ctx); state != cluster.Ready {
		fmt.Printf("The cluster has another definition than %s, so the checks get a cluster of their own, and yours stays as it is\n", other)
		if err := c.Up(ctx, os.Stdout); err != nil {
			return nil, err
		}
	}
	return append(c.Environ(), exercise.ClusterEnv+"="+name), nil
}

// checkBinary returns the compiled tests of a step. They are compiled again only
// when a file of the clone has changed, so that for most checks only the learner's
// file is compiled.
func checkBinary(ctx context.Context, ws workspace.Workspace, step workspace.Step) (string, error) {
	sum, err := workspace.Sum(ws.Root, exercise.Work(ws))
	if err != nil {
		return "", err
	}
	dir := ws.Path("exercises", "checks")
	binary := filepath.Join(dir, step.Name+"-"+sum+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	old, err := filepath.Glob(filepath.Join(dir, step.Name+"-*"))
	if err != nil {
		return "", err
	}
	unfinished, err := filepath.Glob(filepath.Join(dir, "workshop-go-*"))
	if err != nil {
		return "", err
	}
	for _, folder := range unfinished { // of a check that was killed, and not of one that compiles now
		if info, err := os.Stat(folder); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(folder)
		}
	}
	lesson.CompileModules(ctx, ws, []string{step.Name}, os.Stdout)
	done := progress.Start(os.Stdout, fmt.Sprintf("Compiling the checks of step %d (once)", step.Number))
	// On the disk of the binary, go moves it to its place; from another one it would copy.
	err = proc.Go(ctx, proc.Cmd{Dir: ws.Root, Env: workspace.Environ("GOTMPDIR=" + dir),
		Args: []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, "./" + step.Name}})
	done(err)
	if err != nil {
		return "", fmt.Errorf("compiling the checks of step %d: %w", step.Number, err)
	}
	for _, file := range old {
		if gone := os.Remove(file); !errors.Is(gone, fs.ErrNotExist) { // or another check has removed it
			err = errors.Join(err, gone)
		}
	}
	return binary, err
}
