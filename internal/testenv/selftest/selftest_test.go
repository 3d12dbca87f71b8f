// Package selftest tests the harness on a real cluster.
package selftest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestNamespaceIsTheTestsOwn(t *testing.T) {
	var first string
	t.Run("first", func(t *testing.T) { first = testenv.New(t).Namespace })
	e := testenv.New(t)
	if first == e.Namespace {
		t.Fatalf("two tests share namespace %s", first)
	}
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		_, err := e.Client.CoreV1().Namespaces().Get(ctx, first, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("namespace %s of a test that has ended is still there (%v)", first, err)
	})
}

func TestProgramReachesTheCluster(t *testing.T) {
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
		if err != nil {
			t.Fatal(err)
		}
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
	e := testenv.New(t)
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(e.Context(), binary, "-test.run=^TestFailureIsExplained$", "-test.v")
	cmd.Env = append(os.Environ(), "SELFTEST_FAIL=1")
	output, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("a test that failed has exited with 0:\n%s", output)
	}
	for _, want := range []string{
		"not within 200ms: what was waited for",
		"what the program printed",
		"event Warning ConfigMap/shown Provoked: what happened",
		"key: what the cluster holds",
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("%q is missing in what a failing test prints:\n%s", want, output)
		}
	}
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
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Client.CoreV1().Namespaces().Delete(e.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(get), "x-one-get")
}
