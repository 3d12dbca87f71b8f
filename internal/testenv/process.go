package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/proc"
)

// A Command is one run of a program or script.
type Command struct {
	Path    string // a binary from Env.Program, or a script relative to the clone's root
	Args    []string
	Env     []string      // in addition to what reaches the cluster, as in exec.Cmd
	Timeout time.Duration // after which it is killed; three minutes if zero, because machines are slow
	Grace   time.Duration // how long it may take to end after SIGINT, before it is killed; if zero, it is killed at once
}

// A Result is what a command did.
type Result struct {
	Stdout, Stderr string
	ExitCode       int  // -1 if a signal ended it
	TimedOut       bool // it was killed at its Timeout
	Took           time.Duration
}

// Run runs a command to its end. It fails the test only if the command could
// not be started; what the exit code should be is the test's to say.
func (e *Env) Run(c Command) Result {
	e.t.Helper()
	return e.Start(c).Wait()
}

// A Process is a running command.
type Process struct {
	*proc.Process
	timeout time.Duration
	started time.Time
}

// Start starts a command. It is killed, with everything that it started, when
// its timeout is over, when the test ends and when the run is interrupted.
func (e *Env) Start(c Command) *Process {
	e.t.Helper()
	e.own()
	s := e.suite
	return start(s.ctx, e.t, s.ws.Root, s.cluster.Environ(), c)
}

func start(ctx context.Context, t testing.TB, dir string, environ []string, c Command) *Process {
	t.Helper()
	p := &Process{timeout: c.Timeout, started: time.Now()}
	if p.timeout == 0 {
		p.timeout = 3 * time.Minute
	}
	path := c.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	var err error
	p.Process, err = proc.Start(ctx, proc.Cmd{Path: path, Args: c.Args, Dir: dir, Env: append(environ, c.Env...), Grace: c.Grace})
	if err != nil {
		cancel()
		t.Fatalf("starting %s: %v", c.Path, err)
	}
	t.Cleanup(func() {
		cancel()
		r := p.Wait()
		if t.Failed() {
			t.Logf("--- %s %s: exit code %d after %s\nstdout:\n%s\nstderr:\n%s",
				filepath.Base(c.Path), strings.Join(c.Args, " "), r.ExitCode, r.Took.Round(time.Millisecond), r.Stdout, r.Stderr)
		}
	})
	return p
}

// Wait waits for the end of the process.
func (p *Process) Wait() Result {
	err := p.Process.Wait()
	r := Result{
		Stdout: p.Stdout(), Stderr: p.Stderr(), ExitCode: p.ExitCode(),
		TimedOut: errors.Is(err, context.DeadlineExceeded), Took: time.Since(p.started),
	}
	if r.TimedOut {
		r.Stderr += fmt.Sprintf("\n(killed: it did not end within %s)", p.timeout)
	}
	return r
}

// TerminateDuring is a faultproxy.Call: it sends SIGTERM while a request is under way, and holds
// that request for a second. A program that waits for its answer is still there afterwards.
func (p *Process) TerminateDuring(ctx context.Context, _ faultproxy.Request) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-ctx.Done(): // the program has gone
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}
