package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"create": checkCreate, "brake": checkBrake, "status": checkStatus,
		"take-back": checkTakeBack, "find-the-bugs": checkFindTheBugs})
}

// A candidate is a running controller that is checked.
type candidate struct {
	*testenv.Process
	c       *check.C
	address string // of the metrics
}

// works starts a controller, and waits until its caches are filled.
func works(c *check.C, command testenv.Command) *candidate {
	s := &candidate{c.Start(command), c, ""}
	s.until("a controller that fills its caches", 20*time.Second, func(context.Context) error {
		if found := listening.FindStringSubmatch(s.Stderr()); found != nil && strings.Contains(s.Stderr(), `"Working"`) {
			s.address = found[1]
			return nil
		}
		return errors.New("the log does not say that it works:\n" + s.log())
	})
	return s
}

// until waits until f returns nil, and fails the check if that takes too long, or if
// the controller ends.
func (s *candidate) until(expected string, timeout time.Duration, f func(context.Context) error) {
	if os.Getenv(exercise.WorkEnv) == "" {
		timeout = time.Minute // a proof shares the machine with all other tests
	}
	err := s.c.Until(timeout, func(ctx context.Context) error {
		if s.Ended() {
			s.c.Failf("a controller that runs", "it has ended with exit code %d:\n%s", s.ExitCode(), s.log())
		}
		return f(ctx)
	})
	if err != nil {
		s.c.Fail(expected, err.Error())
	}
}

// log is the end of what the controller has said.
func (s *candidate) log() string {
	lines := strings.Split(strings.TrimSpace(s.Stderr()), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// looks waits until the controller has looked at objects so many times more, or
// until enough says that this is no longer needed. The controller looks without an
// event, because of a resync, or because its cache is behind.
func (s *candidate) looks(more int, enough func() bool) (was bool) {
	looked := func() (sum int) {
		_, body := get(s.address, "/metrics")
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "controller_reconciles_total{") {
				n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
				s.c.Must(err)
				sum += n
			}
		}
		return sum
	}
	want := looked() + more
	s.until("a controller that goes on looking", 20*time.Second, func(context.Context) error {
		if was = enough(); was {
			return nil
		}
		if n := looked(); n < want {
			return fmt.Errorf("it has looked %d times, not %d", n, want)
		}
		return nil
	})
	return was
}

// checkCreate lets a controller create Deployments that its cache does not show,
// because the proxy holds back every event of Deployments.
func checkCreate(c *check.C) {
	p := newParlour(c.T, c.Env, c.Program())
	s := works(c, testenv.Command{Path: p.program, Args: p.args})
	p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	posts := faultproxy.Match{Verb: "create", Resource: "deployments"}
	accepted := func() (n int) {
		for _, r := range p.proxy.Requests(posts) {
			if r.Code == http.StatusCreated {
				n++
			}
		}
		return n
	}
	// again says whether a create follows the answer that makes it needless. Only the
	// requests after one are of interest.
	again := func(after int, needless func(faultproxy.Request) bool) bool {
		known := false
		for _, r := range p.proxy.Requests(faultproxy.Match{Resource: "deployments"}) {
			if known && r.Verb == "create" {
				return true
			}
			known = known || r.ID > after && needless(r)
		}
		return false
	}
	last := func() int {
		all := p.proxy.Requests(faultproxy.Match{})
		return all[len(all)-1].ID
	}
	// reports waits for the condition Owned of an Icecream, unless a mistake is certain before.
	reports := func(ice, expected string, right, wrong func(*icecreamv1alpha1.Icecream) error) {
		s.until(expected, 10*time.Second, func(ctx context.Context) error {
			refused, exists := 0, false
			for _, r := range p.proxy.Requests(faultproxy.Match{Resource: "deployments"}) {
				exists = exists || r.Verb == "create" && r.Code == http.StatusConflict
				switch {
				case exists && r.Name == "taken" && r.Write():
					c.Mistake("took over what exists", expected+", and no write of that Deployment", "after the create that failed with 409 AlreadyExists, the request "+r.String())
				case r.Verb == "patch":
					c.Mistake("apply takes over", expected+", and no apply", "the request "+r.String())
				case r.Verb == "create" && r.Code == http.StatusConflict:
					refused++
				case r.Verb == "get":
					refused = 0
				}
				if refused == 3 {
					c.Mistake("gave up at already exists", "a Get after the create that failed", "three creates in a row failed with 409 AlreadyExists, without a Get between them")
				}
			}
			got, err := p.icecreams.Get(ctx, ice, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if wrong != nil && wrong(got) == nil {
				c.Mistake("taken for its own", expected, fmt.Sprintf("Owned=True, though the API server has no Deployment %s of this Icecream", got.Spec.DeploymentName))
			}
			return right(got)
		})
	}
	isOwned := condition("Owned", metav1.ConditionTrue, "Created")

	p.foreign("taken")
	p.create("late", "taken", 0)
	s.until("Owned=False, because the Deployment taken is somebody else's", 10*time.Second, func(context.Context) error {
		if n := accepted(); n > 0 {
			c.Mistake("another name", "no other Deployment than taken", fmt.Sprintf("%d further Deployments were created", n))
		}
		if len(p.proxy.Requests(faultproxy.Match{Resource: "deployments", If: func(r faultproxy.Request) bool { return r.Code == http.StatusConflict || r.Verb == "patch" }})) == 0 {
			return errors.New("the controller has sent no create for the Deployment taken")
		}
		return nil
	})
	reports("late", "Owned=False, because the Deployment taken is somebody else's", isRefused, isOwned)
	found := func(r faultproxy.Request) bool { return r.Verb == "get" && r.Code == http.StatusOK }
	if s.looks(2, func() bool { return again(0, found) }) {
		c.Mistake("found one forgotten", "no create while the cache does not show the Deployment that was found", "another create of the Deployment taken")
	}

	// The answer to the create is lost.
	p.proxy.MustInject(faultproxy.Rule{Match: posts, Fault: faultproxy.Lose})
	p.create("vanilla", "cone", 0)
	reports("vanilla", "Owned=True for the Deployment cone, after an answer that was lost", isOwned, nil)
	before := last()
	p.create("lemon", "cup", 0)
	reports("lemon", "Owned=True for the Deployment cup", isOwned, nil)
	created := func(r faultproxy.Request) bool { return r.Verb == "create" && r.Code == http.StatusCreated }
	if s.looks(3, func() bool { return again(before, created) }) {
		c.Mistake("own write forgotten", "no create while the cache does not show the last one", "another create of a Deployment that exists")
	}
	for _, name := range []string{"vanilla", "lemon"} {
		ice, err := p.icecreams.Get(c.Context(), name, metav1.GetOptions{})
		c.Must(err)
		d, err := p.deployments.Get(c.Context(), ice.Spec.DeploymentName, metav1.GetOptions{})
		if err != nil || !metav1.IsControlledBy(d, ice) {
			c.Failf("a Deployment "+ice.Spec.DeploymentName+" with a controller reference to the Icecream "+name, "%v %v", d.OwnerReferences, err)
		}
		if !slices.ContainsFunc(d.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
			return m.Operation == metav1.ManagedFieldsOperationUpdate && m.Manager == "icecream-controller"
		}) {
			var managers []string
			for _, m := range d.ManagedFields {
				managers = append(managers, fmt.Sprintf("%s (%s)", m.Manager, m.Operation))
			}
			c.Mistake("another field manager", "the field manager icecream-controller (Update)", "the field managers "+strings.Join(managers, ", "))
		}
	}

	// The namespace goes while a create is on its way. One refusal is enough, and the
	// controller does not hear that the Icecream is being deleted, too.
	stalled := p.proxy.MustInject(faultproxy.Rule{Match: posts, Fault: faultproxy.Stall})
	before = last()
	p.create("mint", "tub", 0)
	s.until("a create of the Deployment tub", 10*time.Second, func(context.Context) error {
		if stalled.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	held := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold, Times: -1})
	defer held.Remove()
	c.Must(c.Client.CoreV1().Namespaces().Delete(c.Context(), c.Namespace, metav1.DeleteOptions{}))
	closed := c.Until(10*time.Second, func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "late-"}}, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return fmt.Errorf("the namespace still takes objects: %w", err)
	})
	c.Must(closed)
	stalled.Remove()
	refused := func(r faultproxy.Request) bool { return r.Verb == "create" && r.Code == http.StatusForbidden }
	s.until("an answer to the create of the Deployment tub", 10*time.Second, func(context.Context) error {
		if !slices.ContainsFunc(p.proxy.Requests(posts), refused) {
			return errors.New("there was none")
		}
		return nil
	})
	if s.looks(3, func() bool { return again(before, refused) }) {
		c.Mistake("error not wrapped", "no further create in a namespace that is being deleted", "another create after 403 Forbidden, because own could not see the reason in your error")
	}
}

// checkBrake lets a controller evict the first of two pods, and then gives it
// reasons to forget that.
func checkBrake(c *check.C) {
	w := newWard(c.T, c.Env, c.Program())
	w.command.Args = append(w.command.Args, "-resync", "1s")
	owned := w.controlled()
	w.pod("a", ill, owned)
	w.pod("b", ill, owned)
	w.policy("example", specOf("kill", every(600)))
	status := func(change func(*v1alpha1.HealthCheckPolicyStatus)) {
		err := c.Until(10*time.Second, func(ctx context.Context) error {
			policy, err := w.policies.Get(ctx, "example", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(&policy.Status)
			_, err = w.policies.UpdateStatus(ctx, policy, metav1.UpdateOptions{}) // again after a conflict
			return err
		})
		c.Must(err)
	}
	two := func() bool { return len(w.evicted()) > 1 }

	// The API server refuses the first eviction.
	refusal := w.proxy.MustInject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: http.StatusConflict})
	s := works(c, w.command)
	const first = "one eviction, after one that was refused, and then 600 seconds without another"
	s.until(first, 10*time.Second, func(ctx context.Context) error {
		policy, err := w.policies.Get(ctx, "example", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(w.evicted()) > 0 {
			return nil
		}
		if hindered("Throttled", "Throttled: 2 pods")(policy) == nil {
			if refusal.Struck() > 0 {
				c.Mistake("a refusal counts", first, "no eviction after the refused one, and the policy says: Throttled: 2 pods")
			}
			c.Fail(first, "no eviction was sent, and the policy says: Throttled: 2 pods")
		}
		return fmt.Errorf("no eviction; the status is %s", asJSON(policy.Status))
	})
	if s.looks(2, two) {
		c.Mistake("no brake", first, "a second eviction within a few seconds")
	}
	last := metav1.Now()
	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = nil })
	if s.looks(3, two) {
		c.Mistake("only the status", "one eviction within 600 seconds, though somebody has removed its time from the status", "a second eviction")
	}

	// A new process finds the time in the status.
	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = &last })
	s.Kill()
	s = works(c, w.command)
	if s.looks(3, two) {
		c.Mistake("only the memory", "one eviction within 600 seconds, though the controller was restarted", "a second eviction")
	}

	status(func(s *v1alpha1.HealthCheckPolicyStatus) {
		s.LastEvictionTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
	})
	_, err := w.policies.Patch(c.Context(), "example", types.MergePatchType, []byte(`{"spec":{"eviction":{"minIntervalSeconds":1}}}`), metav1.PatchOptions{})
	c.Must(err)
	// It looks once a second, and so more than once after the interval.
	if !s.looks(6, two) {
		c.Mistake("waits for the future", "an eviction a second after the time in the future was first seen", "none after six more looks")
	}
}

// checkStatus looks at the status of a policy before and after its mark can be
// written, and while nothing changes.
func checkStatus(c *check.C) {
	w := newWard(c.T, c.Env, c.Program())
	w.command.Args = append(w.command.Args, "-resync", "1s")
	w.pod("a", ill)
	w.pod("b", healthy)
	example := w.policy("example", specOf("label"))
	example.Status.Conditions = []metav1.Condition{{Type: "Audited", Status: metav1.ConditionTrue, Reason: "ByHand", LastTransitionTime: metav1.Now()}}
	_, err := w.policies.UpdateStatus(c.Context(), example, metav1.UpdateOptions{})
	c.Must(err)
	read := func(ctx context.Context) *v1alpha1.HealthCheckPolicy {
		p, err := w.policies.Get(ctx, "example", metav1.GetOptions{})
		c.Must(err)
		if p.Status.Statistics != nil && meta.FindStatusCondition(p.Status.Conditions, "Audited") == nil {
			c.Mistake("others' condition dropped", "the condition Audited, which another program has written", "the conditions "+asJSON(p.Status.Conditions))
		}
		return p
	}

	// At first, no mark can be written.
	failing := w.proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	s := works(c, w.command)
	s.until("the statistics 1 failed, 1 passed, though no mark can be written", 10*time.Second, func(ctx context.Context) error {
		p := read(ctx)
		if meta.IsStatusConditionTrue(p.Status.Conditions, "Enforced") {
			c.Mistake("done too early", "no Enforced=True, because the API server refuses the mark with 500", "the conditions "+asJSON(p.Status.Conditions))
		}
		if p.Status.Statistics == nil || failing.Struck() == 0 {
			return errors.New("the status is " + asJSON(p.Status))
		}
		if want := (v1alpha1.PodStatistics{Failed: 1, Passed: 1}); p.Status.Statistics.Pods != want {
			return errors.New("the statistics are " + asJSON(p.Status.Statistics))
		}
		return nil
	})
	failing.Remove()
	s.until("Compliant=False/ProbesMissing, Enforced=True/Done, and observedGeneration 1", 10*time.Second, func(ctx context.Context) error {
		p := read(ctx)
		done := meta.FindStatusCondition(p.Status.Conditions, "Enforced")
		if done == nil || done.Status != metav1.ConditionTrue {
			return errors.New("the status is " + asJSON(p.Status))
		}
		if p.Status.ObservedGeneration != p.Generation {
			c.Mistake("generation not observed", fmt.Sprintf("observedGeneration %d, with Enforced=True", p.Generation), fmt.Sprintf("observedGeneration %d", p.Status.ObservedGeneration))
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type != "Audited" && condition.ObservedGeneration != p.Generation {
				c.Mistake("condition without generation", fmt.Sprintf("observedGeneration %d in the condition %s", p.Generation, condition.Type), asJSON(condition))
			}
		}
		return counted(1, 1)(p)
	})

	// Nothing changes.
	since := func(p *v1alpha1.HealthCheckPolicy) string {
		var all []string
		for _, condition := range p.Status.Conditions {
			all = append(all, fmt.Sprintf("%s=%s since %s", condition.Type, condition.Status, condition.LastTransitionTime.Format(time.TimeOnly)))
		}
		return strings.Join(all, ", ")
	}
	s.looks(1, func() bool { return false }) // the events of its own writes
	before := read(c.Context())
	s.looks(4, func() bool { return since(read(c.Context())) != since(before) })
	after := read(c.Context())
	switch {
	case since(after) != since(before):
		c.Mistake("transition time moves", since(before), since(after))
	case after.ResourceVersion != before.ResourceVersion:
		c.Mistake("written without a change", "no write of the status while nothing changes", "first "+asJSON(before.Status.Conditions)+"\nthen "+asJSON(after.Status.Conditions))
	}
	w.pod("c", healthy)
	s.until("the statistics 1 failed, 2 passed", 10*time.Second, func(ctx context.Context) error { return counted(1, 2)(read(ctx)) })
	if after := since(read(c.Context())); after != since(before) {
		c.Mistake("transition time moves", since(before), after)
	}
}

// checkTakeBack deletes policies whose marks cannot be taken back, or not be seen.
func checkTakeBack(c *check.C) {
	w := newWard(c.T, c.Env, c.Program())
	w.command.Args = append(w.command.Args, "-resync", "1s")
	labels := func(name string) { w.policy(name, specOf("label", selecting("app="+name))) }
	s := works(c, w.command)
	marked := func(pod string) func(context.Context) error {
		return func(ctx context.Context) error {
			if found, err := w.marked(ctx, "lacks"); err != nil || found[pod] == "" {
				return errors.Join(err, fmt.Errorf("pod %s has no mark", pod))
			}
			return nil
		}
	}
	// gone says whether a policy is gone, and fails the check if a mark is left then.
	gone := func(mistake, policy, pod string) bool {
		if w.isGone(c.Context(), policy) != nil {
			return false
		}
		if marked(pod)(c.Context()) == nil {
			c.Mistake(mistake, "no mark is left when the policy "+policy+" is gone", "the policy is gone, and pod "+pod+" carries its mark")
		}
		return true
	}
	// leaves waits until a policy is gone.
	leaves := func(mistake, policy, pod string) {
		s.until("the policy "+policy+" goes, after its marks", 10*time.Second, func(ctx context.Context) error {
			if gone(mistake, policy, pod) {
				return nil
			}
			return errors.Join(errors.New("the policy is still there"), marked(pod)(ctx))
		})
	}
	for _, name := range []string{"failing", "finished", "held", "lost"} {
		w.pod(name, ill, labelled("app", name))
	}
	labels("failing")
	labels("finished")
	s.until("marks on two pods", 10*time.Second, marked("failing"))
	s.until("marks on two pods", 10*time.Second, marked("finished"))

	// The mark cannot be taken back.
	failing := w.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods", Name: "failing"}, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	w.remove("failing")
	s.looks(3, func() bool { return gone("finalizer first", "failing", "failing") })
	failing.Remove()
	s.until("no mark on the pod of a policy that is being deleted", 10*time.Second, func(ctx context.Context) error {
		gone("finalizer first", "failing", "failing")
		if marked("failing")(ctx) == nil {
			return errors.New("pod failing still carries its mark")
		}
		return nil
	})
	if !s.looks(6, func() bool { return gone("finalizer first", "failing", "failing") }) {
		c.Mistake("finalizer kept", "the policy goes when no pod carries its mark", "the policy still has its finalizer, after six more looks")
	}

	// A finished pod keeps its mark, whatever its labels become.
	w.phase("finished", corev1.PodSucceeded)
	w.edit("finished", `{"metadata":{"labels":{"app":"other"}}}`)
	s.looks(2, func() bool { return false })
	// Once the policy is gone, the controller may find the mark all the same. So what counts is the moment before.
	var early atomic.Bool
	w.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "healthcheckpolicies", Name: "finished"}, Times: -1,
		Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
			if marked("finished")(ctx) == nil {
				early.Store(true)
			}
			return nil
		}})
	w.remove("finished")
	leaves("only the selected pods", "finished", "finished")
	if early.Load() {
		c.Mistake("only the selected pods", "no mark is left when the policy finished is gone", "pod finished carried its mark when the finalizer was removed")
	}

	// The cache does not show the mark yet.
	held := w.proxy.MustInject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold, Times: -1})
	labels("held")
	s.until("a mark on pod held", 10*time.Second, marked("held"))
	w.remove("held")
	s.looks(3, func() bool { return gone("old cache believed", "held", "held") })
	held.Remove()
	leaves("old cache believed", "held", "held")

	// Nor does it show one whose answer was lost.
	held = w.proxy.MustInject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold, Times: -1})
	lost := w.proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Lose})
	stalled := w.proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Stall, Times: -1, After: 1})
	labels("lost")
	s.until("a second try after an answer that was lost", 10*time.Second, func(context.Context) error {
		if lost.Struck() == 0 || stalled.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	w.remove("lost")
	stalled.Remove()
	leaves("lost answer forgotten", "lost", "lost")
	held.Remove()
}

// checkFindTheBugs makes the cases in which each bug shows, side by side.
func checkFindTheBugs(c *check.C) {
	program := c.Program()
	p := newParlour(c.T, c.Env, program)
	process := c.Start(testenv.Command{Path: program, Args: p.args})
	s := &candidate{Process: process, c: c}
	s.until("a controller that watches Icecreams and Deployments", 20*time.Second, func(context.Context) error {
		for _, resource := range []string{"icecreams", "deployments"} {
			if watches := p.requests("watch*", resource); len(watches) == 0 || watches[0].Events == 0 {
				return fmt.Errorf("no watch of %s:\n%s", resource, s.log())
			}
		}
		return nil
	})
	process.Kill()
	t, ok := c.T.(*testing.T)
	if !ok {
		c.T.Fatalf("%T cannot run tests", c.T)
	}
	found := make([]error, len(bugs))
	if !t.Run("bugs", func(t *testing.T) {
		for i, bug := range bugs {
			t.Run(bug.name, func(t *testing.T) {
				t.Parallel()
				found[i] = bug.check(examine(t, testenv.New(t), program, ""))
			})
		}
	}) {
		t.FailNow()
	}
	for i, bug := range bugs {
		if found[i] != nil {
			c.Mistake(bug.name, "a controller that does not have this bug", found[i].Error())
		}
	}
}
