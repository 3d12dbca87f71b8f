package testenv

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

func bash(script string, timeout time.Duration) Command {
	return Command{Path: "/bin/bash", Args: []string{"-c", script}, Timeout: timeout}
}

func TestResult(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   Result
	}{
		"exit code": {"echo out; echo err >&2; exit 3", Result{Stdout: "out\n", Stderr: "err\n", ExitCode: 3}},
		"crash":     {"echo before; kill -SEGV $$", Result{Stdout: "before\n", ExitCode: -1}},
		"hangs": {"trap '' TERM INT; echo so far; sleep 600",
			Result{Stdout: "so far\n", Stderr: "\n(killed: it did not end within 5s)", ExitCode: -1, TimedOut: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := start(t.Context(), t, t.TempDir(), os.Environ(), bash(tc.script, 5*time.Second)).Wait()
			if got.Took = 0; got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestStartReportsAMissingProgram(t *testing.T) {
	t.Parallel()
	got := failure(t, func(t testing.TB) {
		start(context.Background(), t, "/tmp", nil, Command{Path: "no-such-script.sh"})
	})
	if !strings.Contains(got, "starting no-such-script.sh") || !strings.Contains(got, "no such file") {
		t.Errorf("failure %q", got)
	}
}

func TestInterruptEndsPrograms(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := start(ctx, t, t.TempDir(), os.Environ(), bash("sleep 600", time.Minute))
	cancel()
	if r := p.Wait(); r.ExitCode == 0 || r.TimedOut || r.Took > 30*time.Second {
		t.Errorf("%+v", r)
	}
}

// Nothing that a test has started outlives it.
func TestEndOfTestEndsPrograms(t *testing.T) {
	t.Parallel()
	var p *Process
	t.Run("test", func(t *testing.T) {
		p = start(context.Background(), t, t.TempDir(), os.Environ(), bash("sleep 600", time.Minute))
	})
	if !p.Ended() {
		t.Error("the test has ended and its program still runs")
	}
}
