package kubebuilder

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// overlay deploys the project into the namespace of a test, for that namespace only. The
// definition and the namespace are there already.
const overlay = `resources: [%[1]s]
namespace: %[2]s
images: [{name: controller, newName: workshop/icecream, newTag: "1"}]
patches:
- {patch: '{"$patch": "delete", "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "icecreams.controller.nicoleh.io"}}'}
- {patch: '{"$patch": "delete", "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "icecream-system"}}'}
- {target: {kind: Deployment}, patch: '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--namespace=%[2]s"}]'}
`

// The project as pods: with the rights that its markers ask for, one leader, and metrics for
// those who may read them.
func TestInCluster(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	e.NeedsImages()
	ws, c := e.Workspace(), e.Cluster()
	run := func(ctx context.Context, name string, args ...string) string {
		t.Helper()
		output, err := proc.Output(ctx, proc.Cmd{Path: name, Args: args, Dir: ws.Root, Grace: time.Minute,
			Env: append(c.Environ(), "PROGRAM="+project+"/cmd")})
		fatal.If(t, err)
		return output
	}
	kubectl := ws.Bin("kubectl")
	f := icecreamtest.Of(t, e, kubectl) // for its Icecreams; the controller runs elsewhere
	if said := e.MakeImage(project + "/cmd"); !strings.Contains(said, "workshop/icecream:1") {
		t.Fatalf("make image has said:\n%s", said)
	}

	dir, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	base, err := filepath.Rel(dir, filepath.Join(ws.Root, project, "config", "default")) // kustomize takes no absolute path
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, overlay, base, e.Namespace), 0o644))
	t.Cleanup(func() { // the roles belong to no namespace
		run(context.WithoutCancel(e.Context()), kubectl, "delete", "-k", dir, "--ignore-not-found", "--wait=false")
	})
	run(e.Context(), kubectl, "apply", "--server-side", "-k", dir)
	run(e.Context(), kubectl, "rollout", "status", "deployment/icecream-controller-manager", "-n", e.Namespace, "--timeout=3m")

	f.Create("vanilla", "cone", 1)
	available := icecreamtest.Condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
	f.Until("vanilla", available)

	leader := func(ctx context.Context) (string, error) {
		lease, err := e.Client.CoordinationV1().Leases(e.Namespace).Get(ctx, "86203ad0.nicoleh.io", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return "", errors.Join(err, errors.New("nobody leads"))
		}
		pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
		return pod, nil
	}
	first, err := leader(e.Context())
	fatal.If(t, err)
	t.Run("metrics", func(t *testing.T) { metrics(t, e.For(t), first) })

	// A leader that ends gives its lease back, and the next one goes on.
	fatal.If(t, e.Client.CoreV1().Pods(e.Namespace).Delete(e.Context(), first, metav1.DeleteOptions{}))
	e.Eventually(2*time.Minute, func(ctx context.Context) error {
		now, err := leader(ctx)
		if err == nil && (now == first || now == "") {
			err = fmt.Errorf("%q leads", now)
		}
		return err
	})
	f.Create("mint", "cup", 1)
	f.Until("mint", available)
}

// metrics asks the manager for its metrics: as nobody, as an account without the right, and
// as one that has it.
func metrics(t *testing.T, e *testenv.Env, pod string) {
	t.Helper()
	token := func(name string) string {
		t.Helper()
		accounts := e.Client.CoreV1().ServiceAccounts(e.Namespace)
		if _, err := accounts.Create(e.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		request, err := accounts.CreateToken(e.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		fatal.If(t, err)
		return request.Status.Token
	}
	bindings := e.Client.RbacV1().ClusterRoleBindings()
	binding := "metrics-of-" + e.Namespace
	if _, err := bindings.Create(e.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: binding},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "icecream-metrics-reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: e.Namespace, Name: "reader"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bindings.Delete(context.WithoutCancel(e.Context()), binding, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	forward := e.Start(testenv.Command{Path: e.Workspace().Bin("kubectl"), Args: []string{"port-forward", "-n", e.Namespace, "pod/" + pod, ":8443"}, Timeout: 5 * time.Minute})
	var port string
	e.Eventually(time.Minute, func(context.Context) error {
		m := regexp.MustCompile(`127\.0\.0\.1:(\d+) ->`).FindStringSubmatch(forward.Stdout())
		if m == nil {
			return fmt.Errorf("no port is forwarded: %s%s", forward.Stdout(), forward.Stderr())
		}
		port = m[1]
		return nil
	})
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // it has signed itself
	ask := func(ctx context.Context, token string) (code int, body string, err error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+port+"/metrics", nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(data), err
	}
	for _, tc := range []struct {
		who, token string
		code       int
	}{
		{"nobody", "", http.StatusUnauthorized},
		{"an account without the right", token("stranger"), http.StatusForbidden},
		{"an account with the right", token("reader"), http.StatusOK},
	} {
		e.Eventually(time.Minute, func(ctx context.Context) error { // what the API server has said about an account counts for 10 s
			code, body, err := ask(ctx, tc.token)
			switch {
			case err != nil:
				return err
			case code != tc.code:
				return fmt.Errorf("%s gets %d, not %d", tc.who, code, tc.code)
			case code == http.StatusOK && !strings.Contains(body, `controller_runtime_reconcile_total{controller="icecream"`):
				return errors.New("the metrics have no reconciliations of icecream")
			}
			return nil
		})
	}
}
