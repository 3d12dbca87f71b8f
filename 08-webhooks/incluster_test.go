package webhooks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/rights"
	"github.com/k8s-go/workshop/internal/testenv"
)

// system is the namespace in the manifests, and a part of the names of what belongs to none.
const system = "webhook-system"

// checked is the label of the namespaces that the webhooks in the manifests are asked about. Here its value is the name of the
// namespace that they are installed in.
const checked = "webhooks.k8s-go.openshift.org/checked"

// install applies the manifests, with the namespace of a test in place of theirs, after a change, and
// returns them.
func install(t *testing.T, e *testenv.Env, change func(manifests string) string) string {
	t.Helper()
	manifests, err := e.Kubectl(e.Context(), "kustomize", "08-webhooks/config")
	fatal.If(t, err)
	manifests = strings.ReplaceAll(manifests, system, e.Namespace)
	if _, rest, ok := strings.Cut(manifests, "\n---\n"); ok && strings.HasPrefix(manifests, "apiVersion: v1\nkind: Namespace\n") {
		manifests = rest // it is there
	} else {
		t.Fatalf("the manifests do not begin with the Namespace:\n%.200s", manifests)
	}
	// Of two tests that run at the same time, neither's webhooks may be asked about the other's namespace: they end with their test.
	const all = checked + `: "yes"`
	if n := strings.Count(manifests, all); n != 4 {
		t.Fatalf("%d webhooks ask about namespaces with %s, want 4", n, all)
	}
	manifests = change(strings.ReplaceAll(manifests, all, checked+": "+e.Namespace))
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	fatal.If(t, os.WriteFile(file, []byte(manifests), 0o644))
	t.Cleanup(func() { // also what is in no namespace
		if _, err := e.Kubectl(context.WithoutCancel(e.Context()), "delete", "-f", file, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Kubectl(e.Context(), "label", "namespace", e.Namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Kubectl(e.Context(), "apply", "--server-side", "-f", file); err != nil {
		t.Fatal(err)
	}
	return manifests
}

// The configuration of the lesson and that of the cluster ask about the same requests.
func TestConfigurations(t *testing.T) {
	read := func(path string) []string {
		data, err := os.ReadFile(path)
		fatal.If(t, err)
		var all []string
		for _, document := range strings.Split(string(data), "\n---\n") {
			var c admissionregistrationv1.MutatingWebhookConfiguration // has all fields of the other one
			fatal.If(t, yaml.Unmarshal([]byte(document), &c))
			for _, w := range c.Webhooks {
				w.ClientConfig, w.NamespaceSelector = admissionregistrationv1.WebhookClientConfig{}, nil
				all = append(all, fmt.Sprint(c.Kind, " ", w.String()))
			}
		}
		return all
	}
	if lesson, inCluster := read("webhooks.yaml"), read("config/configurations.yaml"); !reflect.DeepEqual(lesson, inCluster) || len(lesson) != 4 {
		t.Errorf("webhooks.yaml:\n%s\nconfig/configurations.yaml:\n%s", strings.Join(lesson, "\n"), strings.Join(inCluster, "\n"))
	}
}

// A right is what a rule grants, and what a request needs.
type right struct{ account, group, resource, verb string }

// The programs run with the rights of their accounts, and do all that they can do. What is granted is
// used, and what is used is granted.
func TestRights(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	ctx := s.Context()

	// A definition with a conversion webhook, of this test: no other one may be changed.
	crd := crdtest.Read(t, icecreamCRD)
	crdtest.Rename(crd, s.Namespace+".k8s-go.openshift.org")
	crd.Annotations["cert-keeper.k8s-go.openshift.org/inject-ca"] = s.Namespace + "/" + ca
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: new("https://127.0.0.1/none")}}}
	crdtest.Install(t, s.Env, crd)
	install(t, s.Env, func(manifests string) string {
		manifests = strings.ReplaceAll(manifests, "icecreams.controller.nicoleh.io", crd.Name)
		return strings.NewReplacer("replicas: 1", "replicas: 0", "replicas: 2", "replicas: 0").Replace(manifests) // the programs run here
	})
	proxies := map[string]*testenv.Proxy{}
	as := func(account string) string { // a kubeconfig
		p := s.Proxy()
		proxies[account] = p
		request, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		fatal.If(t, err)
		file := filepath.Join(t.TempDir(), account)
		fatal.If(t, p.WriteKubeconfig(file, s.Namespace, request.Status.Token))
		return file
	}

	// One Secret is somebody else's, and so is one Service's host: that is said in an Event.
	if _, err := s.Client.CoreV1().Secrets(s.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.CoreV1().Services(s.Namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late", Annotations: map[string]string{"cert-keeper.k8s-go.openshift.org/secret": "taken"}},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.environ = []string{"KUBE_FEATURE_WatchListClient=false"} // so that it also lists, as it does where the API server cannot stream
	s.keep(time.Second, []string{"-kubeconfig", as("cert-keeper")})
	if _, err := s.Client.CoreV1().Services(s.Namespace).Patch(ctx, "webhook", types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {"cert-keeper.k8s-go.openshift.org/hosts": %q}}}`, s.address), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.mount(0)
	s.serve("-kubeconfig", as("webhook"))
	if _, err := s.Kubectl(ctx, "label", "namespace", s.Namespace, checked+"="+s.Namespace); err != nil {
		t.Fatal(err)
	}
	s.byURL()
	s.inForce()
	s.rotate()
	s.Eventually(time.Minute, func(ctx context.Context) error {
		now, err := crdtest.Client(t, s.Env).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && len(now.Spec.Conversion.Webhook.ClientConfig.CABundle) == 0 {
			err = errors.New("the definition has no caBundle")
		}
		return err
	})
	// Each rule is asked once, with each of its lists.
	for _, action := range []v1alpha1.Action{v1alpha1.ActionAnnotate, v1alpha1.ActionKill} {
		s.Eventually(time.Minute, func(ctx context.Context) error {
			_, err := s.own.PolicyV1alpha1().HealthCheckPolicies(s.Namespace).Create(ctx, policy(strings.ToLower(string(action)), action), metav1.CreateOptions{})
			return err
		})
	}
	s.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("lemon", ""), metav1.CreateOptions{})
		return err
	})

	used, granted := map[right]bool{}, map[right]bool{}
	for account, p := range proxies {
		for _, r := range p.Requests(faultproxy.Match{}) {
			if r.Code == 403 {
				t.Errorf("%s: 403 Forbidden: %s", account, r)
			}
			if r.Resource != "" {
				used[right{account, r.Group, r.Resource, strings.TrimSuffix(r.Verb, "-list")}] = true
			}
		}
	}
	for _, account := range []string{"cert-keeper", "webhook"} {
		var rules []rbacv1.PolicyRule
		if role, err := s.Client.RbacV1().Roles(s.Namespace).Get(ctx, account, metav1.GetOptions{}); err == nil {
			rules = role.Rules
		} else if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		role, err := s.Client.RbacV1().ClusterRoles().Get(ctx, s.Namespace+"-"+account, metav1.GetOptions{})
		fatal.If(t, err)
		for _, rule := range append(rules, role.Rules...) {
			for r := range rights.Of(rule) {
				if r.Resource == "services/finalizers" { // only an admission plugin asks for it
					continue
				}
				granted[right{account, r.Group, r.Resource, r.Verb}] = true
				if r.Verb == "patch" && r.Resource != "events" && len(rule.ResourceNames) != 1 {
					t.Errorf("%s may patch %s of any name", account, r.Resource)
				}
			}
		}
	}
	for r := range maps.Keys(used) {
		if !granted[r] {
			t.Errorf("used and not granted: %+v", r)
		}
	}
	for r := range maps.Keys(granted) {
		if !used[r] {
			t.Errorf("granted and not used: %+v", r)
		}
	}
}

// byURL has the API server ask the process of a test, in place of the Service.
func (s *setup) byURL() {
	s.t.Helper()
	for _, kind := range []string{"validatingwebhookconfiguration", "mutatingwebhookconfiguration"} {
		s.Eventually(time.Minute, func(ctx context.Context) error { // cert-keeper writes the same lists
			paths, err := s.Kubectl(ctx, "get", kind, s.Namespace, "-o", `jsonpath={range .webhooks[*]}{.clientConfig.service.path}{"\n"}{end}`)
			if err != nil {
				return err
			}
			var operations []string
			for i, path := range strings.Fields(paths) {
				operations = append(operations, fmt.Sprintf(`{"op": "remove", "path": "/webhooks/%d/clientConfig/service"}, {"op": "add", "path": "/webhooks/%d/clientConfig/url", "value": "https://%s%s"}`, i, i, s.listens, path))
			}
			_, err = s.Kubectl(ctx, "patch", kind, s.Namespace, "--type", "json", "--patch", "["+strings.Join(operations, ",")+"]")
			return err
		})
	}
}

// The two as pods: a rotation, a rollout and an eviction, while people write.
func TestInCluster(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	e.NeedsImages()
	crdtest.Share(t, e, icecreamCRD, policyCRD)
	own, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	ctx := e.Context()
	for _, program := range []string{"cert-keeper", "webhook"} {
		if said := e.MakeImage("08-webhooks/" + program); !strings.Contains(said, "workshop/"+program+":1") {
			t.Fatalf("make image has said:\n%s", said)
		}
	}
	const settle = 20 * time.Second
	install(t, e, func(manifests string) string {
		return strings.Replace(manifests, "- -listen=:8081\n", fmt.Sprintf("- -listen=:8081\n        - -settle=%s\n", settle), 1)
	})
	team := testenv.New(t) // whose Icecreams are checked
	s := &setup{Env: team, t: t, own: own}
	if _, err := e.Kubectl(ctx, "label", "namespace", team.Namespace, checked+"="+e.Namespace); err != nil {
		t.Fatal(err)
	}
	for _, deployment := range []string{"cert-keeper", "webhook"} {
		if said, err := e.Kubectl(ctx, "rollout", "status", "deployment/"+deployment, "-n", e.Namespace, "--timeout=3m"); err != nil {
			t.Fatal(said, err)
		}
	}
	s.inForce()
	var objects []string
	for n := range 10 {
		name := fmt.Sprintf("load-%d", n)
		if _, err := own.IcecreamV1alpha1().Icecreams(team.Namespace).Create(ctx, icecream(name, ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, "icecreams.v1alpha1.controller.nicoleh.io/"+name)
	}
	under := func(what string, f func()) {
		t.Helper()
		load := e.Start(testenv.Command{Path: e.Program("./08-webhooks/load"), Timeout: 10 * time.Minute, Args: []string{"-namespace", team.Namespace, "-rate", "50", "-objects", strings.Join(objects, ",")}})
		f()
		fatal.If(t, load.Signal(os.Interrupt))
		r := load.Wait()
		t.Logf("%s: %s", what, r.Stdout)
		if !strings.Contains(r.Stdout, ", 0 refused") || strings.Contains(r.Stdout, "\n0 changes") {
			t.Errorf("%s, while somebody writes:\n%s%s", what, r.Stdout, r.Stderr)
		}
	}
	under("a rotation", func() {
		// A kubelet looks at a mounted Secret every minute or so, and at once when something about
		// the pod has changed.
		ended := make(chan struct{})
		looking, stop := context.WithCancel(ctx)
		go func() {
			defer close(ended)
			for n := 0; looking.Err() == nil; n++ {
				// An error is one of a pod that has gone, or of the end.
				_, _ = e.Kubectl(looking, "annotate", "pods", "-n", e.Namespace, "-l", "app=webhook", "--overwrite", fmt.Sprintf("look=%d", n))
				time.Sleep(2 * time.Second)
			}
		}()
		defer func() { stop(); <-ended }()
		(&setup{Env: e, t: t}).rotate()
	})
	// settled waits until two pods are ready, and those before them have gone.
	settled := func() (names []string) {
		t.Helper()
		if said, err := e.Kubectl(ctx, "rollout", "status", "deployment/webhook", "-n", e.Namespace, "--timeout=3m"); err != nil {
			t.Fatal(said, err)
		}
		e.Eventually(2*time.Minute, func(ctx context.Context) error {
			pods, err := e.Client.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=webhook"})
			if err != nil {
				return err
			}
			names = nil
			for _, pod := range pods.Items {
				names = append(names, pod.Name)
			}
			if len(names) != 2 {
				return fmt.Errorf("the pods are %v", names)
			}
			return nil
		})
		return names
	}
	under("a rollout", func() {
		if said, err := e.Kubectl(ctx, "rollout", "restart", "deployment/webhook", "-n", e.Namespace); err != nil {
			t.Fatal(said, err)
		}
		settled()
	})
	under("an eviction", func() {
		names := settled()
		evict := func(pod string) error {
			return e.Client.CoreV1().Pods(e.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}})
		}
		fatal.If(t, evict(names[0]))
		if err := evict(names[1]); !apierrors.IsTooManyRequests(err) {
			t.Errorf("the second eviction: %v, want 429 of the disruption budget", err)
		}
		settled()
	})
}
