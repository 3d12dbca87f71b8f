// Package selftest tests the harness on a real cluster.
package selftest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("SELFTEST_LEAK") != "" {
		testenv.Main(m, testenv.NamespacesGoneWithin(2*time.Second))
	}
	testenv.Main(m)
}

func TestNamespaceIsTheTestsOwn(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("first", func(t *testing.T) { first = testenv.New(t).Namespace })
	e := testenv.New(t)
	if first == e.Namespace {
		t.Fatalf("two tests share namespace %s", first)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: first}}
	e.WaitFor(2*time.Minute, e.Conditions().ResourceDeleted(ns), ns) // the namespace controller takes its time with many of them
}

func TestProgramReachesTheCluster(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := e.Run(testenv.Command{Path: e.Program("./internal/testenv/selftest/whoami"), Args: []string{"-n", e.Namespace}})
	if r.ExitCode != 0 || r.Stdout != "namespace "+e.Namespace+"\n" {
		t.Errorf("exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// A test that fails must show the program's output, the events and the objects.
// This test runs itself again as a test that fails, and reads what it prints.
func TestFailureIsExplained(t *testing.T) {
	if os.Getenv("SELFTEST_FAIL") != "" {
		e := testenv.New(t)
		cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(e.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "shown"}, Data: map[string]string{"key": "what the cluster holds"}}, metav1.CreateOptions{})
		fatal.If(t, err)
		e.ShowOnFailure(cm)
		if _, err := e.Client.CoreV1().Events(e.Namespace).Create(e.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: "shown"},
			InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Name: "shown", Namespace: e.Namespace},
			Type:           "Warning", Reason: "Provoked", Message: "what happened",
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Run(testenv.Command{Path: "/bin/echo", Args: []string{"what the program printed"}})
		e.Eventually(200*time.Millisecond, func(context.Context) error { return errors.New("what was waited for") })
	}
	t.Parallel()
	output := fails(t, "TestFailureIsExplained", "SELFTEST_FAIL=1")
	for _, want := range []string{
		"not within 200ms: what was waited for",
		"what the program printed",
		"event Warning ConfigMap/shown Provoked: what happened",
		"key: what the cluster holds",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("%q is missing in what a failing test prints:\n%s", want, output)
		}
	}
}

// fails runs a test of this package in another process, in which it has to
// fail, and returns what it prints.
func fails(t *testing.T, test, variable string) string {
	t.Helper()
	binary, err := os.Executable()
	fatal.If(t, err)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable)
	output, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Fatalf("a test that failed: exit code %d (%v)\n%s", code, err, output)
	}
	return string(output)
}

// A subtest that fails shows what is its own: not what its siblings ran.
func TestFailureOfSubtest(t *testing.T) {
	if os.Getenv("SELFTEST_SUBTEST") != "" {
		parent := testenv.New(t)
		for _, name := range []string{"good", "bad"} {
			t.Run(name, func(t *testing.T) {
				e := parent.For(t)
				if e.Namespace != parent.Namespace {
					t.Errorf("namespace %s, want the parent's, %s", e.Namespace, parent.Namespace)
				}
				e.Start(testenv.Command{Path: "/bin/sleep", Args: []string{"600", "of-" + name}})
				if name == "bad" {
					e.Eventually(200*time.Millisecond, func(context.Context) error { return errors.New("what was waited for") })
				}
			})
		}
		return
	}
	t.Parallel()
	output := fails(t, "TestFailureOfSubtest", "SELFTEST_SUBTEST=1")
	if !strings.Contains(output, "of-bad") || strings.Contains(output, "of-good") || strings.Count(output, "no events") != 1 ||
		!strings.Contains(output, "--- PASS: TestFailureOfSubtest/good") {
		t.Errorf("want the program of the failed subtest, and the events once:\n%s", output)
	}
}

// A subtest that uses its parent's Env is told so, also where all goes well.
func TestParentsEnvInASubtest(t *testing.T) {
	if os.Getenv("SELFTEST_PARENT") != "" {
		e := testenv.New(t)
		t.Run("part", func(t *testing.T) { e.Eventually(time.Second, func(context.Context) error { return nil }) })
		return
	}
	t.Parallel()
	if output := fails(t, "TestParentsEnvInASubtest", "SELFTEST_PARENT=1"); !strings.Contains(output, "a subtest of TestParentsEnvInASubtest uses its parent's Env") {
		t.Errorf("%s", output)
	}
	// What is no subtest may use it: clean-ups, goroutines and helpers.
	e := testenv.New(t)
	fine := func() { e.Eventually(time.Minute, func(context.Context) error { return nil }) }
	t.Cleanup(fine)
	done := make(chan struct{})
	go func() { defer close(done); fine() }()
	<-done
	fine()
	t.Run("part", func(t *testing.T) {
		e.For(t).Eventually(time.Minute, func(context.Context) error { return nil })
	})
}

// A namespace that does not go turns a run red in which all tests have passed.
func TestLeakedNamespaceIsAnError(t *testing.T) {
	if os.Getenv("SELFTEST_LEAK") != "" {
		e := testenv.New(t)
		_, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(e.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "kept", Finalizers: []string{"workshop.k8s-go.dev/selftest"}}}, metav1.CreateOptions{})
		fatal.If(t, err)
		t.Log("LEAKED " + e.Namespace)
		return
	}
	t.Parallel()
	e := testenv.New(t)
	output := fails(t, "TestLeakedNamespaceIsAnError", "SELFTEST_LEAK=1")
	_, namespace, _ := strings.Cut(output, "LEAKED ")
	namespace, _, _ = strings.Cut(namespace, "\n")
	if _, err := e.Client.CoreV1().ConfigMaps(namespace).Patch(e.Context(), "kept", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("letting the leaked namespace go: %v", err)
	}
	if !strings.Contains(output, "--- PASS: TestLeakedNamespaceIsAnError") {
		t.Errorf("the test itself should have passed:\n%s", output)
	}
	for _, want := range []string{"error: cleaning up after the tests: ", "namespace " + namespace + " of a test is still there: it is being deleted"} {
		if !strings.Contains(output, want) {
			t.Errorf("%q is missing in\n%s", want, output)
		}
	}
}

// The proxy reaches the test's namespace, breaks what it is told to, and shows
// its requests when the test fails.
func TestProxy(t *testing.T) {
	t.Parallel()
	if os.Getenv("SELFTEST_PROXY") == "" {
		if output := fails(t, "TestProxy", "SELFTEST_PROXY=1"); strings.Count(output, "whoami/") != 2 || !strings.Contains(output, "503") {
			t.Errorf("want both requests of whoami, and the answer 503:\n%s", output)
		}
		return
	}
	e := testenv.New(t)
	p := e.Proxy()
	whoami := testenv.Command{Path: e.Program("./internal/testenv/selftest/whoami"), Args: []string{"-n", e.Namespace}, Env: []string{"KUBECONFIG=" + p.Kubeconfig}}
	if r := e.Run(whoami); r.ExitCode != 0 {
		t.Fatalf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	injected := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "get", Resource: "namespaces"}, Fault: faultproxy.Answer, Code: 503})
	if r := e.Run(whoami); r.ExitCode == 0 || injected.Struck() != 1 {
		t.Fatalf("exit code %d with %d faults", r.ExitCode, injected.Struck())
	}
	t.Error("on purpose")
}

// What the harness costs each test: a namespace made and its deletion begun.
// The baseline is the least that any request to this server takes.
func BenchmarkNamespacePerTest(b *testing.B) {
	e := testenv.New(b)
	start := time.Now()
	const n = 20
	for range n {
		if _, err := e.Client.CoreV1().Namespaces().Get(e.Context(), e.Namespace, metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	get := time.Since(start) / n
	for b.Loop() {
		ns, err := e.Client.CoreV1().Namespaces().Create(e.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
		fatal.If(b, err)
		fatal.If(b, e.Client.CoreV1().Namespaces().Delete(e.Context(), ns.Name, metav1.DeleteOptions{}))
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(get), "x-one-get")
}
