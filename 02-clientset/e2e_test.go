package clientset

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/pager"

	"github.com/k8s-go/workshop/02-clientset/fake"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	autoscalers = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) {
	t.Parallel()
	testenv.README(t)
}

// run runs one of the step's programs in the test's namespace and fails the
// test unless it succeeds.
func run(t *testing.T, e *testenv.Env, program string, args ...string) testenv.Result {
	t.Helper()
	args = append([]string{"-namespace", e.Namespace}, args...)
	r := e.Run(testenv.Command{Path: e.Program("./02-clientset/" + program), Args: args})
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", program, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r
}

// wantOutput fails the test unless the program has printed these lines.
func wantOutput(t *testing.T, r testenv.Result, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n")); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// history remembers the present version of a resource in the test's namespace.
// The function it returns replays what has happened since, up to and including
// the first event that last accepts.
func history(t *testing.T, e *testenv.Env, resource schema.GroupVersionResource) func(last func(apiwatch.Event) bool) []apiwatch.Event {
	t.Helper()
	client := e.Dynamic.Resource(resource).Namespace(e.Namespace)
	list, err := client.List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	return func(last func(apiwatch.Event) bool) []apiwatch.Event {
		t.Helper()
		var events []apiwatch.Event
		// A busy server may end a watch before it has sent anything. Another one
		// from the same version is sent the same events.
		for range 3 {
			w, err := client.Watch(e.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: new(int64(20))})
			fatal.If(t, err)
			defer w.Stop()
			events = nil
			for event := range w.ResultChan() {
				events = append(events, event)
				if last(event) {
					return events
				}
			}
		}
		t.Fatalf("not the expected end of these events of %s: %v", resource.Resource, names(events))
		return nil
	}
}

func names(events []apiwatch.Event) []string {
	var lines []string
	for _, event := range events {
		switch o := event.Object.(type) {
		case *unstructured.Unstructured:
			lines = append(lines, fmt.Sprintf("%s %s", event.Type, o.GetName()))
		case *metav1.Status:
			lines = append(lines, fmt.Sprintf("%s %s", event.Type, o.Message))
		}
	}
	return lines
}

// deleted accepts the deletion of an object.
func deleted(name string) func(apiwatch.Event) bool {
	return func(event apiwatch.Event) bool {
		o, ok := event.Object.(*unstructured.Unstructured)
		return ok && event.Type == apiwatch.Deleted && o.GetName() == name
	}
}

func configMap(t *testing.T, e *testenv.Env, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), name, metav1.GetOptions{})
	fatal.If(t, err)
	e.ShowOnFailure(cm)
	return cm
}

// createPod makes a pod; one that is gated is never given to a node.
func createPod(t *testing.T, e *testenv.Env, name string, gated bool) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: cluster.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent}}},
	}
	if gated {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "k8s-go.openshift.org/never"}}
	}
	e.Eventually(time.Minute, func(ctx context.Context) error { // until the namespace has its service account
		_, err := e.Client.CoreV1().Pods(e.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	createPod(t, e, "web", false)
	createPod(t, e, "db", false)
	createPod(t, e, "gated", true)
	on := map[string]string{}
	for _, name := range []string{"web", "db"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: name}}
		e.WaitFor(30*time.Second, e.Conditions().PodConditionMatch(pod, corev1.PodScheduled, corev1.ConditionTrue), pod)
		on[name] = pod.Spec.NodeName
	}
	nodes, err := e.Client.CoreV1().Nodes().List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	var lines []string
	for _, node := range nodes.Items {
		lines = append(lines, fmt.Sprintf("node %s ready=true kubelet=%s", node.Name, node.Status.NodeInfo.KubeletVersion))
	}
	pod := func(name string) string { return fmt.Sprintf("pod %s/%s on %s", e.Namespace, name, on[name]) }
	wantOutput(t, run(t, e, "nodes"), append(slices.Clone(lines), pod("db"), pod("web"), fmt.Sprintf("nodes: %d, pods: 2", len(nodes.Items)))...)
	wantOutput(t, run(t, e, "nodes", "-selector", "app in (web,gated)"), append(slices.Clone(lines), pod("web"), fmt.Sprintf("nodes: %d, pods: 1", len(nodes.Items)))...)
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	k := writeKubeconfig(t, e)
	program := e.Program("./02-clientset/kubeconfig")
	user := "user: system:serviceaccount:" + e.Namespace + ":nobody"
	server := "server: " + e.Config.Host
	contexts := []string{"context: (in use) nobody", "context:          server-down"}
	noService := []string{"KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT="}
	home := t.TempDir()
	fatal.If(t, os.Mkdir(filepath.Join(home, ".kube"), 0o700))
	data, err := os.ReadFile(k.path)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(filepath.Join(home, ".kube", "config"), data, 0o600))
	// A file that only chooses another context: KUBECONFIG merges, the first one wins.
	chooser := filepath.Join(t.TempDir(), "chooser")
	fatal.If(t, os.WriteFile(chooser, []byte("apiVersion: v1\nkind: Config\ncurrent-context: nobody\n"), 0o600))
	for _, tc := range []struct {
		name   string
		args   []string
		env    []string
		source string
	}{
		{"flag", []string{"-kubeconfig", k.path, "-context", "nobody"}, []string{"KUBECONFIG=/nowhere"}, "source: -kubeconfig"},
		{"KUBECONFIG", []string{"-context", "nobody"}, []string{"KUBECONFIG=" + k.path}, "source: KUBECONFIG"},
		{"KUBECONFIG with two files", nil, []string{"KUBECONFIG=" + chooser + ":" + k.path}, "source: KUBECONFIG"},
		{"home", []string{"-context", "nobody"}, []string{"KUBECONFIG=", "HOME=" + home}, "source: home directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := e.For(t).Run(testenv.Command{Path: program, Args: tc.args, Env: append(noService, tc.env...)})
			if r.ExitCode != 0 {
				t.Fatalf("exit code %d\n%s", r.ExitCode, r.Stderr)
			}
			wantOutput(t, r, append(append([]string{tc.source}, contexts...), server, "credentials: token", user)...)
			if strings.Contains(r.Stdout+r.Stderr, k.token[:20]) {
				t.Error("the token is printed")
			}
		})
	}
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"not in a pod", noService, "not in a pod: unable to load in-cluster configuration"},
		// Here a pod would go on: with the token that it finds mounted.
		{"in a cluster without a token", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"}, "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := e.For(t).Run(testenv.Command{Path: program, Env: append(tc.env, "KUBECONFIG=", "HOME="+t.TempDir())})
			if r.ExitCode != 1 || r.Stdout != "source: in-cluster\n" || !strings.Contains(r.Stderr, tc.want) {
				t.Errorf("exit code %d, want 1 and %q in\n%s%s", r.ExitCode, tc.want, r.Stdout, r.Stderr)
			}
		})
	}
}

func TestHello(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	program := e.Program("./02-clientset/hello")
	e.Eventually(time.Minute, func(ctx context.Context) error { // which every namespace gets
		_, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	p := e.Proxy()
	r := e.Run(testenv.Command{Path: program, Args: []string{"-namespace", e.Namespace}, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	if r.ExitCode != 0 {
		t.Fatalf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	wantOutput(t, r, "listed kube-root-ca.crt", "ADDED hello")
	var verbs []string
	for _, request := range p.Requests(faultproxy.Match{Resource: "configmaps"}) {
		verbs = append(verbs, request.Verb)
	}
	if diff := cmp.Diff([]string{"list", "create", "watch", "delete"}, verbs); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), "hello", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading what it has deleted: %v", err)
	}
	r = e.Run(testenv.Command{Path: program, Env: []string{"KUBECONFIG=", "HOME=" + t.TempDir(), "KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT="}})
	if r.ExitCode != 1 || !strings.HasPrefix(r.Stderr, "hello: no usable kubeconfig: ") {
		t.Errorf("without a kubeconfig: exit code %d\n%s", r.ExitCode, r.Stderr)
	}
}

func TestCRUD(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	replay := history(t, e, deployments)
	wantOutput(t, run(t, e, "crud"),
		"created crud-a: generation 1, replicas 2, strategy RollingUpdate",
		"created crud-b: generation 1, replicas 2, strategy RollingUpdate",
		"updated crud-a: generation 2",
		"scaled crud-a: replicas 3",
		"listed crud-a: replicas 3",
		"listed crud-b: replicas 2",
		"deleted")
	// The objects are gone; the server still knows what became of them.
	var got []string
	for _, event := range replay(deleted("crud-a")) {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok || o.GetName() != "crud-a" {
			continue
		}
		replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		release, _, _ := unstructured.NestedString(o.Object, "spec", "template", "metadata", "labels", "release")
		line := fmt.Sprintf("%s generation=%d replicas=%d release=%s", event.Type, o.GetGeneration(), replicas, release)
		if event.Type == apiwatch.Modified && slices.Contains(got, line) || o.GetDeletionTimestamp() != nil && event.Type == apiwatch.Modified {
			continue // its controller has written the status
		}
		if event.Type == apiwatch.Modified && o.GetGeneration() == 1 {
			continue
		}
		got = append(got, line)
	}
	want := []string{
		"ADDED generation=1 replicas=2 release=",
		"MODIFIED generation=2 replicas=2 release=2",
		"MODIFIED generation=3 replicas=3 release=2",
		"DELETED generation=4 replicas=3 release=2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what happened to crud-a (-want +got):\n%s", diff)
	}
	if list, err := e.Client.AppsV1().Deployments(e.Namespace).List(e.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("it has ended, and %d Deployments are left, %v", len(list.Items), err)
	}
}

// TestCRUDBacksOff refuses two updates. The pause after the second has to be
// longer than the first: a controller that writes the object needs its time.
func TestCRUDBacksOff(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	updates := faultproxy.Match{Verb: "update", Resource: "deployments", Name: "crud-a"}
	refused := p.MustInject(faultproxy.Rule{Match: updates, Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 2})
	// The Deployment's controller conflicts too. How it ends is TestCRUD's business.
	e.Run(testenv.Command{Path: e.Program("./02-clientset/crud"), Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", e.Namespace}})
	if refused.Struck() != 2 {
		t.Fatalf("%d updates were refused, want 2", refused.Struck())
	}
	attempts := p.Requests(updates)
	ended := attempts[1].Started.Add(attempts[1].Took)
	requests := p.Requests(faultproxy.Match{Resource: "deployments", Name: "crud-a"})
	for _, r := range requests {
		if r.Started.Before(ended) {
			continue
		}
		if pause := r.Started.Sub(ended); pause < 45*time.Millisecond {
			t.Errorf("the second pause was %s, want that of retry.DefaultBackoff, 50 ms", pause)
		}
		return
	}
	t.Error("no request after the second conflict")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "errors")
	want := []string{
		`^404 NotFound: configmaps "missing" not found$`,
		`^409 AlreadyExists: configmaps "errors" already exists$`,
		`^409 Conflict: Operation cannot be fulfilled on configmaps "errors"`,
		`^422 Invalid: ConfigMap "Not_A_Name" is invalid: metadata.name`,
		`^400 BadRequest: `,
		`^403 Forbidden: configmaps is forbidden: User "system:serviceaccount:` + e.Namespace,
		`^401 Unauthorized: `,
		`^405 MethodNotAllowed: `,
		`^406 NotAcceptable: `,
		`^415 UnsupportedMediaType: `,
		`^413 RequestEntityTooLarge: `,
		`^429 TooManyRequests: `,
		`^503 ServiceUnavailable: `,
		`^504 Timeout: `,
		`^no status: refused=true, reason=""$`,
	}
	got := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), r.Stdout)
	}
	for i := range want {
		if !regexp.MustCompile(want[i]).MatchString(got[i]) {
			t.Errorf("line %d is %q, want %s", i+1, got[i], want[i])
		}
	}
	// What was refused has changed nothing.
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	fatal.If(t, err)
	if len(list.Items) != 1 {
		t.Errorf("%d ConfigMaps, want the one that could be created", len(list.Items))
	}
	if diff := cmp.Diff(map[string]string{"a": "1"}, configMap(t, e, "errors").Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	pod, err := e.Client.CoreV1().Pods(e.Namespace).Get(e.Context(), "errors", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the guarded pod was evicted (%v)", err)
	}
}

func TestConflict(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "conflict", "-writers", "8", "-rounds", "15")
	m := regexp.MustCompile(`^attempt 1: conflict=true\nattempt 2: conflict=false\n8 writers, 15 rounds: count 120 after (\d+) refusals\n$`).FindStringSubmatch(r.Stdout)
	if m == nil {
		t.Fatalf("want one conflict, then a count:\n%s", r.Stdout)
	}
	if m[1] == "0" {
		t.Error("the writers never met: this run has proved nothing")
	}
	for name, want := range map[string]map[string]string{
		"conflict": {"before": "kept", "ours": "kept", "theirs": "kept"},
		"counter":  {"count": "120"},
	} {
		if diff := cmp.Diff(want, configMap(t, e, name).Data); diff != "" {
			t.Errorf("data of %s (-want +got):\n%s", name, diff)
		}
	}
}

// Without the resourceVersion the same program must lose updates; if it did
// not, TestConflict would prove nothing.
func TestConflictNeedsResourceVersion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	broken := e.Program("./02-clientset/conflict", testenv.Replace("main.go", `cm.Data["count"] = strconv`, `cm.ResourceVersion = ""; cm.Data["count"] = strconv`))
	r := e.Run(testenv.Command{Path: broken, Args: []string{"-namespace", e.Namespace, "-writers", "8", "-rounds", "15"}})
	// Each writer may have been refused once: at its first create.
	if r.ExitCode != 0 || !regexp.MustCompile(`after [0-7] refusals`).MatchString(r.Stdout) {
		t.Errorf("exit code %d; nobody should notice anything\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	if got := configMap(t, e, "counter").Data["count"]; got == "120" {
		t.Error("no update was lost without resourceVersion")
	}
}

// With the Get before the loop, each attempt sends what was refused before.
func TestConflictNeedsTheGetInside(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	const get = `configMaps.Get(ctx, "conflict", metav1.GetOptions{})`
	const loop = "\t_ = retry.RetryOnConflict("
	broken := e.Program("./02-clientset/conflict",
		testenv.Replace("one.go", "cm, err = "+get, "cm, err = before.DeepCopy(), nil"),
		testenv.Replace("one.go", loop, "\tbefore, err := "+get+"\n\tif err != nil {\n\t\treturn err\n\t}\n"+loop))
	r := e.Run(testenv.Command{Path: broken, Args: []string{"-namespace", e.Namespace}})
	var want strings.Builder
	for attempt := range 5 { // those of retry.DefaultRetry
		fmt.Fprintf(&want, "attempt %d: conflict=true\n", attempt+1)
	}
	if r.ExitCode != 1 || r.Stdout != want.String() || !strings.Contains(r.Stderr, "the object has been modified") {
		t.Errorf("exit code %d, want 1 after five refused attempts\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	run(t, e, "patch")
	both, onlyA := map[string]string{"a": "1", "b": "1"}, map[string]string{"a": "1"}
	for _, tc := range []struct {
		name        string
		containers  map[string]string
		annotations map[string]string
	}{
		{"json", map[string]string{"web": "example/web:1", "log": "example/log:2"}, onlyA},
		{"merge", map[string]string{"web": "example/web:2"}, onlyA},
		{"strategic", map[string]string{"web": "example/web:2", "new": "example/new:1"}, onlyA},
		{"apply", map[string]string{"web": "example/web:2", "log": "example/log:1"}, both},
	} {
		d, err := e.Client.AppsV1().Deployments(e.Namespace).Get(e.Context(), "patch-"+tc.name, metav1.GetOptions{})
		fatal.If(t, err)
		if diff := cmp.Diff(tc.containers, images(d)); diff != "" {
			t.Errorf("%s: containers (-want +got):\n%s", tc.name, diff)
		}
		if diff := cmp.Diff(tc.annotations, d.Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", tc.name, diff)
		}
		applied := slices.ContainsFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == "patch" && f.Operation == metav1.ManagedFieldsOperationApply
		})
		if applied != (tc.name == "apply") {
			t.Errorf("%s: applied by the manager patch: %t", tc.name, applied)
		}
	}
}

func images(d *appsv1.Deployment) map[string]string {
	got := map[string]string{}
	for _, c := range d.Spec.Template.Spec.Containers {
		got[c.Name] = c.Image
	}
	return got
}

func TestApply(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	replay := history(t, e, configMaps)
	wantOutput(t, run(t, e, "apply"),
		"anna applies:            color=blue (anna), size=L (anna)",
		"bert agrees on a size:   color=blue (anna), size=L (anna, bert)",
		`409 for bert:            .data.color: conflict with "anna"`,
		"bert forces red:         color=red (bert), size=L (anna, bert)",
		"bert gives up the size:  color=red (bert), size=L (anna)",
		"bert gives up the color: size=L (anna)")

	// Who owned what, step by step, as the server has stored it.
	owners := func(o *unstructured.Unstructured, key string) string {
		var managers []string
		for _, f := range o.GetManagedFields() {
			if strings.Contains(f.FieldsV1.GetRawString(), `"f:`+key+`"`) {
				managers = append(managers, f.Manager)
			}
		}
		slices.Sort(managers)
		return strings.Join(managers, "+")
	}
	var got []string
	replay(func(event apiwatch.Event) bool {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok || o.GetName() != "apply" {
			return false
		}
		data, _, _ := unstructured.NestedStringMap(o.Object, "data")
		got = append(got, fmt.Sprintf("color=%s %s size=%s %s", data["color"], owners(o, "color"), data["size"], owners(o, "size")))
		return data["color"] == ""
	})
	want := []string{
		"color=blue anna size=L anna",
		"color=blue anna size=L anna+bert",
		"color=red bert size=L anna+bert",
		"color=red bert size=L anna",
		"color=  size=L anna",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("versions of the ConfigMap (-want +got):\n%s", diff)
	}
}

// TestApplyReadsOnce counts what the lesson says: writes need no read before
// them, and only what is taken out of an unknown intent has to be read.
func TestApplyReadsOnce(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	run(t, e, "apply", "-kubeconfig", p.Kubeconfig)
	var verbs []string
	requests := p.Requests(faultproxy.Match{Resource: "configmaps"})
	for _, r := range requests {
		verbs = append(verbs, r.Verb)
	}
	if diff := cmp.Diff([]string{"patch", "patch", "patch", "patch", "get", "patch", "patch"}, verbs); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestApplyConfigurationsLeaveOut compares what is sent for a Deployment of
// which only the name is set.
func TestApplyConfigurationsLeaveOut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		object any
		want   string
	}{
		{appsv1ac.Deployment("a", "b"), `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"a","namespace":"b"}}`},
		{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}},
			`{"metadata":{"name":"a","namespace":"b"},"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"strategy":{}},"status":{}}`},
	} {
		got, err := json.Marshal(tc.object)
		fatal.If(t, err)
		if string(got) != tc.want {
			t.Errorf("%T is sent as\n%s, want\n%s", tc.object, got, tc.want)
		}
	}
	// Not all are pointers: what can be nil by itself is as it is.
	fields := map[reflect.Kind]string{}
	for field := range reflect.TypeFor[corev1ac.ConfigMapApplyConfiguration]().Fields() {
		if !field.Anonymous {
			fields[field.Type.Kind()] += field.Name + " "
		}
	}
	want := map[reflect.Kind]string{reflect.Pointer: "Immutable ", reflect.Map: "Data BinaryData "}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields of a ConfigMap's apply configuration by kind (-want +got):\n%s", diff)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	wantOutput(t, run(t, e, "watch"),
		"listed early",
		"watch:",
		"  ADDED live",
		"  the connection ended",
		"watch again from now:",
		"  ADDED live",
		"  the connection ended",
		"watch again from the last version:",
		"  ADDED brief",
		"  DELETED brief",
		"  DELETED early",
		"  the connection ended")
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{LabelSelector: "lesson=watch"})
	fatal.If(t, err)
	if len(list.Items) != 1 || list.Items[0].Name != "live" {
		t.Errorf("%d ConfigMaps are left, want the one named live", len(list.Items))
	}
}

// TestWatchWaitsForTheCache: a watch without a version may begin with an object
// that was deleted before. The program has to know that the cache has noticed.
func TestWatchWaitsForTheCache(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	run(t, e, "watch", "-kubeconfig", p.Kubeconfig)
	gone := false
	requests := p.Requests(faultproxy.Match{Resource: "configmaps"})
	for _, r := range requests {
		if r.Verb == "get" && r.Name == "early" && r.Query == "resourceVersion=0" {
			gone = r.Code == http.StatusNotFound
		}
		if r.Verb == "watch" && !strings.Contains(r.Query, "resourceVersion=") {
			if !gone {
				t.Error("watched from now on before the watch cache had noticed the deletion")
			}
			return
		}
	}
	t.Error("no watch without a resourceVersion")
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	proxy := e.Proxy()
	proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, After: 1, Fault: faultproxy.Stall}) // so that it does not end before
	p := e.Start(testenv.Command{Path: e.Program("./02-clientset/watch"), Args: []string{"-namespace", e.Namespace, "-kubeconfig", proxy.Kubeconfig}})
	e.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Stdout(), "ADDED live") {
			return fmt.Errorf("the watch has not begun: %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	fatal.If(t, p.Signal(os.Interrupt))
	// A request is canceled, and what is read of a watch ends with the context's cause.
	if r := p.Wait(); r.ExitCode != 1 || !strings.Contains(r.Stderr, "canceled") && !strings.Contains(r.Stderr, "interrupt signal received") {
		t.Errorf("exit code %d, want 1 and the reason\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// Ctrl-C during the first attempt of a loop is no success.
func TestInterruptedAttempt(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	_, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	r := e.InterruptAt(faultproxy.Match{Verb: "get", Resource: "configmaps"}, testenv.Command{Path: e.Program("./02-clientset/dynamic"), Args: []string{"-annotate", "seen=yes", "configmaps.v1."}})
	if r.ExitCode != 1 || strings.Contains(r.Stdout, "annotated") || !strings.Contains(r.Stderr, "annotating") {
		t.Errorf("exit code %d, want 1, and nothing annotated\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// Discovery takes no context, and its own deadline is half a minute.
func TestInterruptedDiscovery(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	manifest := filepath.Join(t.TempDir(), "manifest.yaml")
	fatal.If(t, os.WriteFile(manifest, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: any}\n"), 0o600))
	r := e.InterruptAt(faultproxy.Match{}, testenv.Command{Path: e.Program("./02-clientset/kubectl-apply"), Args: []string{manifest}})
	if r.ExitCode != 1 || !strings.Contains(r.Stderr, "interrupt signal received") || r.Took > 20*time.Second {
		t.Errorf("exit code %d after %s, want 1 and the reason\n%s%s", r.ExitCode, r.Took, r.Stdout, r.Stderr)
	}
}

func TestDiscovery(t *testing.T) {
	e := testenv.New(t)
	count := func() string {
		groups, resources, err := e.Client.Discovery().ServerGroupsAndResources()
		fatal.If(t, err)
		n := 0
		for _, list := range resources {
			n += len(list.APIResources)
		}
		return fmt.Sprintf("%d groups, %d resources and subresources", len(groups), n)
	}
	version, err := e.Client.Discovery().ServerVersion()
	fatal.If(t, err)
	program := e.Program("./02-clientset/discovery")
	var r testenv.Result
	before := ""
	// Tests of other packages define resources at the same time, so only a run
	// between two equal answers counts. One may come and go between the two.
	e.Eventually(3*time.Minute, func(context.Context) error {
		before = count()
		r = e.Run(testenv.Command{Path: program, Args: []string{"deploy", "no", "events", "deployments.v1.apps"}})
		first, _, _ := strings.Cut(r.Stdout, "\n")
		if after := count(); before != after || !strings.HasSuffix(first, ": "+before) {
			return fmt.Errorf("the server had %s, then %s; the program says %q", before, after, first)
		}
		return nil
	})
	wantOutput(t, r,
		"server "+version.GitVersion+": "+before,
		"requests of the mapper so far: 0",
		"deploy -> resource deployments.v1.apps -> kind Deployment -> resource deployments.v1.apps, namespace",
		"no -> resource nodes.v1 -> kind Node -> resource nodes.v1, root",
		"events -> resource events.v1 -> kind Event -> resource events.v1, namespace",
		"deployments.v1.apps -> resource deployments.v1.apps -> kind Deployment -> resource deployments.v1.apps, namespace",
		"requests of the mapper for all of these: 2", // /api and /apis
		"Unicorn: no match=true, requests: 0",
		"Unicorn after Reset: no match=true, requests: 2")
	r = e.Run(testenv.Command{Path: program, Args: []string{"unicorns"}})
	if r.ExitCode != 1 || !strings.Contains(r.Stderr, `looking for "unicorns": no matches for`) {
		t.Errorf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
}

// TestDiscoveryWithDeadAPI registers an aggregated API that nobody serves. That
// is the whole cluster's business: no other test of this package runs beside it,
// and no package with definitions, whose kubectl would complain.
func TestDiscoveryWithDeadAPI(t *testing.T) {
	e := testenv.New(t)
	e.WhileNobodyDefines()
	gv := schema.GroupVersion{Group: "dead.clientset-test.k8s-go.openshift.org", Version: "v1"}
	services := e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	name := gv.Version + "." + gv.Group
	failed := func() (bool, error) {
		_, _, err := e.Client.Discovery().ServerGroupsAndResources()
		groups, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
		if err != nil && !partial {
			return false, err
		}
		return groups[gv] != nil, nil
	}
	remove := func() {
		err := services.Delete(context.WithoutCancel(e.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		e.Eventually(30*time.Second, func(context.Context) error {
			if dead, err := failed(); dead || err != nil {
				return fmt.Errorf("%s is still there: %t (%w)", gv, dead, err)
			}
			return nil
		})
	}
	remove() // of a run that was killed
	_, err := services.Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": gv.Group, "version": gv.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(10),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": e.Namespace, "name": "nobody", "port": int64(443)},
		},
	}}, metav1.CreateOptions{})
	fatal.If(t, err)
	t.Cleanup(remove)
	e.Eventually(30*time.Second, func(context.Context) error {
		if dead, err := failed(); !dead || err != nil {
			return fmt.Errorf("%s is not known yet (%w)", gv, err)
		}
		return nil
	})
	r := e.Run(testenv.Command{Path: e.Program("./02-clientset/discovery"), Args: []string{"deploy"}})
	for _, line := range []string{
		"unavailable: " + gv.String() + ": ",
		"deploy -> resource deployments.v1.apps -> kind Deployment -> resource deployments.v1.apps, namespace",
		"Unicorn after Reset: no match=true, ",
	} {
		if r.ExitCode != 0 || !strings.Contains(r.Stdout, "\n"+line) && !strings.HasPrefix(r.Stdout, line) {
			t.Errorf("exit code %d, want 0 and a line %q\n%s%s", r.ExitCode, line, r.Stdout, r.Stderr)
		}
	}
}

// TestDynamic defines a kind after the program was built.
func TestDynamic(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	program := e.Program("./02-clientset/dynamic")
	const group = "clientset-test.k8s-go.openshift.org"
	crds := e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "snacks." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "snacks", "kind": "Snack"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
	remove := func() {
		if err := crds.Delete(context.WithoutCancel(e.Context()), crd.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	remove() // of a run that was killed
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := crds.Create(ctx, crd, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(remove)
	snacks := e.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "snacks"}).Namespace(e.Namespace)
	spec := map[string]any{"flavour": "salt", "size": int64(3), "parts": []any{map[string]any{"name": "a"}}}
	e.Eventually(time.Minute, func(ctx context.Context) error { // until it is served
		_, err := snacks.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "Snack", "metadata": map[string]any{"name": "chips"}, "spec": spec,
		}}, metav1.CreateOptions{})
		return err
	})
	createPod(t, e, "gated", true)
	before, err := e.Client.CoreV1().Pods(e.Namespace).Get(e.Context(), "gated", metav1.GetOptions{})
	fatal.If(t, err)

	inNamespace := func(args ...string) testenv.Result {
		return e.Run(testenv.Command{Path: program, Args: append([]string{"-namespace", e.Namespace}, args...)})
	}
	wantOutput(t, inNamespace("-field", "spec.flavour", "-annotate", "seen=yes", "snacks.v1."+group),
		"Snack chips: spec.flavour = salt", "Snack chips: annotated")
	wantOutput(t, inNamespace("-field", "status.phase", "-annotate", "seen=yes", "pods.v1."),
		"Pod gated: status.phase = Pending", "Pod gated: annotated")
	wantOutput(t, inNamespace("-field", "spec.colour", "snacks.v1."+group), "Snack chips: spec.colour = (not set)")
	wantOutput(t, inNamespace("deployments.v1.apps"), "none")

	snack, err := snacks.Get(e.Context(), "chips", metav1.GetOptions{})
	fatal.If(t, err)
	if snack.GetAnnotations()["seen"] != "yes" {
		t.Errorf("annotations %v", snack.GetAnnotations())
	}
	if diff := cmp.Diff(spec, snack.Object["spec"]); diff != "" {
		t.Errorf("a field that no Go type knows was lost (-want +got):\n%s", diff)
	}
	pod, err := e.Client.CoreV1().Pods(e.Namespace).Get(e.Context(), "gated", metav1.GetOptions{})
	fatal.If(t, err)
	if pod.Annotations["seen"] != "yes" {
		t.Errorf("annotations %v", pod.Annotations)
	}
	if diff := cmp.Diff(before.Spec, pod.Spec); diff != "" {
		t.Errorf("the pod's spec has changed:\n%s", diff)
	}
	// What folder patch says of strategic merge: it needs a Go type on the server.
	_, err = snacks.Patch(e.Context(), "chips", types.StrategicMergePatchType, []byte(`{"spec":{"size":4}}`), metav1.PatchOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("a strategic merge patch of a custom resource: %v, want 415", err)
	}
	for _, tc := range []struct{ want, arg string }{
		{"want one argument", "pods"},
		{"could not find the requested resource", "unicorns.v1.example.com"},
	} {
		if r := inNamespace(tc.arg); r.ExitCode != 1 || !strings.Contains(r.Stderr, tc.want) {
			t.Errorf("dynamic %s: exit code %d, want %q in %s", tc.arg, r.ExitCode, tc.want, r.Stderr)
		}
	}
}

func TestREST(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	replay := history(t, e, configMaps)
	wantOutput(t, run(t, e, "rest"),
		"GET /api/v1/namespaces/"+e.Namespace+"/configmaps?labelSelector=lesson%3Drest&limit=10",
		"Accept: application/json, */*",
		"200, 1 object",
		"Accept of the clientset: application/vnd.kubernetes.protobuf,application/json",
		"the clientset's List gives the same: true",
		"GET /readyz",
		"ok")
	got := slices.DeleteFunc(names(replay(deleted("rest"))), func(s string) bool { return !strings.HasSuffix(s, " rest") })
	if diff := cmp.Diff([]string{"ADDED rest", "DELETED rest"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestScheme(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	replay := history(t, e, autoscalers)
	r := run(t, e, "scheme")
	sizes := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^application/(\S+): (\d+) bytes, the same afterwards: true$`).FindAllStringSubmatch(r.Stdout, -1) {
		n, err := strconv.Atoi(m[2])
		fatal.If(t, err)
		sizes[m[1]] = n
	}
	if len(sizes) != 3 || sizes["vnd.kubernetes.protobuf"] >= sizes["json"] {
		t.Errorf("sizes %v, want three, and protobuf smaller than JSON", sizes)
	}
	for _, line := range []string{
		"apps/v1, Kind=Deployment -> *v1.Deployment",
		"*v1.Deployment -> apps/v1, Kind=Deployment",
		"unknown kind: true",
		"defaulted here: replicas set=false",
		"defaulted by the server: replicas=1",
		`apiVersion and kind of the answer: "" ""`,
		"the original after a change to the copy: example/main:1",
		"converted here: false",
		"converted by the server: cpu Utilization=80%",
	} {
		if !strings.Contains(r.Stdout, line+"\n") {
			t.Errorf("no line %q in\n%s", line, r.Stdout)
		}
	}
	events := replay(deleted("scheme"))
	if o, ok := events[0].Object.(*unstructured.Unstructured); !ok || o.GetAPIVersion() != "autoscaling/v2" {
		t.Errorf("the server did not convert: %v", events[0].Object)
	} else if metrics, _, _ := unstructured.NestedSlice(o.Object, "spec", "metrics"); len(metrics) != 1 {
		t.Errorf("metrics %v, want the one of v1", metrics)
	}
	// The dry run has left nothing.
	if list, err := e.Client.AppsV1().Deployments(e.Namespace).List(e.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d Deployments after a dry run (%v)", len(list.Items), err)
	}
}

func TestRateLimit(t *testing.T) {
	e := testenv.New(t)
	var err error
	for range 3 { // what has no limit is measured, too, and the machine may stand still meanwhile
		if err = limits(t, e); err == nil {
			return
		}
	}
	t.Error(err)
}

// limits says which of the program's numbers are not those of its limits.
func limits(t *testing.T, e *testenv.Env) error {
	t.Helper()
	r := run(t, e, "rate-limit", "-requests", "20")
	m := regexp.MustCompile(`^default, one group: 20 requests in (\S+)
default, two groups: 20 requests in (\S+)
QPS 5 and burst 10 set, two groups: 20 requests in (\S+)
QPS -1, two groups: 20 requests in (\S+)
$`).FindStringSubmatch(r.Stdout)
	if m == nil {
		t.Fatalf("output:\n%s", r.Stdout)
	}
	var took [4]time.Duration
	for i := range took {
		var err error
		if took[i], err = time.ParseDuration(m[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	oneGroup, twoGroups, set, none := took[0], took[1], took[2], took[3]
	// One bucket has ten tokens at once, then five a second: no machine is faster than that.
	for name, limited := range map[string]time.Duration{"one group": oneGroup, "two groups with QPS set": set} {
		if limited < 1900*time.Millisecond {
			t.Errorf("%s: 20 requests took %s, and one bucket allows them in 2 s", name, limited)
		}
		if limited < 2*none {
			return fmt.Errorf("%s: 20 requests took %s, and %s without a limit", name, limited, none)
		}
	}
	// Two buckets have a token for each of the 20.
	if twoGroups > oneGroup*3/4 {
		return fmt.Errorf("20 requests took %s in two groups and %s in one: do they share a bucket?", twoGroups, oneGroup)
	}
	return nil
}

func TestPaging(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "paging", "-objects", "61", "-limit", "7")
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{LabelSelector: "lesson=paging"})
	fatal.If(t, err)
	if len(list.Items) != 61 {
		t.Errorf("%d ConfigMaps, want 61", len(list.Items))
	}
	var want []string
	for page := 1; page <= 8; page++ {
		want = append(want, fmt.Sprintf("page %d: 7 objects, as of the first page: true", page))
	}
	wantOutput(t, r, append(want, "page 9: 5 objects, as of the first page: true", "by hand: 61", "pager: 61")...)
}

// TestPagerMeets410 answers the second page as a server does that has forgotten
// the version of the first.
func TestPagerMeets410(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	run(t, e, "paging", "-objects", "5", "-limit", "2")
	p := e.Proxy()
	client, err := kubernetes.NewForConfig(p.Config())
	fatal.If(t, err)
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().ConfigMaps(e.Namespace).List(ctx, options)
	})
	pages.PageSize = 2
	expire := faultproxy.Rule{Match: faultproxy.Match{Verb: "list", Resource: "configmaps"}, Fault: faultproxy.Answer, Code: http.StatusGone, After: 1}

	options := metav1.ListOptions{LabelSelector: "lesson=paging"}
	p.MustInject(expire)
	seen := 0
	err = pages.EachListItem(e.Context(), options, func(runtime.Object) error { seen++; return nil })
	if !apierrors.IsResourceExpired(err) || seen != 2 {
		t.Errorf("EachListItem has seen %d objects and returned %v, want the two of the first page and the 410", seen, err)
	}
	p.Clear()
	p.MustInject(expire)
	list, _, err := pages.List(e.Context(), options)
	fatal.If(t, err)
	if n := meta.LenList(list); n != 5 {
		t.Errorf("List returned %d objects, want all 5", n)
	}
}

// TestRealServer asks what package fake asks the fake clientset.
func TestRealServer(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	got, err := fake.Ask(e.Context(), e.Client, e.Namespace)
	fatal.If(t, err)
	want := fake.Answers{
		CreateAgain: "AlreadyExists", GetMissing: "NotFound", ByLabel: 1,
		UpdateStale: "Conflict", LostUpdate: false, CreateBadName: "Invalid", ByField: 1, UID: true, Finalizer: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers of the server (-want +got):\n%s", diff)
	}
}

// TestKubectlApply applies a file with everything that such files have: two
// formats, a List, comments only, a kind that it defines itself.
func TestKubectlApply(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	const group = "kubectl-apply.clientset-test.k8s-go.openshift.org"
	definitions := e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	e.AtEnd(func(ctx context.Context) error {
		return definitions.Delete(ctx, "menus."+group, metav1.DeleteOptions{})
	})
	file := filepath.Join(t.TempDir(), "shop.yaml")
	write := func(text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(`# only a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: shop}, data: {open: "8", close: "20"}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: shop}, spec: {replicas: 0, selector: {matchLabels: {app: shop}},
    template: {metadata: {labels: {app: shop}}, spec: {containers: [{name: main, image: "workshop/pause:1"}]}}}}
---
{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "menus.` + group + `"},
 "spec": {"group": "` + group + `", "scope": "Namespaced", "names": {"plural": "menus", "kind": "Menu"},
  "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}
---
apiVersion: ` + group + `/v1
kind: Menu
metadata: {name: lunch}
courses: 9007199254740993
`)
	applied := []string{"configmaps/shop applied", "deployments.apps/shop applied",
		"customresourcedefinitions.apiextensions.k8s.io/menus." + group + " applied", "menus." + group + "/lunch applied"}
	wantOutput(t, run(t, e, "kubectl-apply", file), applied...)
	wantOutput(t, run(t, e, "kubectl-apply", file), applied...)
	if diff := cmp.Diff(map[string]string{"open": "8", "close": "20"}, configMap(t, e, "shop").Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	menus := e.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "menus"}).Namespace(e.Namespace)
	menu, err := menus.Get(e.Context(), "lunch", metav1.GetOptions{})
	fatal.If(t, err)
	// As a float64 it would have lost its last digit.
	if menu.Object["courses"] != int64(9007199254740993) {
		t.Errorf("courses %v", menu.Object["courses"])
	}

	// What is no longer applied is removed; what somebody else has added stays.
	data := []byte(`{"data":{"open":"9","theirs":"kept"}}`)
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Patch(e.Context(), "shop", types.MergePatchType, data, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	write(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop"}, "data": {"open": "8"}}
---
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "after"}}
`)
	args := []string{"-namespace", e.Namespace, file}
	r := e.Run(testenv.Command{Path: e.Program("./02-clientset/kubectl-apply"), Args: args})
	if r.ExitCode != 1 || !strings.Contains(r.Stderr, `ConfigMap shop: Apply failed with 1 conflict: conflict with "somebody"`) {
		t.Errorf("exit code %d, want 1 and the conflict\n%s", r.ExitCode, r.Stderr)
	}
	wantOutput(t, r, "configmaps/after applied") // one that is refused does not keep the others back
	run(t, e, "kubectl-apply", "-force-conflicts", file)
	if diff := cmp.Diff(map[string]string{"open": "8", "theirs": "kept"}, configMap(t, e, "shop").Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}

	for _, tc := range []struct{ text, want string }{
		{"# nothing\n", "nothing to apply"},
		{"{apiVersion: v1, kind: ConfigMap, metadata: {name: first}}\n---\n{metadata: {name: none}}\n", "document 2: "},
		{"{apiVersion: example.com/v1, kind: Unicorn, metadata: {name: none}}\n", `Unicorn none: no matches for kind "Unicorn"`},
	} {
		write(tc.text)
		r := e.Run(testenv.Command{Path: e.Program("./02-clientset/kubectl-apply"), Args: args})
		if r.ExitCode != 1 || !strings.Contains(r.Stderr, tc.want) || r.Stdout != "" {
			t.Errorf("exit code %d, want 1 and %q\n%s%s", r.ExitCode, tc.want, r.Stdout, r.Stderr)
		}
	}
}

func TestPodStreams(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	e.NeedsContainers()
	for range 2 {
		wantOutput(t, run(t, e, "pod-streams"),
			"log: serving :8080",
			`exec /pause echo hello: exit code 0, stdout "hello\n", stderr ""`,
			`exec /pause dance: exit code 2, stdout "", stderr "pause: unknown command \"dance\": want none, echo or serve ADDRESS\n"`,
			"port-forward: GET /menu: 200 OK, hello from pause",
			"log: GET /menu")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "pod-streams"}}
	e.WaitFor(30*time.Second, e.Conditions().ResourceDeleted(pod), pod)
}

// TestProgramsRunTwice: a reader starts a program again, after a change too.
func TestProgramsRunTwice(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"crud"}, {"errors"}, {"conflict", "-rounds", "2"}, {"patch"}, {"apply"}, {"watch"}, {"paging", "-objects", "5"},
		{"rest"}, {"scheme"}, {"dynamic", "-annotate", "seen=yes", "deployments.v1.apps"}, {"rate-limit", "-requests", "1"}, {"nodes"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t) // dynamic would annotate what crud is about to delete
			first := run(t, e, args[0], args[1:]...)
			second := run(t, e, args[0], args[1:]...)
			// What is counted or timed differs from run to run.
			same := func(r testenv.Result) string {
				return regexp.MustCompile(`in \S+s|after \d+ refusals|Operation cannot be.*`).ReplaceAllString(r.Stdout, "")
			}
			if diff := cmp.Diff(same(first), same(second)); diff != "" && args[0] != "nodes" && args[0] != "dynamic" {
				t.Errorf("the second run prints something else (-first +second):\n%s", diff)
			}
		})
	}
}

// TestRolloutEndsQuietly gives what waits for Ctrl-C the time that a loaded
// machine gives it: the end of a good run must not look like an interrupt.
func TestRolloutEndsQuietly(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 1, nil)
	slow := testenv.Replace("main.go", "\tstop()\n\tswitch {", "\tstop()\n\ttime.Sleep(300 * time.Millisecond)\n\tswitch {")
	careless := testenv.Replace("main.go", "\tkeepQuiet() //", "\t_ = keepQuiet //")
	for _, tc := range []struct{ program, want string }{
		{r.Program("./02-clientset/staged-rollout", slow), ""},
		// Without that line it does look so, or this test would prove nothing.
		{r.Program("./02-clientset/staged-rollout", slow, careless), "interrupted: stopping after the current write\n"},
	} {
		c := r.command("-image", rolloutNew, "-stages", "1", "-dry-run")
		c.Path = tc.program
		if result := r.Run(c); result.ExitCode != 0 || result.Stderr != tc.want {
			t.Errorf("exit code %d, want 0 and %q on standard error:\n%s", result.ExitCode, tc.want, result.Stderr)
		}
	}
}

// A kubeconfigFile has the context nobody, a ServiceAccount without rights on
// the test's cluster, and server-down, where nothing listens.
type kubeconfigFile struct{ path, token string }

func writeKubeconfig(t *testing.T, e *testenv.Env) kubeconfigFile {
	t.Helper()
	accounts := e.Client.CoreV1().ServiceAccounts(e.Namespace)
	if _, err := accounts.Create(e.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(e.Context(), "nobody", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	fatal.If(t, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server: e.Config.Host, TLSServerName: e.Config.ServerName, InsecureSkipTLSVerify: e.Config.Insecure,
		CertificateAuthority: e.Config.CAFile, CertificateAuthorityData: e.Config.CAData,
	}
	config.Clusters["down"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.AuthInfos["nobody"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["nobody"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "nobody"}
	config.Contexts["server-down"] = &clientcmdapi.Context{Cluster: "down", AuthInfo: "nobody"}
	config.CurrentContext = "server-down"
	k := kubeconfigFile{path: filepath.Join(t.TempDir(), "kubeconfig"), token: request.Status.Token}
	fatal.If(t, clientcmd.WriteToFile(*config, k.path))
	return k
}

// TestBadInput runs every program in every way that can go wrong for it.
func TestBadInput(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	k := writeKubeconfig(t, e)
	noHome := []string{"KUBECONFIG=", "HOME=" + t.TempDir(), "KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT="}
	manifest := filepath.Join(t.TempDir(), "manifest.yaml")
	fatal.If(t, os.WriteFile(manifest, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: any}\n"), 0o600))
	type badInput struct {
		name string
		args []string
		env  []string
		want string
	}
	noKubeconfig := badInput{"no kubeconfig", nil, noHome, `no usable kubeconfig \(-kubeconfig, KUBECONFIG or ~/.kube/config\)`}
	wrongFile := badInput{"no such kubeconfig", []string{"-kubeconfig", "/no/such/file"}, nil, `no usable kubeconfig.*/no/such/file: no such file or directory`}
	wrongContext := badInput{"wrong context", []string{"-kubeconfig", k.path, "-context", "elsewhere"}, nil, `context "elsewhere" does not exist`}
	serverDown := badInput{"server down", []string{"-kubeconfig", k.path, "-context", "server-down"}, nil, `127\.0\.0\.1:1\b.*connection refused`}
	noNamespace := badInput{"namespace missing", []string{"-namespace", "no-such-namespace"}, nil, `namespaces "no-such-namespace" not found`}
	forbidden := badInput{"forbidden", []string{"-kubeconfig", k.path, "-context", "nobody", "-namespace", e.Namespace}, nil,
		`is forbidden: User "system:serviceaccount:` + e.Namespace + `:nobody" cannot `}

	anywhere := []badInput{noKubeconfig, wrongFile, wrongContext, serverDown}
	everything := append(slices.Clone(anywhere), noNamespace, forbidden)
	for _, p := range []struct {
		name string
		args []string // after the flags
		bad  []badInput
	}{
		{"kubeconfig", nil, anywhere}, // everybody may ask who they are
		{"discovery", nil, anywhere},  // and what there is
		{"nodes", nil, everything},
		{"crud", nil, everything},
		{"errors", nil, everything},
		{"conflict", nil, append(slices.Clone(everything), badInput{"nobody writes", []string{"-writers", "0"}, nil, `-writers 0, -rounds 10: want at least 1 of each`})},
		{"patch", nil, everything},
		{"apply", nil, everything},
		{"watch", nil, everything},
		{"dynamic", []string{"pods.v1."}, everything},
		{"rest", nil, everything},
		{"scheme", nil, everything},
		{"rate-limit", nil, everything},
		{"paging", nil, everything},
		{"pod-streams", nil, everything},
		{"kubectl-apply", []string{manifest}, everything},
	} {
		program := e.Program("./02-clientset/" + p.name)
		for _, bad := range p.bad {
			t.Run(p.name+"/"+bad.name, func(t *testing.T) {
				// Nobody waits half a minute to hear that the server is down.
				r := e.For(t).Run(testenv.Command{Path: program, Args: append(slices.Clone(bad.args), p.args...), Env: bad.env, Timeout: 20 * time.Second})
				if r.ExitCode != 1 || !regexp.MustCompile(`^`+p.name+`: .*`+bad.want+`.*\n$`).MatchString(r.Stderr) {
					t.Errorf("exit code %d, want 1 and one line with %s:\n%s", r.ExitCode, bad.want, r.Stderr)
				}
			})
		}
	}
}
