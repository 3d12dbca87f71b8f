package anylanguage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"left": checkLeft, "budget": checkBudget, "queue": checkQueue})
}

// checkLeft shows the program an Icecream and Deployments as the API server would store them; the
// garbage collector would delete one of them at once.
func checkLeft(c *check.C) {
	crdtest.Share(c.T, c.Env, "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	client, err := versioned.NewForConfig(c.Config)
	c.Must(err)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	ice, err := client.IcecreamV1alpha1().Icecreams(c.Namespace).Create(c.Context(), &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: v1alpha1.IcecreamSpec{DeploymentName: "cup", Replicas: ptr.To(int32(1))}}, dry)
	c.Must(err)
	var deployments appsv1.DeploymentList
	for name, owners := range map[string][]metav1.OwnerReference{
		"cone":   {ownerOf(ice, ice.UID, true)},
		"cup":    {ownerOf(ice, ice.UID, true)},
		"before": {ownerOf(ice, "an-earlier-one", true)},
		"shared": {ownerOf(ice, ice.UID, false)},
		"cup-2":  {ownerOf(ice, ice.UID, true)},
		"second": {{APIVersion: "v1", Kind: "ConfigMap", Name: "flavours", UID: "another"}, ownerOf(ice, ice.UID, true)},
		"alone":  nil,
	} {
		d, err := c.Client.AppsV1().Deployments(c.Namespace).Create(c.Context(), icecreamtest.DeploymentOf(name, owners...), dry)
		c.Must(err)
		deployments.Items = append(deployments.Items, *d)
	}
	lists, err := json.Marshal(v1alpha1.IcecreamList{Items: []v1alpha1.Icecream{*ice}})
	c.Must(err)
	second, err := json.Marshal(deployments)
	c.Must(err)
	input := filepath.Join(c.T.TempDir(), "lists.json")
	c.Must(os.WriteFile(input, slices.Concat(lists, second), 0o600))
	const expected = "cone, cup-2, second"
	r := c.Run(testenv.Command{Path: runtime(c.T, "bash"), Args: []string{"-c", `exec jq -n -r -f "$0" "$1"`, c.Path("left.jq"), input}, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 || r.TimedOut {
		c.Failf(expected, "exit code %d, and on the standard error:\n%s", r.ExitCode, r.Stderr)
	}
	names := slices.Sorted(slices.Values(strings.Fields(r.Stdout)))
	held := cmp.Or(strings.Join(names, ", "), "nothing")
	switch {
	case slices.Contains(names, "cup"):
		c.Mistake("the wanted one", expected, held)
	case slices.Contains(names, "before"):
		c.Mistake("owner by name", expected, held)
	case slices.Contains(names, "shared"):
		c.Mistake("any owner", expected, held)
	case held == "cone, cup-2":
		c.Mistake("first owner only", expected, held)
	case held != expected:
		c.Fail(expected, held)
	}
}

// ownerOf is a reference to an Icecream of that UID.
func ownerOf(ice *v1alpha1.Icecream, uid types.UID, controller bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Icecream", Name: ice.Name, UID: uid, Controller: ptr.To(controller)}
}

// checkBudget first asks the decision itself, and then has hook act on it.
func checkBudget(c *check.C) {
	path := []string{"PATH=" + filepath.Dir(c.Workspace().Bin("kubectl")) + ":" + os.Getenv("PATH")}
	decide := func(replicas int32, children ...policyv1.PodDisruptionBudget) []policyv1.PodDisruptionBudget {
		return decision(c, path, &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "asked", UID: "1234", Generation: 1},
			Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: &replicas}}, children)
	}
	budget := decide(2)
	if len(budget) == 0 {
		c.Mistake("none for two", "with two replicas, a PodDisruptionBudget", "no child")
	}
	if children := decide(1); len(children) > 0 {
		c.Mistake("always there", "with one replica, no PodDisruptionBudget", children[0].Name)
	}
	if children := decide(1, budget...); len(children) > 0 {
		c.Mistake("never removed", "with one replica, no PodDisruptionBudget any more", children[0].Name)
	}

	crdtest.Share(c.T, c.Env, "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	client, err := versioned.NewForConfig(c.Config)
	c.Must(err)
	icecreams, budgets := client.IcecreamV1alpha1().Icecreams(c.Namespace), c.Client.PolicyV1().PodDisruptionBudgets(c.Namespace)
	ice, err := icecreams.Create(c.Context(), &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: ptr.To(int32(3))}}, metav1.CreateOptions{})
	c.Must(err)
	ice.Status = v1alpha1.IcecreamStatus{ObservedGeneration: 7, AvailableReplicas: ptr.To(int32(3))}
	ice, err = icecreams.UpdateStatus(c.Context(), ice, metav1.UpdateOptions{})
	c.Must(err)
	status := ice.Status

	hook := c.Start(testenv.Command{Path: c.Env.Program("./12-any-language/hook"), Env: path, Args: []string{"-namespace", c.Namespace,
		"-parent", "icecreams.v1alpha1.controller.nicoleh.io", "-child", "poddisruptionbudgets.v1.policy", "--", "bash", c.Path("budget.sh")}})
	patience := check.Patience(10 * time.Second)
	there := func(when string, replicas int32) {
		expected := fmt.Sprintf("%s, a PodDisruptionBudget vanilla with maxUnavailable 1 and the selector controller.nicoleh.io/uid=%s", when, ice.UID)
		var budget *policyv1.PodDisruptionBudget
		if err := c.Until(patience, func(ctx context.Context) error {
			all, err := budgets.List(ctx, metav1.ListOptions{})
			if err == nil && len(all.Items) == 0 {
				err = errors.New("there is none")
			}
			if err == nil {
				budget = &all.Items[0]
			}
			return err
		}); err != nil {
			c.Failf(expected, "%v; hook says:\n%s", err, proc.LastLines(hook.Stderr(), 3))
		}
		spec, err := json.Marshal(budget.Spec)
		c.Must(err)
		held := fmt.Sprintf("%s with the spec %s", budget.Name, spec)
		switch {
		case budget.Name != ice.Name:
			c.Mistake("another name", expected, held)
		case !selectsOnly(budget.Spec.Selector, string(ice.UID)):
			c.Mistake("another selector", expected, held)
		case ptr.Deref(budget.Spec.MaxUnavailable, intstr.FromInt32(-1)) != intstr.FromInt32(1) &&
			ptr.Deref(budget.Spec.MinAvailable, intstr.FromInt32(-1)) != intstr.FromInt32(replicas-1):
			c.Mistake("fixed minimum", expected, held)
		}
	}
	there("with three replicas", 3)
	scale := func(replicas int) {
		_, err := icecreams.Patch(c.Context(), ice.Name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
		c.Must(err)
	}
	scale(1)
	if err := c.Until(patience, func(ctx context.Context) error {
		_, err := budgets.Get(ctx, ice.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	}); err != nil {
		c.Fail("with one replica, no PodDisruptionBudget", err.Error())
	}
	scale(2)
	there("with two replicas again", 2)
	now, err := icecreams.Get(c.Context(), ice.Name, metav1.GetOptions{})
	c.Must(err)
	if diff := gocmp.Diff(status, now.Status); diff != "" {
		c.Mistake("status taken", "the status as it was", diff)
	}
}

// selectsOnly reports whether a selector selects the pods of the Icecream with that UID, and no others.
func selectsOnly(selector *metav1.LabelSelector, uid string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set{v1alpha1.UIDLabel: uid}) && !s.Matches(labels.Set{v1alpha1.UIDLabel: "another"}) && !s.Matches(labels.Set{})
}

// decision asks the file for its answer, and returns the children in it.
func decision(c *check.C, env []string, parent *v1alpha1.Icecream, children []policyv1.PodDisruptionBudget) []policyv1.PodDisruptionBudget {
	c.T.Helper()
	const answers = "one JSON object on the standard output"
	question, err := json.Marshal(map[string]any{"parent": parent, "children": append([]policyv1.PodDisruptionBudget{}, children...), "refused": "", "taken": ""})
	c.Must(err)
	input := filepath.Join(c.T.TempDir(), "question.json")
	c.Must(os.WriteFile(input, question, 0o600))
	r := c.Run(testenv.Command{Path: runtime(c.T, "bash"), Args: []string{"-c", `exec bash "$0" <"$1"`, c.Path("budget.sh"), input}, Env: env, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 || r.TimedOut {
		c.Failf(answers, "exit code %d, and on the standard error:\n%s", r.ExitCode, r.Stderr)
	}
	var answer struct {
		Children []policyv1.PodDisruptionBudget `json:"children"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &answer); err != nil {
		if json.Valid([]byte(r.Stdout)) {
			c.Failf("an answer with the children wanted", "%v: %s", err, r.Stdout)
		}
		c.Mistake("more than an answer", answers, r.Stdout)
	}
	if slices.ContainsFunc(answer.Children, func(b policyv1.PodDisruptionBudget) bool { return b.Kind == "" }) {
		c.Fail("children with a kind", r.Stdout)
	}
	return answer.Children
}

// A look is a worker's at one name: when it began and when it ended, in milliseconds.
type look struct {
	worker, began, ended float64
	name                 string
}

func (l *look) UnmarshalJSON(data []byte) error {
	var ended *float64
	err := json.Unmarshal(data, &[]any{&l.worker, &l.name, &l.began, &ended})
	l.ended = ptr.Deref(ended, math.Inf(1))
	return err
}

// checkQueue first tries the class alone, and then has icecream.mjs work with it.
func checkQueue(c *check.C) {
	r := c.Run(testenv.Command{Path: runtime(c.T, "node"), Args: []string{"12-any-language/exercises/queue/try.mjs", c.Path("queue.mjs")}, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 || r.TimedOut {
		c.Failf("a class Queue with add, get and done", "exit code %d, and on the standard error:\n%s", r.ExitCode, r.Stderr)
	}
	// What the class prints for its author comes before the last line.
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	var trials map[string][]look
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &trials); err != nil {
		c.Failf("a class that lets its program end by itself", "%s", r.Stdout)
	}
	of := func(trial, name string) (looks []look) {
		for _, l := range trials[trial] {
			if l.name == name {
				looks = append(looks, l)
			}
		}
		return looks
	}
	held := func(trial string) string {
		var all []string
		for _, l := range trials[trial] {
			all = append(all, fmt.Sprintf("%s to worker %.0f after %.0f ms", l.name, l.worker, l.began))
		}
		return cmp.Or(strings.Join(all, ", "), "nothing was given out")
	}

	expected := "a, added five times, and b, each given out once"
	switch a, b := len(of("once", "a")), len(of("once", "b")); {
	case a > 1:
		c.Mistake("given out twice", expected, held("once"))
	case a != 1 || b != 1:
		c.Fail(expected, held("once"))
	}
	expected = "two workers that wait, and get a and b when these are added"
	if a, b := len(of("woken", "a")), len(of("woken", "b")); a+b < 2 {
		c.Mistake("never woken", expected, held("woken"))
	} else if a+b > 2 {
		c.Fail(expected, held("woken"))
	}
	expected = "a, added again after 100 of the 600 ms that a worker takes for it, given out once more after done"
	switch busy := of("busy", "a"); {
	case len(busy) > 1 && busy[1].began < busy[0].ended:
		c.Mistake("two at once", expected, held("busy"))
	case len(busy) == 1:
		c.Mistake("change lost", expected, held("busy"))
	case len(busy) != 2:
		c.Fail(expected, held("busy"))
	}
	expected = "b given out at once, and a, whose delay is 1500 ms, once after that, although it is added five times before"
	a, b := of("waits", "a"), of("waits", "b")
	switch {
	case len(a) == 0:
		c.Fail(expected, held("waits"))
	case len(a) > 1 && a[1].began < a[0].ended+1450: // a timer may be a little early
		c.Mistake("wait passed", expected, held("waits"))
	case len(b) == 0 || b[0].began > a[0].ended+1000:
		c.Mistake("all wait", expected, held("waits"))
	case len(a) != 2 || len(b) != 1:
		c.Fail(expected, held("waits"))
	}
	expected = "a, whose delay is 300 ms, given out once more, although nobody adds it"
	switch again := of("again", "a"); {
	case len(again) == 1:
		c.Mistake("not tried again", expected, held("again"))
	case len(again) != 2:
		c.Fail(expected, held("again"))
	}

	over := of("over", "a")
	for i := range over[min(1, len(over)):] {
		if over[i+1].began < over[i].ended {
			c.Mistake("two after a wait", "a, whose delay is over while no worker is free, and which is added then, given out once", held("over"))
		}
	}
	if len(over) < 2 {
		c.Fail("a, whose delay is over while no worker is free, given out again", held("over"))
	}

	dir := copies(c.T, "exercises/queue/icecream.mjs.patch")
	queue, err := os.ReadFile(c.Path("queue.mjs"))
	c.Must(err)
	c.Must(os.WriteFile(filepath.Join(dir, "queue.mjs"), queue, 0o600))
	if err := waits(controllers["Node.js"].in(c.T, runtime(c.T, "node"), dir)); err != nil {
		c.Fail("icecream.mjs with this queue waits", err.Error())
	}
}
