package outside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// kubectl returns what kubectl prints.
func kubectl(e *testenv.Env, args ...string) (string, error) {
	return proc.Output(e.Context(), proc.Cmd{Path: e.Workspace().Bin("kubectl"), Args: append([]string{"--namespace", e.Namespace}, args...), Dir: e.Workspace().Root, Env: e.Cluster().Environ(), Grace: time.Minute})
}

// install applies the manifests in the namespace of a test, after changes.
func install(t *testing.T, e *testenv.Env, changes ...string) {
	t.Helper()
	manifests, err := os.ReadFile("config/coldroom.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "coldroom.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(manifests))), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := kubectl(e, "apply", "--server-side", "-f", file); err != nil {
		t.Fatal(said, err)
	}
}

// With the rights of its account, the program does all that it can do. What is granted is used, and
// what is used is granted.
func TestRights(t *testing.T) {
	t.Parallel()
	f := newTenant(t, []string{"-token", "first"}, "-secret", "cold-store")
	install(t, f.Env, "replicas: 1", "replicas: 0") // the program runs here
	request, err := f.Client.CoreV1().ServiceAccounts(f.Namespace).CreateToken(f.Context(), "coldroom", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.Command.Args[1] = filepath.Join(t.TempDir(), "kubeconfig")
	if err := f.Proxy.WriteKubeconfig(f.Command.Args[1], f.Namespace, request.Status.Token); err != nil {
		t.Fatal(err)
	}
	f.Command.Env = []string{"KUBE_FEATURE_WatchListClient=false"} // so that it also lists, as it does where the API server cannot stream
	if _, err := f.Client.CoreV1().Secrets(f.Namespace).Create(f.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cold-store"}, StringData: map[string]string{"token": "first"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Start()
	f.work()
	f.Stop()

	role, err := f.Client.RbacV1().Roles(f.Namespace).Get(f.Context(), "coldroom", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var granted, used []string
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			granted = append(granted, verb+" "+strings.Join(rule.Resources, ","))
		}
	}
	for _, r := range f.Proxy.Requests(faultproxy.Match{}) {
		if r.Code == 403 {
			t.Errorf("403 Forbidden: %s", r)
		}
		if r.Resource != "" {
			used = append(used, r.Verb+" "+r.Resource)
		}
	}
	slices.Sort(granted)
	slices.Sort(used)
	if used = slices.Compact(used); !slices.Equal(granted, used) {
		t.Errorf("granted is %q, and used is %q", granted, used)
	}
}

// As a pod, with these rights and a store outside of the cluster, it rents, survives its own end, and gives up.
func TestInCluster(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	e.NeedsContainers()
	if e.Cluster().Name() != "kind" {
		t.Skipf("needs nodes that take an image without a registry; run it with CLUSTER=kind")
	}
	crdtest.Share(t, e, crd)
	own, err := versioned.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	if said, err := proc.Output(e.Context(), proc.Cmd{Path: e.Program("./cmd/workshop"), Args: []string{"image"}, Dir: e.Workspace().Root, Grace: time.Minute,
		Env: append(e.Cluster().Environ(), "PROGRAM=09-outside/coldroom")}); err != nil || !strings.Contains(said, "workshop/coldroom:1") {
		t.Fatalf("make image has said (%v):\n%s", err, said)
	}
	here := strings.TrimSpace(e.Run(testenv.Command{Path: e.Program("./08-webhooks/address")}).Stdout)
	company := open(t, e, "-listen", here+":0", "-token", "first")
	f := &tenant{Controller: &controllertest.Controller{Env: e, T: t, Runner: e}, company: company, cold: own.OutsideV1alpha1().ColdRooms(e.Namespace), meanwhile: func() {}}
	f.cleanUp()
	if _, err := e.Client.CoreV1().Secrets(e.Namespace).Create(e.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cold-store"}, StringData: map[string]string{"token": "first"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if said, err := kubectl(e, "label", "namespace", e.Namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		t.Fatal(said, err)
	}
	install(t, e, "http://cold-store,", company.address+", -poll=1s,")
	if said, err := kubectl(e, "rollout", "status", "deployment/coldroom", "--timeout=3m"); err != nil {
		t.Fatal(said, err)
	}
	company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms", Do: "silent", After: true})
	f.create("fish", 4)
	company.struck()
	if said, err := kubectl(e, "delete", "pods", "-l", "app=coldroom", "--grace-period=0", "--force"); err != nil {
		t.Fatal(said, err)
	}
	company.owner("DELETE", "/faults", nil)
	f.ready("fish")
	f.holds(map[string]int{"fish": 4})
	f.delete("fish")
	f.gone("fish")
	f.Eventually(time.Minute, func(context.Context) error {
		if rooms := company.rooms(); len(rooms) > 0 {
			return errors.New(fmt.Sprint(rooms))
		}
		return nil
	})
}
