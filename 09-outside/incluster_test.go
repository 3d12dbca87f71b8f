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
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// kubectl works in the namespace of a test.
func kubectl(e *testenv.Env, args ...string) (string, error) {
	return e.Kubectl(e.Context(), append([]string{"--namespace", e.Namespace}, args...)...)
}

// install applies the manifests in the namespace of a test, after changes.
func install(t *testing.T, e *testenv.Env, changes ...string) {
	t.Helper()
	manifests, err := os.ReadFile("config/coldroom.yaml")
	fatal.If(t, err)
	file := filepath.Join(t.TempDir(), "coldroom.yaml")
	fatal.If(t, os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(manifests))), 0o600))
	if said, err := kubectl(e, "apply", "--server-side", "-f", file); err != nil {
		t.Fatal(said, err)
	}
}

// says waits for Events of a ColdRoom that begin so.
func (f *tenant) says(name string, wants ...string) {
	f.T.Helper()
	for _, want := range wants {
		f.Eventually(time.Minute, func(ctx context.Context) error {
			all, err := f.Client.EventsV1().Events(f.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=" + name})
			if err != nil {
				return err
			}
			var said []string
			for _, e := range all.Items {
				line := strings.Join([]string{e.Type, e.Reason, e.Note}, " ")
				if said = append(said, line); strings.HasPrefix(line, want) && e.Regarding.UID != "" {
					return nil
				}
			}
			return fmt.Errorf("no Event of %s says %q: %q", name, want, said)
		})
	}
}

// With the rights of its account, the program does all that it can do. What is granted is used, and
// what is used is granted.
func TestRights(t *testing.T) {
	t.Parallel()
	f := newTenant(t, []string{"-token", "first", "-quota", "20"}, "-secret", "cold-store", "-retry", "1s")
	install(t, f.Env, "replicas: 1", "replicas: 0") // the program runs here
	request, err := f.Client.CoreV1().ServiceAccounts(f.Namespace).CreateToken(f.Context(), "coldroom", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	fatal.If(t, err)
	f.Command.Args[1] = filepath.Join(t.TempDir(), "kubeconfig")
	fatal.If(t, f.Proxy.WriteKubeconfig(f.Command.Args[1], f.Namespace, request.Status.Token))
	f.Command.Env = []string{"KUBE_FEATURE_WatchListClient=false"} // so that it also lists, as it does where the API server cannot stream
	if _, err := f.Client.CoreV1().Secrets(f.Namespace).Create(f.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cold-store"}, StringData: map[string]string{"token": "first"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Start()
	f.work()
	f.patch("meat", `{"spec":{"pallets":21}}`)
	f.Eventually(time.Minute, func(context.Context) error { // it is refused again and again, and the same Event again is a patch
		if len(f.Proxy.Requests(faultproxy.Match{Verb: "patch", Resource: "events"})) == 0 {
			return errors.New("no Event was patched")
		}
		return nil
	})
	f.says("fish", "Normal Rented Rented a room", "Normal Released Gave up room-")
	f.says("meat", "Warning Refused The store refuses: ")
	f.Stop()

	role, err := f.Client.RbacV1().Roles(f.Namespace).Get(f.Context(), "coldroom", metav1.GetOptions{})
	fatal.If(t, err)
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
	e.NeedsImages()
	crdtest.Share(t, e, crd)
	own, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	if said := e.MakeImage("09-outside/coldroom"); !strings.Contains(said, "workshop/coldroom:1") {
		t.Fatalf("make image has said:\n%s", said)
	}
	here := strings.TrimSpace(e.Run(testenv.Command{Path: e.Program("./08-webhooks/address")}).Stdout)
	company := open(t, e, "-listen", here+":0", "-token", "first")
	f := &tenant{Controller: &controllertest.Controller{Env: e, T: t, Runner: e}, company: company, cold: own.OutsideV1alpha1().ColdRooms(e.Namespace), meanwhile: func() {}}
	e.FreeAtEnd(coldRooms)
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
