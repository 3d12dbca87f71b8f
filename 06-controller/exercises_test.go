package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamcheck"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"wiring": icecreamcheck.Wiring, "create": icecreamcheck.Create, "repair": icecreamcheck.Repair,
		"leave": icecreamcheck.Leave, "report": icecreamcheck.Report, "survive": icecreamcheck.Survive,
		"brake": checkBrake, "status": checkStatus, "take-back": checkTakeBack, "find-the-bugs": checkFindTheBugs,
	})
}

// A candidate is a controller of policies that is checked.
type candidate struct{ *controllertest.Candidate }

// works starts a controller, and waits until its caches are filled.
func works(c *check.C, controller *controllertest.Controller) *candidate {
	s := &candidate{controllertest.Runs(c, controller)}
	s.Until("a controller that fills its caches", func(context.Context) error {
		if s.Address("metrics") != "" && strings.Contains(s.Process.Stderr(), `"Working"`) {
			return nil
		}
		return errors.New("the log does not say that it works:\n" + s.Log())
	})
	return s
}

// A check goes on when a look that began after its last change has ended, however long
// that takes. A time would say nothing about a controller on a slow machine.

// observes changes a policy, and waits until a look at it has gone to its end: only that
// reports a new generation. Before that, the look has carried the policy's action out.
func (s *candidate) observes(f *policyTest, name string) {
	policy, err := f.policies.Get(s.C.Context(), name, metav1.GetOptions{})
	s.C.Must(err)
	slices.Reverse(policy.Spec.RequiredProbes) // which means the same
	policy = f.change(name, `{"spec":{"requiredProbes":`+asJSON(policy.Spec.RequiredProbes)+`}}`)
	s.Until("a controller that observes a new generation of the policy "+name, func(ctx context.Context) error {
		now, err := f.policies.Get(ctx, name, metav1.GetOptions{})
		if err == nil && now.Status.ObservedGeneration < policy.Generation {
			err = errors.New("the status is " + asJSON(now.Status))
		}
		return err
	})
}

// The policy beacon says how far a controller with one worker has come. Its pods pass.
const beacon = "beacon"

var oneWorker = []string{"-workers", "1"}

func (f *policyTest) beacon() { f.policy(beacon, specOf("label", selecting("app="+beacon))) }

// looked waits until a controller with one worker has looked at every policy that has
// changed. The events of policies come in their order, and the worker takes keys in the
// order of their events, so the beacon's turn comes after those looks. It comes twice: a
// key whose event arrives while it is worked on is put behind those that wait.
func (s *candidate) looked(f *policyTest) {
	s.observes(f, beacon)
	s.observes(f, beacon)
}

// looksAt makes such a controller look at a policy once more, if it is still there.
func (s *candidate) looksAt(f *policyTest, name string) {
	_, err := f.policies.Patch(s.C.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"look":%q}}}`, time.Now().String()), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	s.C.Must(err)
	s.looked(f)
}

// seesPods waits until a controller has seen all that has happened to pods: the events
// of pods come in their order, and the beacon counts one more.
func (s *candidate) seesPods(f *policyTest) {
	list, err := f.pods.List(s.C.Context(), metav1.ListOptions{LabelSelector: "app=" + beacon})
	s.C.Must(err)
	pods := len(list.Items) + 1
	f.pod(fmt.Sprintf("beacon-%d", pods), withProbes, labelled("app", beacon))
	s.Until(fmt.Sprintf("the statistics %d passed of the policy %s", pods, beacon), func(ctx context.Context) error {
		policy, err := f.policies.Get(ctx, beacon, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return counted(0, int32(pods))(policy)
	})
}

// checkBrake lets a controller evict the first of two pods, and then gives it
// reasons to forget that.
func checkBrake(c *check.C) {
	f := policyTestOf(c.T, c.Env, c.Program(testenv.AddFile("zz_check.go", crash.JumpingClockSource), testenv.Replace("main.go", crash.RealClock, crash.JumpingClock)))
	offset := filepath.Join(c.T.TempDir(), "offset") // of the wall clock; own, which nobody sets, goes on
	f.Command.Env = append(f.Command.Env, crash.JumpingClockEnv+"="+offset)
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	f.policy("example", specOf("kill", every(600)))
	status := func(change func(*v1alpha1.HealthCheckPolicyStatus)) {
		err := c.Until(check.Patience(20*time.Second), func(ctx context.Context) error {
			policy, err := f.policies.Get(ctx, "example", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(&policy.Status)
			_, err = f.policies.UpdateStatus(ctx, policy, metav1.UpdateOptions{}) // again after a conflict
			return err
		})
		c.Must(err)
	}
	two := func() bool { return len(f.evicted()) > 1 }
	longAgo := &metav1.Time{Time: time.Now().Add(-time.Hour)}
	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = longAgo })

	// The API server refuses the first eviction, and takes until the next second for that: a time in a
	// status is whole seconds, and that of the next eviction has to be another one.
	f.Proxy.MustInject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		select {
		case <-time.After(time.Until(time.Now().Truncate(time.Second).Add(1010 * time.Millisecond))):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	refusal := f.Proxy.MustInject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: http.StatusConflict})
	s := works(c, f.Controller)
	const first = "one eviction, after one that was refused, and then 600 seconds without another"
	var since time.Time // from when on one pod is refused and the other left for later
	s.Until(first, func(ctx context.Context) error {
		policy, err := f.policies.Get(ctx, "example", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(f.evicted()) > 0 {
			return nil
		}
		if hindered("Throttled", "Throttled: 2 pods")(policy) == nil {
			if refusal.Struck() > 0 {
				c.Mistake("a refusal counts", first, "no eviction after the refused one, and the policy says: Throttled: 2 pods")
			}
			c.Fail(first, "no eviction was sent, and the policy says: Throttled: 2 pods")
		}
		// Whoever waits for the interval now says no more for ten minutes. Who tries the other pod later
		// than at once may say so for a moment, too, so this needs a time.
		switch {
		case hindered("Refused", "Refused: 1 pod; Throttled: 1 pod")(policy) != nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > 10*time.Second:
			c.Mistake("a refusal counts", first, "no eviction after the refused one, and the policy says: Refused: 1 pod; Throttled: 1 pod")
		}
		return fmt.Errorf("no eviction; the status is %s", asJSON(policy.Status))
	})
	s.observes(f, "example")
	if two() {
		c.Mistake("no brake", first, "a second eviction within a few seconds")
	}
	last := metav1.Now()
	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = nil })
	s.observes(f, "example")
	if two() {
		c.Mistake("only the status", "one eviction within 600 seconds, though somebody has removed its time from the status", "a second eviction")
	}

	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = longAgo })
	s.observes(f, "example")
	if two() {
		c.Fail("one eviction within 600 seconds, though the time in the status is an hour old: the longer of the two waits counts", "a second eviction")
	}

	// A new process finds the time in the status.
	status(func(s *v1alpha1.HealthCheckPolicyStatus) { s.LastEvictionTime = &last })
	s.Kill()
	s = works(c, f.Controller)
	s.observes(f, "example")
	if two() {
		c.Mistake("only the memory", "one eviction within 600 seconds, though the controller was restarted", "a second eviction")
	}

	c.Must(os.WriteFile(offset, []byte("-1h"), 0o600))
	s.observes(f, "example")
	if two() {
		c.Mistake("future ignored", "no eviction within 600 seconds of when the time in the future was first seen", "a second eviction")
	}
	_, err := f.policies.Patch(c.Context(), "example", types.MergePatchType, []byte(`{"spec":{"eviction":{"minIntervalSeconds":1}}}`), metav1.PatchOptions{})
	c.Must(err)
	s.observes(f, "example")
	// Now it has seen that time. The second that it may wait has to pass by the clock.
	seen := time.Now()
	s.Until("a second", func(context.Context) error {
		if !two() && time.Since(seen) < 1100*time.Millisecond {
			return errors.New("it is not over")
		}
		return nil
	})
	s.observes(f, "example")
	if !two() {
		const expected = "an eviction a second after the time in the future was first seen"
		// Only the default interval is long enough to tell from an hour.
		if c.Until(12*time.Second, func(context.Context) error {
			if !two() {
				return errors.New("there was none")
			}
			return nil
		}) == nil {
			c.Fail(expected, fmt.Sprintf("one after %s", time.Since(seen).Round(time.Second)))
		}
		c.Mistake("waits for the future", expected, "none, though it has looked at the policy after that second")
	}

	// The time in the status is newer than the memory, as if another process had written it.
	const interval = 3 * time.Second
	_, err = f.policies.Patch(c.Context(), "example", types.MergePatchType, []byte(`{"spec":{"eviction":{"minIntervalSeconds":3}}}`), metav1.PatchOptions{})
	c.Must(err)
	evicted := time.Now()
	s.Until("three seconds", func(context.Context) error {
		if time.Since(evicted) < interval {
			return errors.New("they are not over")
		}
		return nil
	})
	written := time.Now().Truncate(time.Second)
	status(func(s *v1alpha1.HealthCheckPolicyStatus) {
		s.LastEvictionTime = &metav1.Time{Time: written.Add(-time.Hour)}
	}) // by the clock that was set back
	f.pod("c", withoutProbes, owned)
	s.Until("an eviction three seconds after the time in the status", func(context.Context) error {
		if len(f.evicted()) < 3 {
			return errors.New("there was none")
		}
		return nil
	})
	if early := written.Add(interval).Sub(f.evicted()[2].Started); early > 0 {
		c.Fail("no eviction within 3 seconds after the time in the status: the longer of the two waits counts", fmt.Sprintf("one %s before that", early.Round(time.Millisecond)))
	}
}

// checkStatus looks at the status of a policy before and after its mark can be
// written, and while nothing changes.
func checkStatus(c *check.C) {
	f := policyTestOf(c.T, c.Env, c.Program())
	f.Command.Args = append(f.Command.Args, oneWorker...)
	f.beacon()
	f.pod("a", withoutProbes)
	f.pod("b", withProbes)
	f.pod("passes", withProbes, labelled("app", beacon))
	f.pod("orphan", withoutProbes, labelled("app", "strict"))
	f.policy("strict", specOf("kill", selecting("app=strict")))
	f.policy("empty", specOf("label", selecting("app=nobody")))
	example := f.policy("example", specOf("label", selecting("app=web")))
	example.Status.Conditions = []metav1.Condition{{Type: "Audited", Status: metav1.ConditionTrue, Reason: "ByHand", LastTransitionTime: metav1.Now()}}
	_, err := f.policies.UpdateStatus(c.Context(), example, metav1.UpdateOptions{})
	c.Must(err)
	read := func() *v1alpha1.HealthCheckPolicy {
		p, err := f.policies.Get(c.Context(), "example", metav1.GetOptions{})
		c.Must(err)
		if p.Status.Statistics != nil && meta.FindStatusCondition(p.Status.Conditions, "Audited") == nil {
			c.Mistake("others' condition dropped", "the condition Audited, which another program has written", "the conditions "+asJSON(p.Status.Conditions))
		}
		return p
	}

	// At first, no mark can be written.
	failing := f.Proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	s := works(c, f.Controller)
	s.Until("the statistics 1 failed, 1 passed, though no mark can be written", func(context.Context) error {
		p := read()
		if meta.IsStatusConditionTrue(p.Status.Conditions, "Enforced") {
			c.Mistake("done too early", "no Enforced=True, because the API server refuses the mark with 500", "the conditions "+asJSON(p.Status.Conditions))
		}
		if p.Status.Statistics == nil || failing.Struck() == 0 {
			return errors.New("the status is " + asJSON(p.Status))
		}
		if want := (v1alpha1.PodStatistics{Failed: 1, Passed: 1}); p.Status.Statistics.Pods != want {
			return errors.New("the statistics are " + asJSON(p.Status.Statistics))
		}
		// They are written together with the rest.
		if p.Status.ObservedGeneration != 0 {
			c.Mistake("generation observed too early", "observedGeneration 0, because the API server refuses the mark with 500", fmt.Sprintf("observedGeneration %d", p.Status.ObservedGeneration))
		}
		if !meta.IsStatusConditionFalse(p.Status.Conditions, "Compliant") || meta.FindStatusCondition(p.Status.Conditions, "Enforced") != nil {
			c.Fail("Compliant=False, and no Enforced, because the API server refuses the mark with 500", "the conditions "+asJSON(p.Status.Conditions))
		}
		return nil
	})
	failing.Remove()
	generations := func(p *v1alpha1.HealthCheckPolicy) {
		for _, condition := range p.Status.Conditions {
			if condition.Type != "Audited" && condition.ObservedGeneration != p.Generation {
				c.Mistake("condition without generation", fmt.Sprintf("observedGeneration %d in the condition %s", p.Generation, condition.Type), asJSON(condition))
			}
		}
	}
	s.Until("Compliant=False/ProbesMissing, Enforced=True/Done, and observedGeneration 1", func(context.Context) error {
		p := read()
		done := meta.FindStatusCondition(p.Status.Conditions, "Enforced")
		if done == nil || done.Status != metav1.ConditionTrue {
			return errors.New("the status is " + asJSON(p.Status))
		}
		if p.Status.ObservedGeneration != p.Generation {
			c.Mistake("generation not observed", fmt.Sprintf("observedGeneration %d, with Enforced=True", p.Generation), fmt.Sprintf("observedGeneration %d", p.Status.ObservedGeneration))
		}
		generations(p)
		return counted(1, 1)(p)
	})
	s.observes(f, "example")
	generations(read())

	s.Until("Compliant=True/AllPassed of the policy beacon, whose only pod passes", func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, beacon, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return errors.Join(counted(0, 1)(p), done(p))
	})
	s.Until("Compliant=True/AllPassed of the policy empty, which selects no pod", func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, "empty", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return counted(0, 0)(p)
	})
	s.Until("Enforced=False/NotEvictable of the policy strict, because nobody would replace its pod", func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, "strict", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return hindered("NotEvictable", "NotEvictable: 1 pod")(p)
	})

	// Nothing changes.
	since := func(p *v1alpha1.HealthCheckPolicy) string {
		var all []string
		for _, condition := range p.Status.Conditions {
			all = append(all, fmt.Sprintf("%s=%s since %s", condition.Type, condition.Status, condition.LastTransitionTime.Format(time.TimeOnly)))
		}
		return strings.Join(all, ", ")
	}
	s.looked(f) // the events of its own writes have come
	// Times are as exact as a second, so let all of this be true for longer.
	age := func() *v1alpha1.HealthCheckPolicy {
		var long []string
		for i := range read().Status.Conditions {
			long = append(long, fmt.Sprintf(`{"op":"replace","path":"/status/conditions/%d/lastTransitionTime","value":"2020-01-01T00:00:00Z"}`, i))
		}
		aged, err := f.policies.Patch(c.Context(), "example", types.JSONPatchType, []byte("["+strings.Join(long, ",")+"]"), metav1.PatchOptions{}, "status")
		c.Must(err)
		return aged
	}
	before := age()
	s.looked(f)
	after := read()
	switch {
	case since(after) != since(before):
		c.Mistake("transition time moves", since(before), since(after))
	case after.ResourceVersion != before.ResourceVersion:
		c.Mistake("written without a change", "no write of the status while nothing changes", "first "+asJSON(before.Status.Conditions)+"\nthen "+asJSON(after.Status.Conditions))
	}
	f.pod("c", withProbes)
	s.Until("the statistics 1 failed, 2 passed", func(context.Context) error { return counted(1, 2)(read()) })
	after = read()
	if since(after) != since(before) {
		c.Mistake("transition time moves", since(before), since(after))
	}
	condition := func(p *v1alpha1.HealthCheckPolicy, kind string) metav1.Condition {
		return ptr.Deref(meta.FindStatusCondition(p.Status.Conditions, kind), metav1.Condition{})
	}
	failsBecauseOf := condition(after, "Compliant").Message

	// The pod that fails ends, and keeps its mark.
	f.phase("a", corev1.PodSucceeded)
	s.Until("the statistics 0 failed, 2 passed", func(context.Context) error { return counted(0, 2)(read()) })
	after = read()
	if was, is := condition(before, "Compliant").LastTransitionTime, condition(after, "Compliant").LastTransitionTime; is.Equal(&was) {
		c.Mistake("transition time stays", "a new lastTransitionTime of Compliant, which was False and is True", since(after))
	}

	// Another one fails, whose mark is forbidden at first, and then refused.
	answers := func(code int) *faultproxy.Injection {
		return f.Proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: code, Times: -1})
	}
	forbidden := answers(http.StatusForbidden)
	f.pod("d", withoutProbes)
	s.Until("the statistics 1 failed, 2 passed, and Enforced=False/Forbidden, because the API server refuses the mark of d with 403", func(context.Context) error {
		p := read()
		return errors.Join(counted(1, 2)(p), hindered("Forbidden", "Forbidden: 1 pod")(p))
	})
	if now := condition(read(), "Compliant").Message; now != failsBecauseOf {
		c.Mistake("written without a change", "the same message of Compliant, because the counts are the same again", fmt.Sprintf("first %q\nthen %q", failsBecauseOf, now))
	}
	before = age()
	refused := answers(http.StatusBadRequest)
	forbidden.Remove()
	again := func() { // A new generation is tried at once. It takes back the mark of the pod that has ended.
		slices.Reverse(before.Spec.RequiredProbes)
		f.change("example", `{"spec":{"requiredProbes":`+asJSON(before.Spec.RequiredProbes)+`}}`)
	}
	again()
	s.Until("Enforced=False/Refused, because the API server refuses the marks of d and a with 400", func(context.Context) error {
		p := read()
		if err := hindered("Refused", "Refused: ")(p); err != nil {
			return fmt.Errorf("%w in %s", err, asJSON(p.Status))
		}
		return nil
	})
	after = read()
	if since(after) != since(before) {
		c.Mistake("transition time moves", since(before), since(after))
	}
	if after.Status.ObservedGeneration != before.Generation {
		c.Mistake("generation observed too early", fmt.Sprintf("observedGeneration %d, because a pod that has ended still carries its mark", before.Generation), fmt.Sprintf("observedGeneration %d", after.Status.ObservedGeneration))
	}

	// Nobody knows how far the action has come, but what was known of these pods stays.
	failing = answers(http.StatusInternalServerError)
	refused.Remove()
	again()
	s.Until("a further try to write a mark", func(context.Context) error {
		if failing.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	s.looked(f)
	if now := read(); asJSON(condition(now, "Enforced")) != asJSON(condition(after, "Enforced")) {
		c.Fail("the same Enforced as before the API server refused the marks with 500: "+asJSON(condition(after, "Enforced")), "the conditions "+asJSON(now.Status.Conditions))
	}
	unknown := func(failed int32) {
		s.Until(fmt.Sprintf("the statistics %d failed, 2 passed, and no Enforced, because the API server refuses a mark with 500", failed), func(context.Context) error {
			p := read()
			if meta.FindStatusCondition(p.Status.Conditions, "Enforced") != nil {
				return errors.New("the status is " + asJSON(p.Status))
			}
			return counted(failed, 2)(p)
		})
	}
	f.pod("e", withoutProbes)
	unknown(2)
	failing.Remove()
	s.observes(f, "example")
	s.Until("Enforced=True/Done", func(context.Context) error { return done(read()) })
	answers(http.StatusInternalServerError)
	f.pod("f", withoutProbes)
	unknown(3)
}

// checkTakeBack deletes policies whose marks cannot be taken back, or not be seen.
func checkTakeBack(c *check.C) {
	f := policyTestOf(c.T, c.Env, c.Program())
	f.Command.Args = append(f.Command.Args, oneWorker...)
	f.beacon()
	labels := func(name string) { f.policy(name, specOf("label", selecting("app="+name))) }
	s := works(c, f.Controller)
	marked := func(pod string) func(context.Context) error {
		return func(ctx context.Context) error {
			if found, err := f.marked(ctx, "lacks"); err != nil || found[pod] == "" {
				return errors.Join(err, fmt.Errorf("pod %s has no mark", pod))
			}
			return nil
		}
	}
	// gone says whether a policy is gone, and fails the check if a mark is left then.
	gone := func(mistake, policy, pod string) bool {
		if f.isGone(c.Context(), policy) != nil {
			return false
		}
		if marked(pod)(c.Context()) == nil {
			expected, held := "no mark is left when the policy "+policy+" is gone", "the policy is gone, and pod "+pod+" carries its mark"
			if mistake == "" {
				c.Fail(expected, held)
			}
			c.Mistake(mistake, expected, held)
		}
		return true
	}
	// leaves waits until a policy is gone.
	leaves := func(mistake, policy, pod string) {
		s.Until("the policy "+policy+" goes, after its marks", func(ctx context.Context) error {
			if gone(mistake, policy, pod) {
				return nil
			}
			return errors.Join(errors.New("the policy is still there"), marked(pod)(ctx))
		})
	}
	for _, name := range []string{"failing", "relabelled", "finished", "forced", "late", "held", "lost"} {
		f.pod(name, withoutProbes, labelled("app", name))
	}
	f.pod("leaving", withoutProbes, labelled("app", "leaving"), f.held())
	before := []string{"failing", "relabelled", "finished", "forced", "late", "leaving"}
	for _, name := range before {
		labels(name)
	}
	for _, name := range before {
		s.Until("a mark on pod "+name, marked(name))
	}

	// The mark cannot be taken back.
	failing := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods", Name: "failing"}, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	f.remove("failing")
	s.Until("a try to take back the mark of a policy that is being deleted", func(ctx context.Context) error {
		if !gone("finalizer first", "failing", "failing") && failing.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	s.looked(f)
	gone("finalizer first", "failing", "failing")
	// Nor is it allowed, which is no error: the controller tries again after a pause.
	forbidden := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods", Name: "failing"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	failing.Remove()
	s.looksAt(f, "failing")
	s.Until("a further try to take back the mark", func(context.Context) error {
		if !gone("finalizer first", "failing", "failing") && forbidden.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	s.looked(f)
	gone("finalizer first", "failing", "failing")
	forbidden.Remove()
	s.Until("no mark on the pod of a policy that is being deleted", func(ctx context.Context) error {
		gone("finalizer first", "failing", "failing")
		if marked("failing")(ctx) == nil {
			return errors.New("pod failing still carries its mark")
		}
		return nil
	})
	for looks := 0; !gone("finalizer first", "failing", "failing"); looks++ {
		if looks == 3 {
			c.Mistake("finalizer kept", "the policy goes when no pod carries its mark", "the policy still has its finalizer, after three more looks")
		}
		s.seesPods(f)
		s.looksAt(f, "failing")
	}

	// A finished pod keeps its mark, and so does one whose policy stands still while its labels change.
	f.phase("finished", corev1.PodSucceeded)
	f.phase("relabelled", corev1.PodSucceeded)
	f.edit("relabelled", `{"metadata":{"labels":{"app":"other"}}}`)
	s.seesPods(f)
	for _, tc := range []struct{ name, mistake string }{{"finished", ""}, {"relabelled", "only the selected pods"}} {
		// Once the policy is gone, the controller may find the mark all the same. So what counts is the moment before.
		var early atomic.Bool
		f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "healthcheckpolicies", Name: tc.name}, Times: -1,
			Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
				if marked(tc.name)(ctx) == nil {
					early.Store(true)
				}
				return nil
			}})
		f.remove(tc.name)
		leaves(tc.mistake, tc.name, tc.name)
		if early.Load() {
			expected, held := "no mark is left when the policy "+tc.name+" is gone", "pod "+tc.name+" carried its mark when the finalizer was removed"
			if tc.mistake == "" {
				c.Fail(expected, held)
			}
			c.Mistake(tc.mistake, expected, held)
		}
	}

	// Somebody else holds a pod that is being deleted.
	c.Must(f.pods.Delete(c.Context(), "leaving", metav1.DeleteOptions{}))
	s.seesPods(f)
	f.remove("leaving")
	s.Until("the policy leaving goes, though its pod, which is being deleted, is still there", func(ctx context.Context) error { return f.isGone(ctx, "leaving") })

	// Somebody removes the finalizer by force, which the controller sees when the policy is gone.
	unseen := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold, Times: -1})
	f.change("forced", `{"metadata":{"finalizers":null}}`)
	f.remove("forced")
	unseen.Remove()
	s.Until("no mark on the pod of a policy whose finalizer somebody has removed", func(ctx context.Context) error {
		if marked("forced")(ctx) == nil {
			return errors.New("the policy is gone, and pod forced carries its mark")
		}
		return nil
	})

	// The cache does not show the mark yet.
	held := f.Proxy.MustInject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold, Times: -1})
	labels("held")
	s.Until("a mark on pod held", marked("held"))
	f.remove("held")
	for range 2 { // in the first look, its last write to the policy may not have come
		s.looksAt(f, "held")
	}
	gone("old cache believed", "held", "held")
	held.Remove()
	leaves("old cache believed", "held", "held")

	// Nor does it show one whose answer was lost.
	held = f.Proxy.MustInject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold, Times: -1})
	lost := f.Proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Lose})
	stalled := f.Proxy.MustInject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Stall, Times: -1, After: 1})
	labels("lost")
	s.Until("a second try after an answer that was lost", func(context.Context) error {
		if lost.Struck() == 0 || stalled.Struck() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	lists := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "list", Resource: "pods"}, Fault: faultproxy.Answer, Code: http.StatusInternalServerError})
	f.remove("lost")
	stalled.Remove()
	if err := s.Within(check.Patience(20*time.Second), func(context.Context) error {
		if f.isGone(c.Context(), "lost") != nil && lists.Struck() == 0 {
			return errors.New("the policy is still there, and the API server was not asked for the pods")
		}
		return nil
	}); err != nil {
		c.Fail("the policy lost goes, after its marks", err.Error())
	}
	s.looked(f)
	if lists.Struck() > 0 { // for whoever does not ask, the answer has no part in it
		gone("", "lost", "lost")
	}
	lists.Remove()
	leaves("lost answer forgotten", "lost", "lost")
	held.Remove()

	// A write of the process before is carried out late, when the new one has filled its caches.
	f.deletePod("late")
	late := f.pod("late", withoutProbes, labelled("app", "none"))
	s.Kill()
	s = works(c, f.Controller)
	held = f.Proxy.MustInject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold, Times: -1})
	policy, err := f.policies.Get(c.Context(), "late", metav1.GetOptions{})
	c.Must(err)
	_, err = f.pods.Apply(c.Context(), applycorev1.Pod("late", c.Namespace).WithUID(late.UID).WithLabels(map[string]string{"lacks": "true"}),
		metav1.ApplyOptions{FieldManager: "healthcheckpolicy-" + string(policy.UID)})
	c.Must(err)
	f.remove("late")
	for range 2 {
		s.looksAt(f, "late")
	}
	gone("restart forgotten", "late", "late")
	held.Remove()
	leaves("restart forgotten", "late", "late")
}

// checkFindTheBugs makes the cases in which each bug shows, side by side.
func checkFindTheBugs(c *check.C) {
	program := c.Program()
	f := icecreamTestOf(c.T, c.Env, program)
	s := controllertest.Runs(c, f.Controller)
	if err := s.Within(check.Patience(time.Minute), func(context.Context) error {
		for _, resource := range []string{"icecreams", "deployments"} {
			if watches := f.requests("watch*", resource); len(watches) == 0 || watches[0].Events == 0 {
				return fmt.Errorf("no watch of %s has come yet; the program has said at last:\n%s", resource, s.Log())
			}
		}
		return nil
	}); err != nil {
		c.Fail("a controller that watches Icecreams and Deployments", err.Error())
	}
	s.Kill()
	t, ok := c.T.(*testing.T)
	if !ok {
		c.T.Fatalf("%T cannot run tests", c.T)
	}
	found, slipped := make([]error, len(bugs)), make([]error, len(slips))
	if !t.Run("bugs", func(t *testing.T) {
		for i, bug := range bugs {
			t.Run(bug.name, func(t *testing.T) {
				t.Parallel()
				found[i] = bug.check(examine(t, testenv.New(t), program, ""))
			})
		}
		for i, slip := range slips {
			t.Run(slip.expected, func(t *testing.T) {
				t.Parallel()
				slipped[i] = slip.check(examine(t, testenv.New(t), program, ""))
			})
		}
	}) {
		t.FailNow()
	}
	for i, bug := range bugs {
		switch { // what a check finds may also come of something else
		case found[i] == nil:
		case strings.Contains(found[i].Error(), bug.says):
			c.Mistake(bug.name, "a controller that does not have this bug", found[i].Error())
		default:
			c.Fail("a controller with which one can see whether "+bug.name, found[i].Error())
		}
	}
	for i, slip := range slips {
		switch {
		case slipped[i] == nil:
		case slip.name == "":
			c.Fail(slip.expected, slipped[i].Error())
		default:
			c.Mistake(slip.name, slip.expected, slipped[i].Error())
		}
	}
}
