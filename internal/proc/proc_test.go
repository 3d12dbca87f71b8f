package proc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

func bash(script string) Cmd {
	return Cmd{Path: "bash", Args: []string{"-c", script}}
}

// gone waits until no process has the pid that is in a file.
func gone(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	fatal.If(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	fatal.If(t, err)
	err = poll.Until(t.Context(), 20*time.Millisecond, 10*time.Second, func(context.Context) error {
		// One that was killed stays until somebody collects it.
		if stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil && strings.Contains(string(stat), ") Z ") {
			return nil
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return errors.New("it still runs")
		}
		return nil
	})
	if err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
}

// written waits until a script has written a file.
func written(t *testing.T, file string) {
	t.Helper()
	err := poll.Until(t.Context(), 10*time.Millisecond, 10*time.Second, func(context.Context) error {
		info, err := os.Stat(file)
		if err == nil && info.Size() == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	fatal.If(t, err)
}

func TestShellCode(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 3": 3, "kill -TERM $$": 143, "exit 143": 143} {
		p, err := Start(t.Context(), bash(script))
		fatal.If(t, err)
		<-p.Done()
		if got := p.ShellCode(); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
}

func TestOutput(t *testing.T) {
	c := bash("cat; echo $X; pwd; echo noise >&2")
	c.Dir, c.Env, c.In = t.TempDir(), append(os.Environ(), "X=y"), strings.NewReader("in\n")
	got, err := Output(t.Context(), c)
	if want := "in\ny\n" + c.Dir + "\n"; err != nil || got != want {
		t.Errorf("Output = %q, %v, want %q", got, err, want)
	}
	if got, err := Output(t.Context(), bash("head -c 2000000 /dev/zero")); err == nil {
		t.Errorf("of 2000000 bytes, %d were returned without an error", len(got))
	}
}

func TestErrorHoldsWhatWasPrinted(t *testing.T) {
	for script, want := range map[string]string{
		"echo progress; echo reason >&2; exit 3": "bash -c: exit status 3: reason",
		"echo one; echo two; exit 4":             "bash -c: exit status 4\none\ntwo",
		"exit 5":                                 "bash -c: exit status 5",
	} {
		err := Run(t.Context(), bash(script))
		if err == nil || err.Error() != want {
			t.Errorf("%s: error %q, want %q", script, err, want)
		}
	}
	var failed *Error
	if err := Run(t.Context(), Cmd{Path: "/no/such/program"}); !errors.As(err, &failed) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestWriters(t *testing.T) {
	var out, errs Buffer
	c := bash("echo out; echo err >&2; exit 1")
	c.Out, c.Err = &out, &errs
	err := Run(t.Context(), c)
	if out.String() != "out\n" || errs.String() != "err\n" {
		t.Errorf("the writers received %q and %q", out.String(), errs.String())
	}
	if err == nil || strings.Contains(err.Error(), "err\n") {
		t.Errorf("error %v repeats what was shown already", err)
	}
}

// Whoever started a process ends it, its children and theirs.
func TestContextEndsTheGroup(t *testing.T) {
	for _, grace := range []time.Duration{0, 200 * time.Millisecond} {
		file := filepath.Join(t.TempDir(), "pid")
		// The interrupt is ignored, also by the child.
		c := bash("trap '' INT; sleep 600 & echo $! >'" + file + "'; wait")
		c.Grace = grace
		ctx, cancel := context.WithCancel(t.Context())
		p, err := Start(ctx, c)
		fatal.If(t, err)
		written(t, file)
		begin := time.Now()
		cancel()
		if err := p.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("grace %s: Wait = %v", grace, err)
		}
		if took := time.Since(begin); took < grace {
			t.Errorf("grace %s: killed after %s", grace, took)
		}
		if p.ExitCode() != -1 {
			t.Errorf("grace %s: exit code %d", grace, p.ExitCode())
		}
		gone(t, file)
	}
}

func TestInterruptLetsCleanUp(t *testing.T) {
	for signal, name := range map[syscall.Signal]string{0: "INT", syscall.SIGTERM: "TERM"} {
		dir := t.TempDir()
		c := bash("trap 'echo clean >cleaned; exit 7' " + name + "; echo >started; while :; do sleep 0.01; done")
		c.Dir, c.Signal, c.Grace = dir, signal, 20*time.Second
		ctx, cancel := context.WithCancelCause(t.Context())
		p, err := Start(ctx, c)
		fatal.If(t, err)
		written(t, filepath.Join(dir, "started"))
		why := errors.New("why")
		cancel(why)
		if err := p.Wait(); !errors.Is(err, why) || p.ExitCode() != 7 {
			t.Errorf("%s: Wait = %v, exit code %d", name, err, p.ExitCode())
		}
		if _, err := os.Stat(filepath.Join(dir, "cleaned")); err != nil {
			t.Errorf("%s: it could not clean up: %v", name, err)
		}
	}
}

// A process that ends well must not leave its children behind, nor be held up
// by one that keeps its output open.
func TestNothingIsLeftBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	begin := time.Now()
	if got, err := Output(t.Context(), bash("sleep 600 & echo $! >'"+file+"'; echo done")); err != nil || got != "done\n" {
		t.Errorf("Output = %q, %v", got, err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	gone(t, file)
}

func TestNotStartedAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, bash("exit 0")); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
}

func TestBuffer(t *testing.T) {
	var b Buffer
	for range 3 {
		b.Write([]byte("first" + strings.Repeat("x", MaxOutput/2-9) + "last"))
	}
	got := b.String()
	if b.Dropped() != MaxOutput/2 || len(got) > MaxOutput+50 ||
		!strings.HasPrefix(got, "first") || !strings.HasSuffix(got, "last") || !strings.Contains(got, "bytes left out") {
		t.Errorf("%d bytes kept, %d dropped", len(got), b.Dropped())
	}
	var none *Buffer
	if none.String() != "" {
		t.Error("a nil Buffer is not empty")
	}
}

func TestLastLines(t *testing.T) {
	for n, want := range map[int]string{0: "", 2: "b\nc", 3: "a\nb\nc", 9: "a\nb\nc"} {
		if got := LastLines("a\nb\nc\n", n); got != want {
			t.Errorf("the last %d lines: %q, want %q", n, got, want)
		}
	}
	if got := LastLines("\n", 3); got != "" {
		t.Errorf("the last lines of none: %q", got)
	}
}
