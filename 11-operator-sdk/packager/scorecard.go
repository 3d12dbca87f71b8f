package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

type scorecardOptions struct {
	namespace, selector, output string
	wait                        time.Duration // for one test
}

// scorecard runs a bundle's tests, and prints their results, as a TestList if it is asked for YAML. operator-sdk starts
// each as a pod with the bundle in /bundle; here they are processes that find the bundle in
// SCORECARD_BUNDLE, and the cluster by KUBECONFIG. The rest is the same: the namespace is in
// SCORECARD_NAMESPACE, and a test prints one TestStatus as JSON.
func scorecard(ctx context.Context, o scorecardOptions, dir string, out io.Writer) error {
	if o.output != "text" && o.output != "yaml" {
		return fmt.Errorf("-output %s: want text or yaml", o.output)
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return fmt.Errorf("-selector %s: %w", o.selector, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "tests", "scorecard", "config.yaml"))
	if err != nil {
		return err
	}
	var config v1alpha3.Configuration
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		return err
	}
	bundle, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	list := v1alpha3.NewTestList()
	for _, stage := range config.Stages {
		var tests []v1alpha3.Test
		for _, c := range stage.Tests {
			if selector.Matches(labels.Set(c.Labels)) {
				t := v1alpha3.NewTest()
				t.Spec = c
				tests = append(tests, t)
			}
		}
		var all sync.WaitGroup
		for i := range tests {
			run := func() { tests[i].Status = runTest(ctx, o, bundle, tests[i].Spec) }
			if stage.Parallel {
				all.Go(run)
			} else {
				run()
			}
		}
		all.Wait()
		list.Items = append(list.Items, tests...)
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("no test has the labels %s: see %s/tests/scorecard/config.yaml", o.selector, dir)
	}
	if o.output == "yaml" {
		if data, err = yaml.Marshal(list); err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	failed := false
	for _, t := range list.Items {
		for _, r := range t.Status.Results {
			failed = failed || r.State != v1alpha3.PassState
			if o.output != "yaml" {
				fmt.Fprintf(out, "%-6s %s\n", r.State, strings.Join(append([]string{r.Name}, r.Errors...), ": "))
			}
		}
	}
	if failed {
		return errFound
	}
	return nil
}

// runTest runs one test to its end. What prints no results is an error, which is no verdict.
func runTest(ctx context.Context, o scorecardOptions, bundle string, c v1alpha3.TestConfiguration) v1alpha3.TestStatus {
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	failed := func(err error, log string) v1alpha3.TestStatus {
		return v1alpha3.TestStatus{Results: []v1alpha3.TestResult{{Name: c.Labels["test"], State: v1alpha3.ErrorState, Errors: []string{err.Error()}, Log: log}}}
	}
	if len(c.Entrypoint) == 0 {
		return failed(errors.New("the test has no entry point"), "")
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, c.Entrypoint[0], c.Entrypoint[1:]...)
	command.Stdout, command.Stderr = &stdout, &stderr
	command.Env = append(os.Environ(), "SCORECARD_NAMESPACE="+o.namespace, "SCORECARD_BUNDLE="+bundle)
	// A group of its own, so that its children end with it. It gets the time to clean up.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	err := command.Run()
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // what it has left
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failed(fmt.Errorf("no result within %s", o.wait), stderr.String())
	case ctx.Err() != nil:
		return failed(errors.New("interrupted"), stderr.String())
	}
	var status v1alpha3.TestStatus
	switch bad := json.Unmarshal(stdout.Bytes(), &status); {
	case bad != nil && err != nil:
		return failed(err, stderr.String())
	case bad != nil:
		return failed(fmt.Errorf("the test has printed no TestStatus: %w", bad), strings.TrimSpace(stdout.String()+stderr.String()))
	case len(status.Results) == 0:
		return failed(errors.New("the test has printed no results"), stderr.String())
	}
	return status
}
