package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func bash(t *testing.T, timeout time.Duration, stdin, script string) Result {
	t.Helper()
	p, err := start(context.Background(), t.TempDir(), os.Environ(),
		Command{Path: "/bin/bash", Args: []string{"-c", script}, Stdin: stdin, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return p.Wait()
}

func TestRunSeparatesStreams(t *testing.T) {
	r := bash(t, 0, "input\n", `read line; echo "out $line"; echo err >&2; exit 3`)
	if r.Stdout != "out input\n" || r.Stderr != "err\n" || r.ExitCode != 3 || r.TimedOut {
		t.Errorf("%+v", r)
	}
}

func TestRunEndsWhatHangs(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	r := bash(t, 300*time.Millisecond, "", `trap '' TERM INT; echo so far; sleep 600 & echo $! >`+pidFile+`; wait`)
	if !r.TimedOut || r.ExitCode != -1 || r.Stdout != "so far\n" || !strings.Contains(r.Stderr, "did not end within 300ms") {
		t.Errorf("%+v", r)
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); alive(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("the child %d of the program still runs", pid)
		}
	}
}

// alive tells a running process from one that nobody has collected yet.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return syscall.Kill(pid, 0) == nil && (err != nil || !strings.Contains(string(stat), ") Z "))
}

func TestRunReportsACrash(t *testing.T) {
	r := bash(t, 0, "", `echo before; kill -SEGV $$`)
	if r.ExitCode != -1 || r.TimedOut || r.Stdout != "before\n" {
		t.Errorf("%+v", r)
	}
}

func TestRunLimitsAFlood(t *testing.T) {
	const lines = 600_000
	r := bash(t, 0, "", fmt.Sprintf("echo first; seq %d; echo last", lines))
	if r.ExitCode != 0 || len(r.Stdout) > maxOutput+100 {
		t.Fatalf("exit code %d, %d bytes kept", r.ExitCode, len(r.Stdout))
	}
	if !strings.HasPrefix(r.Stdout, "first\n1\n") || !strings.HasSuffix(r.Stdout, fmt.Sprintf("%d\nlast\n", lines)) ||
		!strings.Contains(r.Stdout, "bytes left out") {
		t.Errorf("head %q, tail %q", r.Stdout[:20], r.Stdout[len(r.Stdout)-20:])
	}
}

func TestStartReportsAMissingProgram(t *testing.T) {
	if _, err := start(context.Background(), t.TempDir(), nil, Command{Path: "no-such-script.sh"}); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestInterruptEndsPrograms(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	p, err := start(ctx, t.TempDir(), os.Environ(), Command{Path: "/bin/sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if r := p.Wait(); r.ExitCode == 0 || r.TimedOut || r.Took > 30*time.Second {
		t.Errorf("%+v", r)
	}
}

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper()        {}
func (r *recorder) Cleanup(func()) {}
func (r *recorder) Fatal(args ...any) {
	r.failure = fmt.Sprint(args...)
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// failureOf returns what New tells a test on the given suite.
func failureOf(t *testing.T, s *suite) string {
	t.Helper()
	before := shared
	shared = s
	defer func() { shared = before }()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		New(r)
	}()
	<-done
	return r.failure
}

func TestNewNeedsMain(t *testing.T) {
	if got := failureOf(t, nil); !strings.Contains(got, "add func TestMain") {
		t.Errorf("failure %q does not say what to do", got)
	}
}

func TestNewWithoutCluster(t *testing.T) {
	config := clientcmdapi.NewConfig()
	config.Clusters["gone"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["gone"] = &clientcmdapi.Context{Cluster: "gone"}
	config.CurrentContext = "gone"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	s := &suite{ctx: context.Background()}
	if err := s.connect(path); err != nil {
		t.Fatal(err)
	}
	if got := failureOf(t, s); !strings.Contains(got, "creating the test's namespace") || !strings.Contains(got, "connection refused") {
		t.Errorf("failure %q does not say what happened", got)
	}
}
