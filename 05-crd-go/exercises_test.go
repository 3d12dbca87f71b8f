package crdgo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/04-crd-yaml/exercises"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"types": checkTypes, "status": checkStatus, "co-own": checkCoOwn, "keep-unknown": checkKeepUnknown,
		"tag": checkTag, "marker": checkMarker, "pointer": checkPointer, "register": checkRegister,
	})
}

var generator struct {
	once   sync.Once
	binary string
	err    error
}

// controllerGen builds the generator, which is no part of the root's module.
func controllerGen(c *check.C) string {
	c.T.Helper()
	generator.once.Do(func() {
		ws, err := workspace.Find()
		c.Must(err)
		generator.binary = ws.Path("codegen", "controller-gen")
		generator.err = proc.Go(c.Context(), proc.Cmd{Dir: filepath.Join(ws.Root, "scripts", "codegen"), Env: workspace.Environ(),
			Args: []string{"build", "-ldflags=-s", "-o", generator.binary, "sigs.k8s.io/controller-tools/cmd/controller-gen"}})
	})
	c.Must(generator.err)
	return generator.binary
}

// zero prints what a client sends that sets nothing.
const zero = `package main

import (
	"encoding/json"
	"errors"
	"os"

	types "github.com/k8s-go/workshop/work/05-crd-go/types"
)

func main() {
	for _, document := range []string{"{}", "{\"spec\":{\"require\":{\"limits\":true}}}"} {
		var policy types.ResourcesPolicy
		if err := errors.Join(json.Unmarshal([]byte(document), &policy), json.NewEncoder(os.Stdout).Encode(policy)); err != nil {
			panic(err)
		}
	}
}
`

// typesLine finds the line in a message of controller-gen.
var typesLine = regexp.MustCompile(`types\.go:(\d+):`)

// generate runs a generator of controller-gen on types.go, and returns what it has
// written, or what it has said when it failed.
func generate(c *check.C, name string) (written, failed string) {
	c.T.Helper()
	p, err := proc.Start(c.Context(), proc.Cmd{Path: controllerGen(c), Args: []string{name, "paths=.", "output:stdout"}, Dir: filepath.Dir(c.Path("types.go")), Env: workspace.Environ()})
	c.Must(err)
	err = p.Wait()
	if err == nil {
		return p.Stdout(), ""
	}
	said, _, _ := strings.Cut(p.Stderr(), "\nError: not all generators ran") // and what it has made of the rest is no help
	if found := typesLine.FindStringSubmatch(said); found != nil {
		line, err := strconv.Atoi(found[1])
		c.Must(err)
		c.At("types.go", line)
	}
	return "", cmp.Or(said, err.Error())
}

// definition reads what controller-gen has made of the types.
func definition(c *check.C, written string) *apiextensionsv1.CustomResourceDefinition {
	c.T.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(written), crd); err != nil {
		c.Fail("one definition", err.Error())
	}
	return crd
}

// A rule with the reason FieldValueRequired adds its message.
var requiredBySchema = regexp.MustCompile(`: Required value([^:]|$)`)

// checkTypes generates a definition from the types and asks of it what step 04 asks
// of one in YAML. Then it looks at what a Go client sends.
func checkTypes(c *check.C) {
	program := c.ProgramOf("zero", zero) // compiles the types, which controller-gen would say less well
	written, failed := generate(c, "crd")
	if failed != "" {
		c.Fail("controller-gen makes a CRD of the types", failed)
	}
	crd := definition(c, written)

	misses, of := exercises.ResourcesPolicy.Misses(c, crd)
	for _, m := range misses {
		held := fmt.Sprintf("%s\n%d of %d requirements are met", m.Problem, of-len(misses), of)
		switch {
		case m.Requirement == exercises.Taken && strings.Contains(m.Problem, "undefined field"):
			c.Mistake("rule on the wrong type", m.Requirement, held)
		case strings.Contains(m.Problem, `unknown field "spec.`):
			c.Mistake("json tag differs", m.Requirement, held)
		case strings.Contains(m.Problem, "was refused") && requiredBySchema.MatchString(m.Problem):
			c.Mistake("no optional", m.Requirement, held)
		case m.Requirement == "what is left out has its default" && crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["action"].Default == nil:
			c.Mistake("no default", m.Requirement, held)
		}
		c.Fail(m.Requirement, held)
	}

	var unset, limits struct {
		Spec map[string]any `json:"spec"`
	}
	r := c.Run(testenv.Command{Path: program})
	documents := json.NewDecoder(strings.NewReader(r.Stdout))
	c.Must(errors.Join(documents.Decode(&unset), documents.Decode(&limits)))
	if require, ok := unset.Spec["require"].(map[string]any); ok && len(require) == 0 {
		delete(unset.Spec, "require")
	}
	if len(unset.Spec) > 0 {
		c.Mistake("no omitempty", "a ResourcesPolicy in which nothing is set is sent without action, labels, limits and the others", strings.TrimSpace(r.Stdout))
	}
	if !equality.Semantic.DeepEqual(limits.Spec["require"], map[string]any{"limits": true}) {
		c.Mistake("no omitempty", "a ResourcesPolicy that asks for limits alone is sent with require: {limits: true}", "require: "+text(limits.Spec["require"]))
	}
}

// generated returns a client for the policies, with the generated definition or with
// the one that the learner has installed.
func generated(c *check.C) dynamic.ResourceInterface {
	c.T.Helper()
	want := crdtest.Read(c.T, generatedCRDs[0])
	crdtest.Share(c.T, c.Env, generatedCRDs[0])
	have, err := crdtest.Client(c.T, c.Env).ApiextensionsV1().CustomResourceDefinitions().Get(c.Context(), want.Name, metav1.GetOptions{})
	c.Must(err)
	if have.Spec.Versions[0].Name != "v1alpha1" || !equality.Semantic.DeepEqual(have.Spec.Versions[0].Schema, want.Spec.Versions[0].Schema) {
		c.T.Fatalf("the cluster has another definition %s, perhaps that of step 04: delete it with the lesson's Clean up, or install config/crd", want.Name)
	}
	return c.Dynamic.Resource(policiesResource).Namespace(c.Namespace)
}

// states returns the states in which an object of the name has been stored since a
// resourceVersion. The last one is that of its deletion, if it was deleted.
func states(c *check.C, policies dynamic.ResourceInterface, name, since string) (found []*unstructured.Unstructured) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	// One more object, to know when all that was stored has arrived.
	w, err := policies.Watch(ctx, metav1.ListOptions{ResourceVersion: since})
	c.Must(err)
	defer w.Stop()
	end, err := policies.Create(ctx, policy("end", map[string]any{"action": "kill"}), metav1.CreateOptions{})
	c.Must(err)
	c.Must(policies.Delete(ctx, "end", metav1.DeleteOptions{}))
	for event := range w.ResultChan() {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			c.Must(fmt.Errorf("watching the policies: %v", event.Object))
		}
		if o.GetUID() == end.GetUID() {
			return found
		}
		if o.GetName() == name {
			found = append(found, o)
		}
	}
	c.Must(fmt.Errorf("the watch ended early: %w", ctx.Err()))
	return nil
}

// once has a program report once, into a policy that is there, and say what report returns.
const once = `package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	v1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	clientset "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

func init() {
	if os.Getenv("REPORT_ONCE") == "" {
		return
	}
	if err := reportOnce(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func reportOnce() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	policies := client.PolicyV1alpha1().HealthCheckPolicies(os.Getenv("WORKSHOP_NAMESPACE"))
	policy, err := report(context.Background(), policies, "once", v1alpha1.PodStatistics{Failed: 1, Passed: 2})
	if err != nil {
		return err
	}
	if policy == nil {
		fmt.Println("no policy")
	} else {
		fmt.Println("resourceVersion", policy.ResourceVersion)
	}
	return nil
}
`

// checkStatus lets somebody else write the policy between the program's first
// reading and writing of the status, and asks how the policy was when it was deleted.
func checkStatus(c *check.C) {
	program := c.Program(testenv.AddFile("once.go", once))
	policies := generated(c)
	since := now(c.T, c.Env, policies)
	p := c.Proxy()
	patch := func(ctx context.Context, body string, subresources ...string) error {
		_, err := policies.Patch(ctx, "crud", types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		return err
	}
	ours := faultproxy.Match{Resource: "healthcheckpolicies/status", Name: "crud", If: faultproxy.Request.Write}
	p.MustInject(faultproxy.Rule{Match: ours, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		return errors.Join(patch(ctx, `{"spec": {"requiredProbes": ["startup"]}}`),
			patch(ctx, `{"status": {"lastEvictionTime": "2020-01-01T00:00:00Z", "conditions": [{"type": "Audited", "status": "True", "reason": "Shown", "message": "by somebody else", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}}`, "status"))
	}})
	// Compliant has been False for long when the second report begins, and the first one is as old.
	old := false
	p.MustInject(faultproxy.Rule{Match: ours, Fault: faultproxy.CallAnswered, Times: -1, Call: func(ctx context.Context, _ faultproxy.Request) error {
		o, err := policies.Get(ctx, "crud", metav1.GetOptions{})
		if err != nil || old {
			return err
		}
		conditions, _ := field(o, "status", "conditions").([]any)
		for _, item := range conditions {
			if condition, ok := item.(map[string]any); ok && condition["type"] == "Compliant" {
				condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"
				if status := o.Object["status"].(map[string]any); status["lastChecked"] != nil {
					status["lastChecked"] = "2020-01-01T00:00:00Z"
				}
				old = true
			}
		}
		if !old {
			return nil
		}
		_, err = policies.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	}})

	before := time.Now().Truncate(time.Second)
	r := c.Run(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace}})
	written := states(c, policies, "crud", since)
	conflict := strings.Contains(r.Stderr, "the object has been modified")
	updates := p.Count(faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies", Name: "crud"})
	if len(written) == 0 {
		c.Fail("a policy called crud", "none was created\n"+r.Stderr)
	}
	last := written[len(written)-1]
	status, _ := last.Object["status"].(map[string]any)
	held := fmt.Sprintf("generation %d, status %s", last.GetGeneration(), text(status))
	const failed = "statistics.pods.failed 4 and passed 43 after two reports"
	switch {
	case p.Count(ours) == 0 && updates > 1:
		c.Mistake("update used", failed, held)
	case check.Conflicts("update", p.Requests(faultproxy.Match{Resource: "healthcheckpolicies*", Name: "crud"})) > 1:
		c.Mistake("get outside of the closure", "a Get after each write that was refused with 409", "writes in a row were refused, without a Get between them")
	case r.ExitCode != 0 && conflict:
		c.Mistake("gave up at a conflict", "another try after the 409", "exit code 1: "+r.Stderr)
	case r.ExitCode != 0 && strings.Contains(r.Stderr, "Duplicate value"):
		c.Mistake("condition appended", "a second report in the condition Compliant that is there", "exit code 1: "+r.Stderr)
	case r.ExitCode != 0:
		c.Failf("exit code 0", "exit code %d: %s", r.ExitCode, r.Stderr)
	case field(last, "status", "statistics", "pods", "failed") != int64(4) || field(last, "status", "statistics", "pods", "passed") != int64(43):
		c.Fail(failed, held)
	}
	conditions := map[string]map[string]any{}
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		if condition, ok := item.(map[string]any); ok {
			conditions[fmt.Sprint(condition["type"])] = condition
		}
	}
	lastChecked, _ := status["lastChecked"].(string)
	checked, _ := time.Parse(time.RFC3339, lastChecked) // or long ago
	switch compliant := conditions["Compliant"]; {
	case conditions["Audited"] == nil:
		c.Mistake("conditions overwritten", "the condition Audited, which somebody else has written", held)
	case status["lastEvictionTime"] == nil:
		c.Mistake("status replaced", "lastEvictionTime, which somebody else has written", held)
	case compliant["status"] != "False" || compliant["reason"] != "ProbesMissing" || compliant["message"] == "":
		c.Fail("the condition Compliant is False, because of ProbesMissing, with a message", held)
	case old && compliant["lastTransitionTime"] != "2020-01-01T00:00:00Z":
		c.Mistake("transition time moves", "the condition Compliant, which has been False since 2020-01-01", held)
	case status["observedGeneration"] != last.GetGeneration():
		c.Mistake("observed generation missing", fmt.Sprintf("observedGeneration %d", last.GetGeneration()), held)
	case lastChecked == "2020-01-01T00:00:00Z":
		c.Mistake("time of the first report", "lastChecked is the time of the last report", held)
	case checked.Before(before):
		c.Fail("lastChecked is the time of the last report", held)
	case text(field(last, "spec", "requiredProbes")) != `["startup"]`:
		c.Fail("requiredProbes [startup], which somebody else has written", fmt.Sprintf("spec %s", text(last.Object["spec"])))
	}

	_, err := policies.Create(c.Context(), policy("once", map[string]any{"action": "kill"}), metav1.CreateOptions{})
	c.Must(err)
	r = c.Run(testenv.Command{Path: program, Env: []string{"REPORT_ONCE=yes", "KUBECONFIG=" + c.Proxy().Kubeconfig}})
	stored, err := policies.Get(c.Context(), "once", metav1.GetOptions{})
	c.Must(err)
	if strings.Contains(r.Stderr, `"crud" not found`) {
		c.Mistake("name not used", "a report into the policy once", r.Stderr)
	}
	if want := "resourceVersion " + stored.GetResourceVersion(); r.ExitCode != 0 || proc.LastLines(r.Stdout, 1) != want {
		c.Failf("report returns the policy as it is stored then, with "+want, "exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	time.Sleep(1100 * time.Millisecond) // a metav1.Time has whole seconds
	r = c.Run(testenv.Command{Path: program, Env: []string{"REPORT_ONCE=yes", "KUBECONFIG=" + c.Proxy().Kubeconfig}})
	again, err := policies.Get(c.Context(), "once", metav1.GetOptions{})
	c.Must(err)
	if r.ExitCode != 0 {
		c.Failf("exit code 0 of a second report of the same", "exit code %d: %s", r.ExitCode, r.Stderr)
	}
	if again.GetResourceVersion() != stored.GetResourceVersion() {
		c.Mistake("new time alone", "a second report of the same writes nothing", "status "+text(again.Object["status"]))
	}
	if want := "resourceVersion " + stored.GetResourceVersion(); proc.LastLines(r.Stdout, 1) != want {
		c.Failf("report returns the policy as it is stored also where it writes nothing, with "+want, "%s%s", r.Stdout, r.Stderr)
	}
	_, err = policies.Patch(c.Context(), "once", types.MergePatchType, []byte(`{"spec": {"requiredProbes": ["startup"]}}`), metav1.PatchOptions{})
	c.Must(err)
	r = c.Run(testenv.Command{Path: program, Env: []string{"REPORT_ONCE=yes", "KUBECONFIG=" + c.Proxy().Kubeconfig}})
	again, err = policies.Get(c.Context(), "once", metav1.GetOptions{})
	c.Must(err)
	if observed := field(again, "status", "observedGeneration"); r.ExitCode != 0 || observed != again.GetGeneration() {
		held := fmt.Sprintf("generation %d, observedGeneration %v, exit code %d\n%s", again.GetGeneration(), observed, r.ExitCode, r.Stderr)
		c.Mistake("only the counts compared", "observedGeneration is the generation, after the spec has changed and the counts have not", held)
	}
	c.Must(policies.Delete(c.Context(), "once", metav1.DeleteOptions{}))

	p = c.Proxy()
	p.MustInject(faultproxy.Rule{Match: ours, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	r = c.Run(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace}, Timeout: check.Patience(20 * time.Second)})
	const gaveUp = "an error after 403 Forbidden"
	switch {
	case r.TimedOut:
		c.Mistake("tries for ever", gaveUp, fmt.Sprintf("%d requests, and no end", p.Count(ours)))
	case r.ExitCode != 1 || !strings.Contains(r.Stderr, "crud: updating the status: "): // which run says of an error of report
		c.Failf(gaveUp+", which report returns", "exit code %d\n%s", r.ExitCode, r.Stderr)
	case p.Count(ours) > 1:
		c.Failf(gaveUp+", which report returns at once, because it is no conflict", "%d writes of the status", p.Count(ours))
	}

	first := faultproxy.Match{Resource: "healthcheckpolicies*", If: func(r faultproxy.Request) bool {
		return r.Verb == "get" || r.Verb == "list" || strings.HasSuffix(r.Resource, "/status")
	}}
	if r := c.InterruptAt(first, testenv.Command{Path: program}); r.ExitCode != 1 || !strings.Contains(r.Stderr, "crud: updating the status: ") { // which run says of an error of report
		c.Mistake("success that was none", "an error of report, whose first attempt SIGINT has ended", fmt.Sprintf("exit code %d\n%s", r.ExitCode, r.Stderr))
	}

	if err := policies.Delete(c.Context(), "crud", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) { // run has not come that far
		c.Must(err)
	}
	r = c.Run(testenv.Command{Path: program, Env: []string{"REPORT_ONCE=yes", "KUBECONFIG=" + c.Proxy().Kubeconfig}, Timeout: check.Patience(20 * time.Second)})
	const missing = "report returns an error if there is no such policy"
	switch {
	case r.TimedOut:
		c.Fail(missing, "it has not returned")
	case r.ExitCode != 1:
		c.Failf(missing, "exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}

// checkCoOwn asks who owns what after anna's and after bert's apply, and then lets
// somebody else own the action.
func checkCoOwn(c *check.C) {
	program := c.Program()
	policies := generated(c)
	since := now(c.T, c.Env, policies)
	p := c.Proxy()
	command := testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace}}
	r := c.Run(command)
	written := states(c, policies, "apply", since)
	if p.Count(faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies"})+p.Count(faultproxy.Match{Verb: "create", Resource: "healthcheckpolicies"}) > 0 {
		c.Mistake("get and update", "requests of the verb patch only", "an object was created or updated as a whole")
	}
	if len(written) == 1 && strings.Contains(r.Stderr, "podLabel cannot change") {
		c.Mistake("one manager for both", "podLabel and requiredProbes stay when bert applies the action", "the server has refused to remove them: "+r.Stderr)
	}
	if len(written) < 2 {
		c.Failf("two writes, by anna and by bert", "%d\n%s", len(written), r.Stderr)
	}
	const annas, berts = `{"f:spec":{"f:podLabel":{},"f:requiredProbes":{}}}`, `{"f:spec":{"f:action":{}}}`
	if got := owners(written[0]); got != "anna: "+annas {
		c.Fail("after anna's apply, anna: "+annas, got)
	}
	want, got := "anna: "+annas+"\nbert: "+berts, owners(written[1])
	if _, bert, ok := strings.Cut(got, "bert: "); ok && (strings.Contains(bert, "f:podLabel") || strings.Contains(bert, "f:requiredProbes")) {
		c.Mistake("whole object applied", want, got)
	}
	if got != want {
		c.Fail(want, got)
	}
	if r.ExitCode != 0 {
		c.Failf("exit code 0", "exit code %d: %s", r.ExitCode, r.Stderr)
	}

	c.Must(policies.Delete(c.Context(), "apply", metav1.DeleteOptions{}))
	_, err := policies.Apply(c.Context(), "apply", policy("apply", map[string]any{"action": "kill"}), metav1.ApplyOptions{FieldManager: "carol"})
	c.Must(err)
	r = c.Run(command)
	o, err := policies.Get(c.Context(), "apply", metav1.GetOptions{})
	c.Must(err)
	if action := field(o, "spec", "action"); action != "kill" {
		c.Mistake("forced", "the action kill, which carol has applied", fmt.Sprintf("the action %v", action))
	}
	if !strings.Contains(r.Stderr, "applying as bert: ") { // which run says of an error of bert
		c.Mistake("conflict swallowed", "bert returns the conflict with carol", fmt.Sprintf("bert has not returned it, and the program has gone on; its exit code is %d", r.ExitCode))
	}
	if r.ExitCode == 0 || !strings.Contains(r.Stderr, "carol") {
		c.Failf(`bert returns the conflict with carol`, "exit code %d\n%s", r.ExitCode, r.Stderr)
	}
}

// owners says which fields belong to whom, in the order of the names.
func owners(o *unstructured.Unstructured) string {
	var list []string
	for _, m := range o.GetManagedFields() {
		operation := ""
		if m.Operation != metav1.ManagedFieldsOperationApply {
			operation = " (" + string(m.Operation) + ")"
		}
		list = append(list, m.Manager+operation+": "+m.FieldsV1.GetRawString())
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// reviewOnce has a program review one object, and say what review returns.
const reviewOnce = `package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func init() {
	if os.Getenv("REVIEW_ONCE") == "" {
		return
	}
	if err := reviewOnce(os.Getenv("REVIEW_ONCE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func reviewOnce(resource string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	gvr, _ := schema.ParseResourceArg(resource)
	o, err := review(context.Background(), client.Resource(*gvr).Namespace(os.Getenv("WORKSHOP_NAMESPACE")), "once", "anna")
	if err != nil {
		return err
	}
	if o == nil {
		fmt.Println("no object")
	} else {
		fmt.Println("resourceVersion", o.GetResourceVersion())
	}
	return nil
}
`

// checkKeepUnknown lets the program change an object that has a field which only a
// newer definition knows, while somebody else changes it.
func checkKeepUnknown(c *check.C) {
	program := c.Program(testenv.AddFile("review_once.go", reviewOnce))
	crd := crdtest.Read(c.T, generatedCRDs[0])
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["gracePeriod"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	crdtest.Install(c.T, c.Env, crd)
	gvr := policiesResource
	gvr.Group = crd.Spec.Group
	policies := c.Dynamic.Resource(gvr).Namespace(c.Namespace)
	const reviewers = "policy.k8s-go.openshift.org/reviewers"
	for name, annotations := range map[string]map[string]string{"x": {"note": "keep me", reviewers: "joanna"}, "bare": nil, "noted": {"note": "keep me"}, "once": nil} {
		o := policy(name, map[string]any{"action": "kill", "gracePeriod": "5m"})
		o.SetAPIVersion(gvr.GroupVersion().String())
		o.SetAnnotations(annotations)
		_, err := policies.Create(c.Context(), o, metav1.CreateOptions{})
		c.Must(err)
	}

	p := c.Proxy()
	writes := faultproxy.Match{Resource: "healthcheckpolicies", Name: "x", If: faultproxy.Request.Write}
	p.MustInject(faultproxy.Rule{Match: writes, Fault: faultproxy.Call,
		Call: func(ctx context.Context, _ faultproxy.Request) error {
			_, err := policies.Patch(ctx, "x", types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+reviewers+`": "joanna,bert"}}}`), metav1.PatchOptions{})
			return err
		}})
	resource := gvr.Resource + "." + gvr.Version + "." + gvr.Group
	review := func(name string) (testenv.Result, *unstructured.Unstructured) {
		r := c.Run(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace,
			"-resource", resource, "-reviewer", "anna", name}})
		o, err := policies.Get(c.Context(), name, metav1.GetOptions{})
		c.Must(err)
		return r, o
	}
	r, o := review("x")
	held := fmt.Sprintf("annotations %s, spec %s", text(o.GetAnnotations()), text(o.Object["spec"]))
	const all = "joanna,bert,anna"
	const want = "reviewers " + all
	switch got := o.GetAnnotations()[reviewers]; {
	case check.Conflicts("update", p.Requests(faultproxy.Match{Resource: "healthcheckpolicies", Name: "x"})) > 1:
		c.Mistake("get outside of the closure", "a Get after each write that was refused with 409", "writes in a row were refused, without a Get between them")
	case r.ExitCode != 0 && strings.Contains(r.Stderr, "the object has been modified"):
		c.Mistake("gave up at a conflict", want+", after bert was faster", held+"\n"+r.Stderr)
	case r.ExitCode != 0:
		c.Failf("exit code 0", "exit code %d: %s", r.ExitCode, r.Stderr)
	case field(o, "spec", "gracePeriod") != "5m":
		c.Mistake("typed round trip", "spec.gracePeriod 5m, as before", held)
	case o.GetAnnotations()["note"] != "keep me":
		c.Mistake("other annotations dropped", "the annotation note, as before", held)
	case got == "joanna,anna" || got == "anna":
		c.Mistake("lost update", want+", because bert was faster", held)
	case p.Count(writes) == 0 && c.Matches("part of a name"):
		c.Mistake("part of a name", want, held)
	case got != all:
		c.Fail(want, held)
	}
	before := p.Count(writes)
	r, again := review("x")
	switch got := again.GetAnnotations()[reviewers]; {
	case got == all+",anna":
		c.Mistake("named twice", want+" after a second run", "reviewers "+got)
	case r.ExitCode != 0 || got != all:
		c.Failf(want+" after a second run", "reviewers %s, exit code %d\n%s", got, r.ExitCode, r.Stderr)
	}
	if written := p.Requests(writes)[before:]; len(written) > 0 {
		c.Mistake("written without need", "no write when the name is there", "the request "+written[0].String())
	}
	for _, name := range []string{"bare", "noted"} {
		const want = "reviewers anna, where nobody has been named before"
		switch r, o := review(name); {
		case o.GetAnnotations()[reviewers] == ",anna":
			c.Mistake("empty name", want, "reviewers ,anna")
		case r.ExitCode != 0 || o.GetAnnotations()[reviewers] != "anna":
			c.Failf(want, "annotations %s, exit code %d\n%s", text(o.GetAnnotations()), r.ExitCode, r.Stderr)
		}
	}
	interrupted := c.InterruptAt(faultproxy.Match{Resource: "healthcheckpolicies"}, testenv.Command{Path: program, Args: []string{"-resource", resource, "x"}})
	if interrupted.ExitCode != 1 || !strings.Contains(interrupted.Stderr, "review: reviewing x: ") { // which run says of an error of review
		c.Mistake("success that was none", "an error of review, whose first attempt SIGINT has ended", fmt.Sprintf("exit code %d\n%s%s", interrupted.ExitCode, interrupted.Stdout, interrupted.Stderr))
	}
	for _, when := range []string{"", ", also where nothing is written"} {
		r := c.Run(testenv.Command{Path: program, Env: []string{"REVIEW_ONCE=" + resource, "KUBECONFIG=" + p.Kubeconfig}})
		stored, err := policies.Get(c.Context(), "once", metav1.GetOptions{})
		c.Must(err)
		if want := "resourceVersion " + stored.GetResourceVersion(); r.ExitCode != 0 || proc.LastLines(r.Stdout, 1) != want {
			c.Failf("review returns the object as it is stored then, with "+want+when, "exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
		}
	}
}
