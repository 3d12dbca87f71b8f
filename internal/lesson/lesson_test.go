package lesson_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// step is a step with this README. No real one has its number.
func step(t *testing.T, number int, text string) workspace.Step {
	t.Helper()
	s := workspace.Step{Number: number, Name: fmt.Sprintf("%d-test", number), Dir: t.TempDir()}
	fatal.If(t, os.WriteFile(filepath.Join(s.Dir, "README.md"), []byte(text), 0o644))
	return s
}

func run(t *testing.T, e *testenv.Env, s workspace.Step) error {
	t.Helper()
	_, err := lesson.Run(e.Context(), e.Workspace(), e.Cluster(), s, nil, false)
	return err
}

// clusterRole creates a ClusterRole with labels, which is removed when the test ends.
func clusterRole(t *testing.T, e *testenv.Env, name string, labels map[string]string) string {
	t.Helper()
	roles := e.Client.RbacV1().ClusterRoles()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lesson-test-" + name, Labels: labels}}
	if _, err := roles.Create(e.Context(), role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	e.AtEnd(func(ctx context.Context) error { return roles.Delete(ctx, role.Name, metav1.DeleteOptions{}) })
	return role.Name
}

// left lists what the test has made and what is still there, of every kind.
func left(t *testing.T, e *testenv.Env) []string {
	t.Helper()
	var names []string
	add := func(o metav1.Object) {
		if strings.HasPrefix(o.GetName(), "lesson-test-") {
			names = append(names, o.GetName())
		}
	}
	roles, err1 := e.Client.RbacV1().ClusterRoles().List(e.Context(), metav1.ListOptions{})
	policies, err2 := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(e.Context(), metav1.ListOptions{})
	priorities, err3 := e.Client.SchedulingV1().PriorityClasses().List(e.Context(), metav1.ListOptions{})
	namespaces, err4 := e.Client.CoreV1().Namespaces().List(e.Context(), metav1.ListOptions{})
	fatal.If(t, errors.Join(err1, err2, err3, err4))
	for i := range roles.Items {
		add(&roles.Items[i])
	}
	for i := range policies.Items {
		add(&policies.Items[i])
	}
	for i := range priorities.Items {
		add(&priorities.Items[i])
	}
	for i := range namespaces.Items {
		add(&namespaces.Items[i])
	}
	slices.Sort(names)
	return names
}

const nothing = "\n```console\n$ true\n```\n"

// In a cluster of somebody else's, a namespace that is there is not ours to delete.
func TestForeignNamespaceStays(t *testing.T) {
	e := testenv.New(t)
	theirs := e.Existing()
	s := step(t, 94, "# Nothing"+nothing)
	namespaces := e.Client.CoreV1().Namespaces()
	const name = "workshop-94"
	run := func() error {
		_, err := lesson.Prefix("").Run(e.Context(), e.Workspace(), theirs, s, nil, false)
		return err
	}
	fatal.If(t, run())
	_, err := namespaces.Create(e.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"test.k8s-go.dev/held"}}}, metav1.CreateOptions{})
	fatal.If(t, err)
	letGo := func(ctx context.Context) error {
		_, err := namespaces.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	e.AtEnd(letGo, func(ctx context.Context) error { return namespaces.Delete(ctx, name, metav1.DeleteOptions{}) })
	if err := run(); err == nil || !strings.Contains(err.Error(), "kubectl delete namespace "+name) {
		t.Errorf("while there is one: %v", err)
	}
	if ns, err := namespaces.Get(e.Context(), name, metav1.GetOptions{}); err != nil || ns.DeletionTimestamp != nil {
		t.Errorf("the namespace: %+v, %v", ns, err)
	}
	// One that is going is what a lesson leaves: the next one waits for its end.
	fatal.If(t, namespaces.Delete(e.Context(), name, metav1.DeleteOptions{}))
	later := time.AfterFunc(2*time.Second, func() {
		if err := letGo(e.Context()); err != nil {
			t.Error(err)
		}
	})
	defer later.Stop()
	if err := run(); err != nil {
		t.Errorf("while one goes: %v", err)
	}
}

// A lesson deletes cluster-wide what it declares as its own, and nothing else.
func TestDeletesOnlyWhatIsOurs(t *testing.T) {
	e := testenv.New(t)
	ours := map[string]string{lesson.StepLabel: "97"}
	clusterRole(t, e, "ours", ours)
	clusterRole(t, e, "of-an-earlier-step", map[string]string{lesson.StepLabel: "98"})
	want := []string{
		clusterRole(t, e, "of-another-step", map[string]string{lesson.StepLabel: "96"}),
		clusterRole(t, e, "of-nobody", nil),
		clusterRole(t, e, "of-somebody", map[string]string{"step": "97", lesson.StepLabel: "", "app": "97"}),
	}
	// Kinds that no list of ours names: they are found by discovery.
	_, err1 := e.Client.SchedulingV1().PriorityClasses().Create(e.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "lesson-test-ours", Labels: ours}, Value: 1}, metav1.CreateOptions{})
	_, err2 := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(e.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "lesson-test-ours", Labels: ours},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{Validations: []admissionv1.Validation{{Expression: "true"}},
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}}}}}}}},
		metav1.CreateOptions{})
	_, err3 := e.Client.CoreV1().Namespaces().Create(e.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lesson-test-ours", Labels: ours}}, metav1.CreateOptions{})
	t.Cleanup(func() { // where the lesson has not
		ctx := context.WithoutCancel(e.Context())
		err1 := e.Client.SchedulingV1().PriorityClasses().Delete(ctx, "lesson-test-ours", metav1.DeleteOptions{})
		err2 := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, "lesson-test-ours", metav1.DeleteOptions{})
		err3 := e.Client.CoreV1().Namespaces().Delete(ctx, "lesson-test-ours", metav1.DeleteOptions{})
		for _, err := range []error{err1, err2, err3} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	fatal.If(t, errors.Join(err1, err2, err3))
	if n := len(left(t, e)); n != 8 {
		t.Fatalf("%d objects to begin with, want 8: %v", n, left(t, e))
	}

	fatal.If(t, run(t, e, step(t, 97, "# No declaration\n"+nothing)))
	if n := len(left(t, e)); n != 8 {
		t.Errorf("a lesson without a declaration has deleted something; left: %v", left(t, e))
	}
	fatal.If(t, run(t, e, step(t, 97, "# A declaration\n\n<!-- cluster-scoped objects: 97, 98 -->\n"+nothing)))
	if got := left(t, e); !slices.Equal(got, want) {
		t.Errorf("left: %v, want %v", got, want)
	}
}

// breaksOff checks that a lesson has ended where its output is not what it says, and
// has taken back all that it made.
func breaksOff(t *testing.T, err error) {
	t.Helper()
	var mismatch *readme.Mismatch
	if !errors.As(err, &mismatch) || mismatch.Command.Text != "echo something" {
		t.Errorf("error %v, want the mismatch", err)
	} else if strings.Contains(err.Error(), "removing") {
		t.Errorf("the lesson has left something: %v", err)
	}
}

// What a lesson has made that does not reach its end is taken back.
func TestFailedLessonLeavesNothing(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	err := run(t, e, step(t, 95, "# Fails\n\n<!-- cluster-scoped objects: 95 -->\n\n```console\n"+
		"$ kubectl create namespace workshop-95\nnamespace/workshop-95 created\n"+
		"$ kubectl create clusterrole lesson-failed --verb=get --resource=pods >$TMPDIR/out && kubectl label clusterrole lesson-failed workshop.k8s-go.dev/step=95\n"+
		"clusterrole.rbac.authorization.k8s.io/lesson-failed labeled\n"+
		"$ echo something\nsomething else\n```\n"))
	breaksOff(t, err)
	_, roleErr := e.Client.RbacV1().ClusterRoles().Get(e.Context(), "lesson-failed", metav1.GetOptions{})
	_, namespaceErr := e.Client.CoreV1().Namespaces().Get(e.Context(), "workshop-95", metav1.GetOptions{})
	if !apierrors.IsNotFound(roleErr) || !apierrors.IsNotFound(namespaceErr) {
		t.Errorf("the lesson has left something: ClusterRole %v, namespace %v", roleErr, namespaceErr)
	}
}

// An interrupted lesson can leave an object with a finalizer whose controller has ended, too.
func TestFinalizerDoesNotKeepADefinition(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	breaksOff(t, run(t, e, step(t, 93, "# Fails\n\n<!-- cluster-scoped objects: 93 -->\n\n```console\n"+
		"$ kubectl create namespace workshop-93\nnamespace/workshop-93 created\n"+
		"$ kubectl apply -f - <<EOF\n"+`> apiVersion: apiextensions.k8s.io/v1
> kind: CustomResourceDefinition
> metadata: {name: kept.lesson.test, labels: {workshop.k8s-go.dev/step: "93"}}
> spec:
>   group: lesson.test
>   scope: Namespaced
>   names: {plural: kept, kind: Kept}
>   versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
> EOF
customresourcedefinition.apiextensions.k8s.io/kept.lesson.test created
`+"$ until kubectl api-resources --api-group=lesson.test | grep -q kept; do sleep 0.1; done\n"+
		"$ kubectl apply --namespace workshop-93 -f - <<EOF\n"+`> apiVersion: lesson.test/v1
> kind: Kept
> metadata: {name: one, finalizers: [lesson.test/nobody]}
> EOF
kept.lesson.test/one created
`+"$ echo something\nsomething else\n```\n")))
}

// The API server forgets some definitions that are deleted before anybody has asked for
// their objects; see cleanAgain.
func TestDefinitionsThatNobodyUsedAreRemoved(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	client, err := clientset.NewForConfig(e.Config)
	fatal.If(t, err)
	unused := step(t, 91, "# Unused\n\n<!-- cluster-scoped objects: 91 -->\n"+nothing)
	fatal.If(t, run(t, e, unused)) // what an interrupted test has left
	var errs []error
	for i := range 30 {
		group := fmt.Sprintf("unused%d.lesson.test", i)
		_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(e.Context(), &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "notes." + group, Labels: map[string]string{lesson.StepLabel: "91"}},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "notes", Kind: "Note"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}}},
			metav1.CreateOptions{})
		errs = append(errs, err)
	}
	fatal.If(t, errors.Join(append(errs, run(t, e, unused))...))
}

// Each person's definitions of the steps that share a cluster are found by the namespace in their label.
func TestDefinitionsOfASharedClusterAreRemoved(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	const others = "snacks.anna-workshop-92.k8s-go.openshift.org"
	err := run(t, e, step(t, 92, "# Fails\n\n```console\n"+
		"$ kubectl create namespace workshop-92\nnamespace/workshop-92 created\n"+
		"$ for n in workshop-92 anna-workshop-92; do sed s/workshop-02/$n/g 02-clientset/dynamic/definition.yaml | kubectl create -f -; done\n"+
		"customresourcedefinition.apiextensions.k8s.io/snacks.workshop-92.k8s-go.openshift.org created\n"+
		"customresourcedefinition.apiextensions.k8s.io/"+others+" created\n"+
		"$ until kubectl api-resources --api-group=workshop-92.k8s-go.openshift.org | grep -q snacks; do sleep 0.1; done\n"+
		"$ { WORKSHOP_NAMESPACE=workshop-92 bash -c \"$(sed 's/^for .* as long, .*/kill -KILL $$/' 01-curl/gone.sh)\" 01-curl/gone.sh; } 2>$TMPDIR/killed; echo $?\n137\n"+
		"$ kubectl get crd notes.workshop-92.k8s-go.openshift.org --output name\ncustomresourcedefinition.apiextensions.k8s.io/notes.workshop-92.k8s-go.openshift.org\n"+
		"$ echo something\nsomething else\n```\n"))
	breaksOff(t, err)
	client, err := clientset.NewForConfig(e.Config)
	fatal.If(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, plural := range []string{"snacks", "notes"} {
		if _, err := definitions.Get(e.Context(), plural+".workshop-92.k8s-go.openshift.org", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the lesson has left the definition of %s: %v", plural, err)
		}
	}
	if err := definitions.Delete(e.Context(), others, metav1.DeleteOptions{}); err != nil {
		t.Errorf("the definition of somebody else: %v", err)
	}
}

func TestOwns(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"# Nothing\n": nil,
		"# One\n\n<!-- cluster-scoped objects: 04 -->\n":               {"04"},
		"# Two\n\n<!-- cluster-scoped objects: 04, 05 -->\n":           {"04", "05"},
		"# In the text\n\nWrite <!-- cluster-scoped objects: 04 -->\n": nil,
	} {
		got, err := lesson.Owns(step(t, 94, text))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
}

// Two people do the lessons 01 to 03 on one cluster at the same time. Neither meets
// the other, nor somebody who has no prefix. In make test, they do one of the lessons,
// which the seed chooses: each is done once more without a prefix.
func TestTwoPeopleShareACluster(t *testing.T) {
	numbers := []int{1, 2, 3}
	if seed, err := strconv.Atoi(os.Getenv(exercise.SeedEnv)); err == nil {
		numbers = []int{seed%3 + 1}
		t.Logf("WORKSHOP_SEED=%d: lesson %d", seed, numbers[0])
	}
	for _, p := range []lesson.Prefix{"anna-", "bert-"} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			ws, c := e.Workspace(), e.Cluster()
			for _, number := range numbers {
				s, err := ws.Step(fmt.Sprint(number))
				fatal.If(t, err)
				if _, err := p.Run(e.Context(), ws, c, s, nil, false); err != nil {
					t.Fatal(err)
				}
				// What it has worked in was its own namespace, which it has deleted.
				ns, err := e.Client.CoreV1().Namespaces().Get(e.Context(), p.Namespace(s), metav1.GetOptions{})
				if err == nil && ns.DeletionTimestamp == nil || err != nil && !apierrors.IsNotFound(err) {
					t.Errorf("the lesson has not deleted %s (%v)", p.Namespace(s), err)
				}
			}
		})
	}
}

// Our definition is no other one, with or without the defaults that the API server
// has filled in, and whoever made it. One with another spec is.
func TestOtherDefinition(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	const text = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.definitions.k8s-go.openshift.org}
spec:
  group: definitions.k8s-go.openshift.org
  scope: Namespaced
  names: {plural: others, kind: Other}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`
	path := filepath.Join(t.TempDir(), "crd.yaml")
	write := func(text string) {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want := func(what string, want bool) {
		t.Helper()
		if other, err := lesson.Other(e.Context(), e.Config, path); err != nil || other != want {
			t.Errorf("%s: other is %v, want %v (%v)", what, other, want, err)
		}
	}
	write(text)
	want("no definition", false)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	fatal.If(t, yaml.UnmarshalStrict([]byte(text), crd))
	client, err := clientset.NewForConfig(e.Config)
	fatal.If(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(e.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		if err := errors.Join(definitions.Delete(ctx, crd.Name, metav1.DeleteOptions{}), crdwait.Gone(ctx, e.Config, crd.Name)); err != nil {
			t.Error(err)
		}
	})
	want("the same definition", false)
	write(strings.Replace(text, "{type: object}", "{type: object, description: changed}", 1))
	want("another schema", true)
	write(strings.Replace(text, "Namespaced", "Cluster", 1))
	want("another scope", true)
	left, err := definitions.Get(e.Context(), crd.Name, metav1.GetOptions{})
	if err != nil || left.Spec.Scope != apiextensionsv1.NamespaceScoped || left.Generation != 1 {
		t.Errorf("the comparison has changed the definition: %+v, %v", left.Spec, err)
	}
}
