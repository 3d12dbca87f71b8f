package anylanguage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	ice.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Icecream"} // as each item of a list of a custom resource
	other := func(uid types.UID, controller bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "flavours", UID: uid, Controller: ptr.To(controller)}
	}
	unsaid := ownerOf(ice, ice.UID, false)
	unsaid.Controller = nil
	var deployments appsv1.DeploymentList
	for name, owners := range map[string][]metav1.OwnerReference{
		"cone":    {ownerOf(ice, ice.UID, true)},
		"cup":     {ownerOf(ice, ice.UID, true)},
		"before":  {ownerOf(ice, "an-earlier-one", true)},
		"shared":  {ownerOf(ice, ice.UID, false)},
		"cup-2":   {ownerOf(ice, ice.UID, true)},
		"second":  {other("another", false), ownerOf(ice, ice.UID, true)},
		"third":   {other("another", false), other("one-more", false), ownerOf(ice, ice.UID, true), other("the-last", false)},
		"vanilla": {ownerOf(ice, ice.UID, true)},
		"unsaid":  {unsaid},
		"theirs":  {ownerOf(ice, ice.UID, false), other("another", true)},
		"alone":   nil,
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
	const expected = "cone, cup-2, second, third, vanilla"
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
	case slices.ContainsFunc(names, func(name string) bool { return slices.Contains([]string{"shared", "unsaid", "theirs"}, name) }):
		c.Mistake("any owner", expected, held)
	case held == "cone, cup-2, vanilla":
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
		return decision(c, path, &v1alpha1.Icecream{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Icecream"},
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "asked.for-by-somebody-who-likes-long-names", UID: "1234", Generation: 1},
			Spec:       v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: &replicas},
			Status:     v1alpha1.IcecreamStatus{Replicas: ptr.To(3 - min(replicas, 3))}}, children) // what there is is not what the spec asks for
	}
	budget := decide(2)
	if len(budget) == 0 {
		c.Mistake("none for two", "with two replicas, a PodDisruptionBudget", "no child")
	}
	for _, replicas := range []int32{1, 0} {
		if children := decide(replicas); len(children) > 0 {
			c.Mistake("always there", fmt.Sprintf("with spec.replicas %d, no PodDisruptionBudget", replicas), children[0].Name)
		}
	}
	if children := decide(1, budget...); len(children) > 0 {
		c.Mistake("never removed", "with one replica, no PodDisruptionBudget any more", children[0].Name)
	}
	changed := *budget[0].DeepCopy()
	changed.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(2))}
	for _, asked := range []struct {
		replicas int32
		children []policyv1.PodDisruptionBudget
	}{{2, budget}, {2, []policyv1.PodDisruptionBudget{changed}}, {12, nil}} {
		right(c, fmt.Sprintf("with %d replicas and %d children so far,", asked.replicas, len(asked.children)), "asked.for-by-somebody-who-likes-long-names", "1234", asked.replicas, decide(asked.replicas, asked.children...))
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
		var all *policyv1.PodDisruptionBudgetList
		if err := c.Until(patience, func(ctx context.Context) error {
			var err error
			if all, err = budgets.List(ctx, metav1.ListOptions{}); err == nil && len(all.Items) == 0 {
				err = errors.New("there is none")
			}
			return err
		}); err != nil {
			c.Failf(when+" a PodDisruptionBudget vanilla", "%v; hook says:\n%s", err, proc.LastLines(hook.Stderr(), 3))
		}
		right(c, when, ice.Name, ice.UID, replicas, all.Items)
	}
	there("with three replicas,", 3)
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
	there("with two replicas again,", 2)
	now, err := icecreams.Get(c.Context(), ice.Name, metav1.GetOptions{})
	c.Must(err)
	if diff := gocmp.Diff(status, now.Status); diff != "" {
		c.Mistake("status taken", "the status as it was", diff)
	}
}

// right ends the check unless the budgets are the one that an Icecream should have.
func right(c *check.C, when, name string, uid types.UID, replicas int32, budgets []policyv1.PodDisruptionBudget) {
	c.T.Helper()
	expected := fmt.Sprintf("%s a PodDisruptionBudget %s with maxUnavailable 1 and the selector controller.nicoleh.io/uid=%s", when, name, uid)
	if len(budgets) != 1 {
		c.Failf(expected, "%d children", len(budgets))
	}
	spec, err := json.Marshal(budgets[0].Spec)
	c.Must(err)
	held := fmt.Sprintf("%s with the spec %s", budgets[0].Name, spec)
	most, least := budgets[0].Spec.MaxUnavailable, ptr.Deref(budgets[0].Spec.MinAvailable, intstr.FromInt32(-1))
	switch {
	case budgets[0].Name != name:
		c.Mistake("another name", expected, held)
	case !selectsOnly(budgets[0].Spec.Selector, string(uid)):
		c.Mistake("another selector", expected, held)
	case most != nil && budgets[0].Spec.MinAvailable != nil:
		c.Mistake("both limits", expected, held)
	case most == nil && least != intstr.FromInt32(replicas-1):
		c.Mistake("fixed minimum", expected, held)
	case most != nil && *most != intstr.FromInt32(1):
		why := "; a drain may take " + most.String() + " pods at a time"
		if most.Type == intstr.String {
			why = "; a percentage lets the more pods go, the more there are"
			if !strings.HasSuffix(most.StrVal, "%") {
				why = "; that is a string, where a number is wanted"
			}
		}
		c.Fail(expected, held+why)
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
		Status   any                            `json:"status"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &answer); err != nil {
		if json.Valid([]byte(r.Stdout)) {
			c.Failf("an answer with the children wanted", "%v: %s", err, r.Stdout)
		}
		if strings.TrimSpace(r.Stdout) == "" {
			c.Fail(answers, "nothing")
		}
		c.Mistake("more than an answer", answers, r.Stdout)
	}
	if answer.Status != nil {
		c.Mistake("status taken", "an answer without a status", r.Stdout)
	}
	if slices.ContainsFunc(answer.Children, func(b policyv1.PodDisruptionBudget) bool { return b.Kind != "PodDisruptionBudget" }) {
		c.Fail("children of the kind PodDisruptionBudget", r.Stdout)
	}
	return answer.Children
}

// An event of a trial: a name is added, a worker begins to wait in get, has a name to look at, or
// is done with it; or the clock ticks.
type event struct {
	What   string
	Name   string
	Worker int
	Delay  *float64 // milliseconds, as At
	At     float64
}

// A named is what a queue has to know of a name.
type named struct {
	wanted bool    // somebody has to look at it
	why    string  // since it was last given out: added, changed while a worker had it, or failed
	added  bool    // since it was last given out
	held   bool    // by a worker
	waits  bool    // until due
	due    float64 // when its delay is over
	given  int
	again  bool // it was last given out because it had failed
}

const (
	slack = 5  // milliseconds that a timer may be early
	late  = 10 // ticks of 25 ms that a name may be ready while a worker waits
)

// follow follows a trial, and says what a queue must not do: which mistake, if it has a name, what
// should have been, and what was instead.
func follow(events []event) (mistake, expected, held string) {
	names, idle, order := map[string]*named{}, map[int]bool{}, []string{}
	ticks, since := 0, -1
	for i, e := range events {
		for _, n := range names {
			if n.waits && n.due <= e.At {
				n.waits = false
			}
		}
		n := names[e.Name]
		if n == nil && e.What != "tick" && e.What != "get" {
			if e.What != "add" {
				return "", "only names that were added", fmt.Sprintf("%q was given out", e.Name)
			}
			n = &named{}
			names[e.Name], order = n, append(order, e.Name)
		}
		switch at := fmt.Sprintf("after %.0f ms, to worker %d", e.At, e.Worker); e.What {
		case "tick":
			ticks++
		case "get":
			idle[e.Worker] = true
		case "add":
			if !n.wanted {
				n.why = map[bool]string{false: "added", true: "changed"}[n.held]
			}
			n.wanted, n.added = true, true
		case "look":
			again := fmt.Sprintf("%s was given out %s", e.Name, at)
			switch {
			case n.held && n.again:
				return "two after a wait", e.Name + ", whose delay is over, given out once, also when it is added after that", again + ", while another had it"
			case n.held:
				return "two at once", e.Name + " given out after done, because a worker has it", again + ", while another had it"
			case n.waits && e.At < n.due-slack && n.added:
				return "wait passed", fmt.Sprintf("%s given out when its delay is over, after %.0f ms", e.Name, n.due), again
			case n.waits && e.At < n.due-slack:
				return "", fmt.Sprintf("%s given out when its delay is over, after %.0f ms, and not earlier", e.Name, n.due), again
			case !n.wanted:
				return "given out twice", e.Name + " given out once, unless it is added again", again + ", though nobody had added it since the time before"
			}
			*n = named{held: true, given: n.given + 1, again: n.why == "failed"}
			idle[e.Worker] = false
		case "done":
			if n.held = false; e.Delay != nil {
				n.wanted, n.why, n.waits, n.due = true, "failed", true, e.At+*e.Delay
			}
		}

		free := slices.Contains(slices.Collect(maps.Values(idle)), true)
		ready, busy, waiting := "", false, false
		for _, name := range order {
			n := names[name]
			busy, waiting = busy || n.held, waiting || n.waits
			if ready == "" && n.wanted && !n.held && !n.waits {
				ready = name
			}
		}
		switch {
		case !free || ready == "":
			since = -1
		case since < 0 || e.What == "look":
			since = ticks
		case ticks-since > late:
			n := names[ready]
			next := slices.IndexFunc(events[i:], func(e event) bool { return e.Name == ready })
			ever := next >= 0 && events[i+next].What == "look" // without another add
			held := fmt.Sprintf("after %.0f ms it was not given out, though a worker was waiting", e.At)
			switch {
			case n.why == "changed" && !ever:
				return "change lost", ready + ", which was added while a worker had it, given out once more after done", held
			case n.why == "failed" && !ever:
				return "not tried again", ready + ", whose delay is over, given out once more, although nobody adds it", held
			case n.why == "added" && waiting:
				return "all wait", ready + " given out at once, although another name waits", held
			case n.why == "added" && busy:
				return "one at a time", ready + " given out to a worker that waits, although another one is busy", held
			case n.why == "added" && n.given == 0:
				return "never woken", ready + " given out to a worker that waits", held
			}
			return "", ready + " given out as soon as it may be, and a worker waits", held
		}
	}
	return "", "", ""
}

// checkQueue first tries the class alone, and then has icecream.mjs work with it.
func checkQueue(c *check.C) {
	r := c.Run(testenv.Command{Path: runtime(c.T, "node"), Args: []string{"12-any-language/exercises/queue/try.mjs", c.Path("queue.mjs")}, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 || r.TimedOut {
		c.Failf("a class Queue with add, get and done", "exit code %d, and on the standard error:\n%s", r.ExitCode, r.Stderr)
	}
	// What the class prints for its author comes before the last line.
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	var trials map[string][]event
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &trials); err != nil {
		c.Failf("a class that lets its program end by itself", "%v: %.2000s", err, r.Stdout)
	}
	// What a mistake is called depends on what shows it first.
	for _, trial := range []string{"once", "woken", "busy", "waits", "again", "over", "changed", "several", "both", "many"} {
		if len(trials[trial]) == 0 {
			c.T.Fatalf("there is no trial %s", trial)
		}
		mistake, expected, held := follow(trials[trial])
		if mistake != "" {
			c.Mistake(mistake, expected, held)
		}
		if expected != "" {
			c.Fail(expected, held)
		}
	}

	dir := copies(c.T, "exercises/queue/icecream.mjs.patch")
	queue, err := os.ReadFile(c.Path("queue.mjs"))
	c.Must(err)
	c.Must(os.WriteFile(filepath.Join(dir, "queue.mjs"), queue, 0o600))
	if err := waits(controllers["Node.js"].in(c.T, runtime(c.T, "node"), dir)); err != nil {
		c.Fail("icecream.mjs with this queue waits", err.Error())
	}
}
