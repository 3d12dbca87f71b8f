package crdgo

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most tests wait for the server, not for a core
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }

var generatedCRDs = []string{
	"config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml",
	"config/crd/controller.nicoleh.io_icecreams.yaml",
}

var policiesResource = schema.GroupVersionResource{Group: "policy.k8s-go.openshift.org", Version: "v1alpha1", Resource: "healthcheckpolicies"}

// TestPrograms runs the programs side by side, each in a namespace of its own.
// The definitions are installed once: their group cannot be another one, because
// the clients are generated for it.
func TestPrograms(t *testing.T) {
	t.Parallel() // with its subtests, and after the tests that are not
	e := testenv.New(t)
	crdtest.Share(t, e, generatedCRDs...)
	for name, test := range map[string]func(*testing.T, *testenv.Env, dynamic.ResourceInterface){
		"list":                       list,
		"crud":                       crud,
		"apply":                      apply,
		"informer":                   informer,
		"informer ends on interrupt": informerEndsOnInterrupt,
		"dynamic":                    dynamicClient,
		"review":                     review,
		"fake":                       fake,
		"programs run twice":         programsRunTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			test(t, e, e.Dynamic.Resource(policiesResource).Namespace(e.Namespace))
		})
	}
}

// run runs one of the step's programs in the test's namespace and compares its output.
func run(t *testing.T, e *testenv.Env, program, want string) {
	t.Helper()
	r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/" + program), Args: []string{"-namespace", e.Namespace}})
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", program, r.ExitCode, r.Stdout, r.Stderr)
	}
	if diff := cmp.Diff(want, r.Stdout); diff != "" {
		t.Errorf("output of %s (-want +got):\n%s", program, diff)
	}
}

func policy(name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion(policiesResource.GroupVersion().String())
	o.SetKind("HealthCheckPolicy")
	o.SetName(name)
	return o
}

func create(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface, o *unstructured.Unstructured) {
	t.Helper()
	if _, err := policies.Create(e.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// field returns a field of an object, or nil.
func field(o *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return v
}

// A stored state is what an object looked like in the server after one write.
type stored struct {
	Event      string
	Generation int64
	Spec       any
	Failed     any
}

// history returns every state in which an object of the name has been stored
// since a resourceVersion. It ends with the deletion.
func history(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface, name, since string) []stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), 20*time.Second)
	defer cancel()
	w, err := policies.Watch(ctx, metav1.ListOptions{ResourceVersion: since, FieldSelector: "metadata.name=" + name})
	fatal.If(t, err)
	defer w.Stop()
	var states []stored
	for event := range w.ResultChan() {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("watch: %v", event)
		}
		states = append(states, stored{string(event.Type), o.GetGeneration(), o.Object["spec"], field(o, "status", "statistics", "pods", "failed")})
		if event.Type == "DELETED" {
			return states
		}
	}
	t.Fatalf("%s was not deleted; its states: %v", name, states)
	return nil
}

// now returns the resourceVersion of the collection.
func now(t testing.TB, e *testenv.Env, policies dynamic.ResourceInterface) string {
	t.Helper()
	list, err := policies.List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	return list.GetResourceVersion()
}

func spec(action, podLabel string, probes ...any) map[string]any {
	return map[string]any{"action": action, "podLabel": podLabel, "requiredProbes": probes,
		"selector": map[string]any{}, "eviction": map[string]any{"minIntervalSeconds": int64(10)}}
}

func list(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	create(t, e, policies, policy("a", map[string]any{"podLabel": "unchecked"}))
	create(t, e, policies, policy("b", map[string]any{"action": "kill", "requiredProbes": []any{"startup"},
		"selector": map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "In", "values": []any{"shop", "blog"}}}}}))
	// Stored, though it can select nothing; it does not keep the others from being listed.
	create(t, e, policies, policy("bad", map[string]any{"action": "kill", "selector": map[string]any{"matchLabels": map[string]any{"two words": "x"}}}))
	create(t, e, policies, policy("last", map[string]any{"action": "kill"}))
	r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/list"), Args: []string{"-namespace", e.Namespace}})
	lines := strings.Split(strings.ReplaceAll(r.Stdout, e.Namespace, "NS"), "\n")
	want := []string{
		"NS/a: label with unchecked pods without [liveness readiness]",
		"NS/b: kill pods without [startup] among those with app in (blog,shop)",
		"NS/bad: kill pods without [liveness readiness] (InvalidSelector: ",
		"NS/last: kill pods without [liveness readiness]",
		"policies: 4", "",
	}
	if len(lines) == len(want) && strings.HasPrefix(lines[2], want[2]) {
		lines[2] = want[2] // and what apimachinery says about it
	}
	if diff := cmp.Diff(want, lines); r.ExitCode != 0 || diff != "" {
		t.Errorf("exit code %d, output (-want +got):\n%s%s", r.ExitCode, diff, r.Stderr)
	}
}

func TestListWithoutDefinition(t *testing.T) {
	e := testenv.New(t)
	crdtest.Remove(t, e, crdtest.Read(t, generatedCRDs[0]).Name) // of an interrupted run
	r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/list"), Args: []string{"-namespace", e.Namespace}})
	if r.ExitCode != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "list: listing policies: the server could not find the requested resource") {
		t.Errorf("exit code %d, want 1 and a message\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func crud(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	before := now(t, e, policies)
	run(t, e, "crud", `created: action label, probes [liveness readiness], generation 1
refused: spec.podLabel: Required value: podLabel is needed unless action is kill
updated: probes [readiness], generation 2, counted false
status updated: failed 5, action label, generation 2
status updated: failed 4, action label, generation 2
with action label: 1
with action kill: 0
deleted
`)
	want := []stored{
		{"ADDED", 1, spec("label", "health-check-missing", "liveness", "readiness"), nil},
		{"MODIFIED", 2, spec("label", "health-check-missing", "readiness"), nil},
		{"MODIFIED", 2, spec("label", "health-check-missing", "readiness"), int64(5)},
		{"MODIFIED", 2, spec("label", "health-check-missing", "readiness"), int64(4)},
		{"DELETED", 2, spec("label", "health-check-missing", "readiness"), int64(4)},
	}
	if diff := cmp.Diff(want, history(t, e, policies, "crud", before)); diff != "" {
		t.Errorf("what the server has stored (-want +got):\n%s", diff)
	}
	if _, err := policies.Get(e.Context(), "invalid", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the invalid policy: %v, want NotFound", err)
	}
}

func apply(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	const output = `anna applies: [readiness]
bert applies: annotate, [readiness]
409 for bert: .spec.requiredProbes: conflict with "anna"
bert owns: annotate, podLabel false
bert gives up: label
condition Compliant: by checker
condition Audited: by auditor
checker reports the same: written false
`
	run(t, e, "apply", output)
	o, err := policies.Get(e.Context(), "apply", metav1.GetOptions{})
	fatal.If(t, err)
	if diff := cmp.Diff(spec("label", "health-check-missing", "readiness"), o.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	// A second later nothing is different, so nothing is written, not even a time.
	conditions := field(o, "status", "conditions")
	for second := time.Now().Unix(); time.Now().Unix() == second; {
		time.Sleep(50 * time.Millisecond)
	}
	run(t, e, "apply", output)
	if o, err = policies.Get(e.Context(), "apply", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(conditions, field(o, "status", "conditions")); diff != "" {
		t.Errorf("conditions after a second run (-want +got):\n%s", diff)
	}
	// Only fields that were set are sent: nobody owns an action or a selector,
	// and all that bert still says is that there is a spec.
	owners := map[string]string{}
	for _, m := range o.GetManagedFields() {
		owners[m.Manager+m.Subresource] = m.FieldsV1.GetRawString()
	}
	want := map[string]string{
		"anna":          `{"f:spec":{"f:podLabel":{},"f:requiredProbes":{}}}`,
		"bert":          `{"f:spec":{}}`,
		"checkerstatus": `{"f:status":{"f:conditions":{"k:{\"type\":\"Compliant\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`,
		"auditorstatus": `{"f:status":{"f:conditions":{"k:{\"type\":\"Audited\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`,
	}
	if diff := cmp.Diff(want, owners); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// Why requiredProbes is atomic and not a set: after an apply, nobody owns the
// items of a default. A set keeps them beside those that its author applies later,
// and no apply can remove them.
func TestASetWithADefaultCannotBeTakenOver(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	atomic, set := crdtest.Read(t, generatedCRDs[0]), crdtest.Read(t, generatedCRDs[0])
	crdtest.Rename(atomic, "atomic.crd-go.k8s-go.openshift.org")
	crdtest.Rename(set, "set.crd-go.k8s-go.openshift.org")
	spec := set.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	probes := spec.Properties["requiredProbes"]
	*probes.XListType = "set"
	spec.Properties["requiredProbes"] = probes
	crdtest.Install(t, e, atomic, set)
	for crd, want := range map[*apiextensionsv1.CustomResourceDefinition][]any{
		atomic: {"startup"},
		set:    {"liveness", "readiness", "startup"},
	} {
		gvr := policiesResource
		gvr.Group = crd.Spec.Group
		policies := e.Dynamic.Resource(gvr).Namespace(e.Namespace)
		o := policy("x", map[string]any{"action": "kill"})
		o.SetAPIVersion(gvr.GroupVersion().String())
		anna := metav1.ApplyOptions{FieldManager: "anna", Force: true}
		stored, err := policies.Apply(e.Context(), "x", o, anna)
		fatal.If(t, err)
		if diff := cmp.Diff([]any{"liveness", "readiness"}, field(stored, "spec", "requiredProbes")); diff != "" {
			t.Fatalf("%s: the default (-want +got):\n%s", crd.Spec.Group, diff)
		}
		o.Object["spec"] = map[string]any{"action": "kill", "requiredProbes": []any{"startup"}}
		for range 2 { // applying again does not help
			stored, err := policies.Apply(e.Context(), "x", o, anna)
			fatal.If(t, err)
			if diff := cmp.Diff(want, field(stored, "spec", "requiredProbes")); diff != "" {
				t.Errorf("%s: probes after startup alone was applied (-want +got):\n%s", crd.Spec.Group, diff)
			}
		}
	}
}

func informer(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	create(t, e, policies, policy("before", map[string]any{"action": "kill"}))
	p := e.Start(testenv.Command{Path: e.Program("./05-crd-go/informer"), Args: []string{"-namespace", e.Namespace, "-changes", "4"}})
	e.Eventually(30*time.Second, func(context.Context) error {
		if !strings.Contains(p.Stdout(), "watching\n") {
			return fmt.Errorf("it does not watch yet: %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	create(t, e, policies, policy("live", map[string]any{"podLabel": "unchecked"}))
	for _, patch := range []struct{ body, subresource string }{
		{`{"spec":{"action":"annotate"}}`, ""},
		{`{"status":{"statistics":{"pods":{"failed":3,"passed":4}}}}`, "status"},
	} {
		var path []string
		if patch.subresource != "" {
			path = append(path, patch.subresource)
		}
		if _, err := policies.Patch(e.Context(), "live", types.MergePatchType, []byte(patch.body), metav1.PatchOptions{}, path...); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, policies.Delete(e.Context(), "live", metav1.DeleteOptions{}))
	if r := p.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d", r.ExitCode)
	}
	want := "in the cache: before\nwatching\nadded live: label\nspec of live, generation 2: annotate [liveness readiness]\nstatus or metadata of live: failed 3\ndeleted live\n"
	if diff := cmp.Diff(want, p.Stdout()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func informerEndsOnInterrupt(t *testing.T, e *testenv.Env, _ dynamic.ResourceInterface) {
	p := e.Start(testenv.Command{Path: e.Program("./05-crd-go/informer"), Args: []string{"-namespace", e.Namespace}})
	e.Eventually(30*time.Second, func(context.Context) error {
		if !strings.Contains(p.Stdout(), "watching\n") {
			return fmt.Errorf("it does not watch yet: %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	fatal.If(t, p.Signal(os.Interrupt))
	if r := p.Wait(); r.ExitCode != 0 || r.TimedOut {
		t.Errorf("exit code %d, want 0\n%s", r.ExitCode, r.Stderr)
	}
}

func dynamicClient(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	before := now(t, e, policies)
	run(t, e, "dynamic", `untyped, strict: BadRequest
untyped: spec.action is "label", found true, error <nil>
untyped: spec.actoin found false
untyped: generation as a string: error true
typed: Spec.Action is "label"
converted: Spec.RequiredProbes is [liveness readiness]
a newer field, converted strictly: strict decoding error: unknown field "spec.gracePeriod"
a newer field, there and back: found false
`)
	want := []stored{
		{"ADDED", 1, spec("label", "health-check-missing", "liveness", "readiness"), nil},
		{"DELETED", 1, spec("label", "health-check-missing", "liveness", "readiness"), nil},
	}
	if diff := cmp.Diff(want, history(t, e, policies, "dynamic", before)); diff != "" {
		t.Errorf("what the server has stored (-want +got):\n%s", diff)
	}
}

func review(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	create(t, e, policies, policy("reviewed", map[string]any{"action": "kill"}))
	for _, step := range []struct{ reviewer, want string }{{"anna", "anna"}, {"bert", "anna,bert"}, {"anna", "anna,bert"}} {
		r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/review"), Args: []string{"-namespace", e.Namespace, "-reviewer", step.reviewer, "reviewed"}})
		if want := "reviewed: reviewed by " + step.want + "\n"; r.ExitCode != 0 || r.Stdout != want {
			t.Errorf("exit code %d, output %q, want %q\n%s", r.ExitCode, r.Stdout, want, r.Stderr)
		}
		o, err := policies.Get(e.Context(), "reviewed", metav1.GetOptions{})
		fatal.If(t, err)
		if got := o.GetAnnotations()["policy.k8s-go.openshift.org/reviewers"]; got != step.want {
			t.Errorf("the annotation is %q, want %q", got, step.want)
		}
	}
	for _, args := range [][]string{{"-resource", "policies", "reviewed"}, {}, {"no-such-policy"}} {
		r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/review"), Args: append([]string{"-namespace", e.Namespace}, args...)})
		if r.ExitCode != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "review: ") {
			t.Errorf("review %v: exit code %d\n%s%s", args, r.ExitCode, r.Stdout, r.Stderr)
		}
	}
}

func fake(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	before := now(t, e, policies)
	run(t, e, "fake", `                           FAKE           SERVER
default action             ""             "label"
has a uid                  false          true
action delete              accepted       Invalid
create again               AlreadyExists  AlreadyExists
generation after update    0              2
Update writes the status   true           false
update from an old copy    accepted       Conflict
list with action annotate  2              0
applied against another    Conflict       Conflict
conditions of two          2              2
`)
	// The right column is the server's, not one that the fake has answered.
	want := []stored{
		{"ADDED", 1, spec("label", "health-check-missing", "liveness", "readiness"), nil},
		{"MODIFIED", 2, spec("kill", "health-check-missing", "liveness", "readiness"), nil},
		{"DELETED", 2, spec("kill", "health-check-missing", "liveness", "readiness"), nil},
	}
	if diff := cmp.Diff(want, history(t, e, policies, "fake", before)); diff != "" {
		t.Errorf("what the server has stored (-want +got):\n%s", diff)
	}
}

// A program that runs twice must not stumble over what the first run left.
func programsRunTwice(t *testing.T, e *testenv.Env, policies dynamic.ResourceInterface) {
	for _, program := range []string{"crud", "apply", "dynamic", "fake"} {
		for range 2 {
			if r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/" + program), Args: []string{"-namespace", e.Namespace}}); r.ExitCode != 0 {
				t.Errorf("%s: exit code %d\n%s", program, r.ExitCode, r.Stderr)
			}
		}
	}
	list, err := policies.List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	var names []string
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	if !slices.Equal(names, []string{"apply"}) {
		t.Errorf("left over: %v, want only apply", names)
	}
}

// Ctrl-C during the first attempt of a loop is an error, and no object.
func TestInterruptedAttempt(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := e.InterruptAt(faultproxy.Match{Verb: "get", Resource: "configmaps"}, testenv.Command{Path: e.Program("./05-crd-go/review"), Args: []string{"-resource", "configmaps.v1.", "any"}})
	if r.ExitCode != 1 || !strings.HasPrefix(r.Stderr, "review: reviewing any: ") {
		t.Errorf("exit code %d, want 1 and the reason\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func TestProgramsReportErrors(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	for _, program := range []string{"list", "crud", "apply", "informer", "dynamic", "review", "fake"} {
		t.Run(program, func(t *testing.T) {
			e := e.For(t)
			r := e.Run(testenv.Command{Path: e.Program("./05-crd-go/" + program), Args: []string{"-kubeconfig", "/no/such/file"}})
			if r.ExitCode != 1 || !strings.HasPrefix(r.Stderr, program+": no usable kubeconfig") {
				t.Errorf("exit code %d\n%s", r.ExitCode, r.Stderr)
			}
		})
	}
}
