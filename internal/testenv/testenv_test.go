package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/k8s-go/workshop/internal/fatal"
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
	fatal.If(t, clientcmd.WriteToFile(*config, path))
	s := &suite{ctx: context.Background()}
	fatal.If(t, s.connect(path))
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

// The namespace controller says in conditions what holds a namespace up.
func TestGoneSaysWhatIsLeft(t *testing.T) {
	now := metav1.Now()
	const left = "Some content in the namespace has finalizers remaining: example.org/kept in 1 resource instances"
	s := &suite{client: fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held", DeletionTimestamp: &now, Finalizers: []string{"kubernetes"}}, Status: corev1.NamespaceStatus{Conditions: []corev1.NamespaceCondition{
			{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionFalse, Message: "All resources successfully discovered"},
			{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionTrue, Message: left},
		}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "forgotten"}},
	)}
	for name, want := range map[string]string{
		"held":      "namespace held of a test is still there: it is being deleted; " + left,
		"forgotten": "namespace forgotten of a test is still there: nobody has deleted it",
	} {
		if err := s.gone(t.Context(), name); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := s.gone(t.Context(), "none"); err != nil {
		t.Error(err)
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
