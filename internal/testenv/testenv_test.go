package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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

// failure returns what f tells its test.
func failure(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}

// failureOf returns what New tells a test on the given suite.
func failureOf(t *testing.T, s *suite) string {
	t.Helper()
	before := shared
	shared = s
	defer func() { shared = before }()
	return failure(t, func(t testing.TB) { New(t) })
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

func TestCleanUpDecidesTheExitCode(t *testing.T) {
	for _, tc := range []struct {
		tests   int
		down    error
		want    int
		message string
	}{
		{tests: 0, want: 0},
		{tests: 1, want: 1},
		{tests: 0, down: errors.New("etcd is still running"), want: 1, message: "error: cleaning up after the tests: removing the cluster that the tests have started: etcd is still running\n"},
		{tests: 2, down: errors.New("etcd is still running"), want: 2, message: "etcd is still running\n"},
	} {
		s := &suite{ctx: t.Context(), down: func(context.Context) error { return tc.down }}
		var out strings.Builder
		if got := exitCode(tc.tests, s.finish(), &out); got != tc.want || !strings.HasSuffix(out.String(), tc.message) || tc.message == "" && out.Len() > 0 {
			t.Errorf("tests ended with %d, Down with %v: exit code %d, want %d; printed %q", tc.tests, tc.down, got, tc.want, out.String())
		}
	}
}

// An interrupted run still has to clean up.
func TestFinishAfterInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &suite{ctx: ctx, down: func(ctx context.Context) error { return ctx.Err() }}
	if err := s.finish(); err != nil {
		t.Error(err)
	}
}
