package informer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "workshop-overlay-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	overlayDir = dir
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }

// proxy puts a fault proxy in front of the cluster, and returns a kubeconfig for it.
func proxy(t *testing.T, e *testenv.Env) (*faultproxy.Proxy, string) {
	t.Helper()
	p, err := faultproxy.Start(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, r := range p.Requests(faultproxy.Requests{}) {
				t.Logf("%s %s: %s", r.Started.Format("05.000"), r.UserAgent, r)
			}
		}
		p.Close()
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.WriteKubeconfig(kubeconfig, e.Namespace, ""); err != nil {
		t.Fatal(err)
	}
	return p, kubeconfig
}

func inject(t *testing.T, p *faultproxy.Proxy, rule faultproxy.Rule) *faultproxy.Injection {
	t.Helper()
	i, err := p.Inject(rule)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// set creates or changes a ConfigMap so that it has v.
func set(t *testing.T, e *testenv.Env, name, v string) {
	t.Helper()
	_, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Apply(e.Context(),
		applycorev1.ConfigMap(name, e.Namespace).WithData(map[string]string{"v": v}), metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, e *testenv.Env, name string) {
	t.Helper()
	if err := e.Client.CoreV1().ConfigMaps(e.Namespace).Delete(e.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// prints waits until a running program has printed the text.
func prints(t *testing.T, e *testenv.Env, p *testenv.Process, text string) {
	t.Helper()
	e.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Stdout(), text) {
			return fmt.Errorf("%q is not in the output:\n%s%s", text, p.Stdout(), p.Stderr())
		}
		return nil
	})
}
