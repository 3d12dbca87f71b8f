package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
)

// policyGuards are the guards of the controller.
var policyGuards = controllertest.Guards{Program: policyProgram, Without: "controller/without.go", Changes: map[string][]testenv.ProgramOption{
	"uid": {testenv.Replace("controller/requests.go", `apply := applycorev1.Pod(p.Name, p.Namespace).WithUID(p.UID)`,
		`apply := applycorev1.Pod(p.Name, p.Namespace)
	if !without("uid") {
		apply.WithUID(p.UID)
	}`)},
	"respect for conflicts": {
		testenv.Replace("controller/requests.go", `metav1.ApplyOptions{FieldManager: manager(policy)}`,
			`metav1.ApplyOptions{FieldManager: manager(policy), Force: without("respect for conflicts")}`),
		testenv.Replace("controller/judge.go", `if present && !equal && !owned {`, `if present && !equal && !owned && !without("respect for conflicts") {`),
	},
	"giving up the claim": {testenv.Replace("controller/marks.go", `case r.conflict && ch.mine == nil:`, `case r.conflict && (ch.mine == nil || without("giving up the claim")):`)},
	"preconditions": {testenv.Replace("controller/requests.go", `Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}`,
		`Preconditions: map[bool]*metav1.Preconditions{false: {UID: &uid, ResourceVersion: &version}}[without("preconditions")]}`)},
	"live check": {
		testenv.Replace("controller/evict.go", `if policy.UID != p.memory.uid ||`, `if !without("live check") && (policy.UID != p.memory.uid ||`),
		testenv.Replace("controller/evict.go", `brake.wait(policy, c.clock.Now(), time.Now()) > 0 {`, `brake.wait(policy, c.clock.Now(), time.Now()) > 0) {`),
	},
	"brake": {testenv.Replace("controller/evict.go", `return max(0, left)`, `if without("brake") {
		return 0
	}
	return max(0, left)`)},
	"clock check": {testenv.Replace("controller/evict.go", `if written.After(wall.Add(time.Second)) {`, `if written.After(wall.Add(time.Second)) && !without("clock check") {`)},
	"dry run": {testenv.Replace("controller/evict.go", `err := c.postEviction(ctx, pod, metav1.DryRunAll)`, `err := error(nil)
			if !without("dry run") {
				err = c.postEviction(ctx, pod, metav1.DryRunAll)
			}`)},
	"no-op check of the status": {testenv.Replace("controller/status.go", `if equality.Semantic.DeepEqual(*status, p.policy.Status) {`,
		`if equality.Semantic.DeepEqual(*status, p.policy.Status) && !without("no-op check of the status") {`)},
	"no-op check of the marks": {testenv.Replace("controller/judge.go", `return !(alone && equal), false`, `return !(alone && equal) || without("no-op check of the marks"), false`)},
	"catching up":              {testenv.Replace("controller/controller.go", `if behind {`, `if behind && !without("catching up") {`)},
	"finalizer":                {testenv.Replace("controller/marks.go", `if !p.marks || slices`, `if without("finalizer") || !p.marks || slices`)},
	"certainty":                {testenv.Replace("controller/marks.go", `if c.writes.Behind(p.key) && `, `if !without("certainty") && c.writes.Behind(p.key) && `)},
	"live list": {testenv.Replace("controller/marks.go", `if held && !c.writes.Certain(p.key, c.pods) {`,
		`if held && !c.writes.Certain(p.key, c.pods) && !without("live list") && !without("certainty") {`)},
	"single requests": {
		testenv.AddFile("controller/once.go", `package controller

import (
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/06-controller/loop"
)

func once(client rest.Interface) rest.Interface {
	if without("single requests") {
		return client
	}
	return loop.Once(client)
}
`),
		testenv.Replace("controller/controller.go", `typedcorev1.New(loop.Once(`, `typedcorev1.New(once(`),
	},
	"mercy for finished pods": {testenv.Replace("controller/controller.go", `case pod.finished && policy.Generation <= policy.Status.ObservedGeneration:`,
		`case pod.finished && policy.Generation <= policy.Status.ObservedGeneration && !without("mercy for finished pods"):`)},
}}

// Each guard is there for a case. A scenario returns an error if that case went
// wrong. With the guard it must not; without it, it must, or nothing would
// notice if the guard were lost.
func TestGuards(t *testing.T) {
	t.Parallel()
	for guard, scenario := range map[string]func(f *policyTest, wait time.Duration) error{
		"uid":                       replacedPodIsNotMarked,
		"respect for conflicts":     usersKeyStays,
		"giving up the claim":       policiesConverge,
		"preconditions":             changedPodIsNotEvicted,
		"live check":                changedPolicyDoesNotEvict,
		"brake":                     evictionsKeepTheInterval,
		"clock check":               clockSetBackDoesNotStopEvictions,
		"dry run":                   budgetLeavesNoEvictionTime,
		"no-op check of the status": nothingIsWrittenAtAResync,
		"no-op check of the marks":  nothingIsWrittenAtAResync,
		"catching up":               nothingIsWrittenTwice,
		"finalizer":                 policyWaitsForItsController,
		"certainty":                 finalizerWaitsForTheCache,
		"live list":                 finalizerWaitsForALostAnswer,
		"single requests":           evictionIsNotRepeatedBlindly,
		"mercy for finished pods":   finishedPodKeepsItsMark,
	} {
		for _, removed := range []bool{false, true} {
			name := guard
			if removed {
				name = "without " + guard
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newPolicyTest(t)
				f.Command.Args = append(f.Command.Args, "-resync", "1s")
				wait := time.Minute
				if removed {
					wait = 6 * time.Second // what the guard ensures will not come
					f.Command.Path = policyGuards.Build(t, f.Env, guard)
					f.Command.Env = []string{controllertest.WithoutEnv + "=" + guard}
				}
				switch err := scenario(f, wait); {
				case err != nil && !removed:
					t.Error(err)
				case err == nil && removed:
					t.Error("nothing went wrong without the guard")
				case err != nil:
					t.Logf("without the guard: %v", err)
				}
			})
		}
	}
}

// within polls like Eventually, but returns the error.
func (f *policyTest) within(timeout time.Duration, check func(context.Context) error) error {
	return poll.Until(f.Context(), 50*time.Millisecond, timeout, check)
}

// looksOn is how long a check looks on: six resyncs, because what a guard keeps away comes
// with one of them; without the guard until it has come, however slowly.
func (f *policyTest) looksOn() time.Duration {
	if slices.ContainsFunc(f.Command.Env, func(v string) bool { return strings.HasPrefix(v, controllertest.WithoutEnv+"=") }) {
		return time.Minute
	}
	return 6 * time.Second
}

// A pod was replaced by a good one of the same name, and the cache does not know it yet.
func replacedPodIsNotMarked(f *policyTest, _ time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes)
	f.pod("b", withoutProbes, labelled("app", "db"))
	f.policy("other", specOf("label", withKey("other")))
	f.expect("other", counted(2, 0)) // the pods are in the cache
	held := f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	f.deletePod("a")
	f.pod("a", withProbes)
	f.Struck(held, 1)
	example := f.policy("example", specOf("label"))
	var marks map[string]string
	err := f.within(time.Minute, func(ctx context.Context) (err error) {
		// First whether a was tried to its end, then what came of it.
		tried := slices.ContainsFunc(f.Proxy.Requests(faultproxy.Match{Verb: "patch", Resource: "pods", Name: "a"}),
			func(r faultproxy.Request) bool { return r.Code != 0 && strings.Contains(r.Query, string(example.UID)) })
		if marks, err = f.marked(ctx, "lacks"); err == nil && marks["b"] == "" {
			err = errors.New("b is not marked yet")
		}
		if err == nil && !tried {
			err = errors.New("a was not tried yet")
		}
		return err
	})
	held.Remove()
	if err == nil && marks["a"] != "" {
		err = errors.New("the good pod is marked")
	}
	return err
}

func usersKeyStays(f *policyTest, _ time.Duration) error {
	f.pod("a", withoutProbes, labelled("lacks", "mine"))
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0))
	return f.hasMarks(f.Context(), map[string]string{"a": "mine"})
}

func policiesConverge(f *policyTest, wait time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes)
	f.policy("first", specOf("annotate"))
	f.policy("second", specOf("annotate"))
	f.expect("first", done)
	f.expect("second", done)
	for _, name := range []string{"first", "second"} {
		f.change(name, `{"spec":{"requiredProbes":["startup"]}}`)
	}
	return f.within(wait, func(ctx context.Context) error {
		return f.hasMarks(ctx, map[string]string{"a": "annotation web: startup"})
	})
}

func changedPodIsNotEvicted(f *policyTest, _ time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes, f.controlled())
	i := f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
		f.edit("a", `{"metadata":{"labels":{"app":"db"}}}`)
		return nil
	}})
	f.policy("example", specOf("kill", selecting("app=web"), every(3600)))
	f.Struck(i, 1)
	f.Eventually(time.Minute, func(context.Context) error {
		for _, r := range f.Proxy.Requests(evictions) {
			if len(r.Faults) > 0 && r.Code != 0 {
				return nil
			}
		}
		return errors.New("the eviction has no answer yet")
	})
	f.expect("example", counted(0, 0), done)
	if n := len(f.evicted()); n > 0 {
		return fmt.Errorf("%d evictions of a pod that was no longer selected", n)
	}
	return nil
}

func changedPolicyDoesNotEvict(f *policyTest, _ time.Duration) error {
	delivered := deliveries(f.T, f.Proxy)
	f.Start()
	f.policy("example", specOf("kill", every(3600)))
	p := f.expect("example", counted(0, 0), done)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(p.ResourceVersion) })
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	f.change("example", `{"spec":{"action":"label"}}`)
	f.Struck(held, 1)
	f.pod("a", withoutProbes, f.controlled())
	err := f.within(time.Minute, func(context.Context) error {
		if len(f.Proxy.Requests(faultproxy.Match{Verb: "get", Resource: "pods"})) < 2 && len(f.evicted()) == 0 {
			return errors.New("it has not looked yet")
		}
		return nil
	})
	held.Remove()
	if n := len(f.evicted()); err == nil && n > 0 {
		err = fmt.Errorf("%d evictions for a policy that labels", n)
	}
	return err
}

func evictionsKeepTheInterval(f *policyTest, _ time.Duration) error {
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	f.policy("example", specOf("kill", every(3600)))
	f.Start()
	_ = f.within(time.Minute, func(context.Context) error {
		if len(f.evicted()) == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	return f.Hold(f.looksOn(), func() error {
		if n := len(f.evicted()); n != 1 {
			return fmt.Errorf("%d evictions in the hour", n)
		}
		return nil
	})
}

func clockSetBackDoesNotStopEvictions(f *policyTest, wait time.Duration) error {
	f.pod("a", withoutProbes, f.controlled())
	p := f.policy("example", specOf("kill", every(1)))
	p.Status.LastEvictionTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
	if _, err := f.policies.UpdateStatus(f.Context(), p, metav1.UpdateOptions{}); err != nil {
		return err
	}
	f.Start()
	return f.within(wait, func(context.Context) error {
		if len(f.evicted()) == 0 {
			return errors.New("no eviction")
		}
		return nil
	})
}

// The cache does not show the budget yet.
func budgetLeavesNoEvictionTime(f *policyTest, _ time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes, f.controlled(), labelled("app", "guarded"))
	f.phase("a", corev1.PodRunning)
	f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "poddisruptionbudgets"}, Fault: faultproxy.Hold, Times: -1})
	f.budget("budget", 1)
	f.policy("example", specOf("kill", every(3600)))
	return neverEvicted(f.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod")))
}

func nothingIsWrittenAtAResync(f *policyTest, _ time.Duration) error {
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0), done)
	before := len(f.Writes())
	return f.Hold(f.looksOn(), func() error {
		if more := f.Writes()[before:]; len(more) > 0 {
			return fmt.Errorf("written without a change:\n%s", strings.Join(more, "\n"))
		}
		return nil
	})
}

// The events of the own writes are late.
func nothingIsWrittenTwice(f *policyTest, _ time.Duration) error {
	f.Start()
	f.policy("example", specOf("label"))
	f.expect("example", counted(0, 0), done)
	// That the pod is scheduled is its first modification, and the mark is a later one.
	f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Delay, Event: "MODIFIED", Delay: 6 * time.Second})
	f.pod("a", withoutProbes)
	f.expect("example", counted(1, 0), done)
	f.change("example", `{"metadata":{"annotations":{"x":"y"}}}`) // an event, while the cache of pods is behind
	return f.Hold(f.looksOn(), func() error {
		if n := len(f.Proxy.Requests(markWrites)); n != 1 {
			return fmt.Errorf("a was marked %d times", n)
		}
		return nil
	})
}

func policyWaitsForItsController(f *policyTest, wait time.Duration) error {
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0), done)
	f.Kill()
	f.remove("example")
	f.Start()
	return f.within(wait, func(ctx context.Context) error {
		return errors.Join(f.hasMarks(ctx, nil), f.isGone(ctx, "example"))
	})
}

// The cache does not show the mark yet when the policy is deleted.
func finalizerWaitsForTheCache(f *policyTest, wait time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes, labelled("app", "db"))
	f.pod("first", withoutProbes)
	f.policy("example", specOf("label", selecting("app=web")))
	f.expect("example", counted(1, 0), done)
	f.deletePod("first")
	f.expect("example", counted(0, 0), done)
	held := f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	f.change("example", `{"spec":{"selector":{"matchLabels":{"app":"db"}}}}`)
	f.expectMarks(map[string]string{"a": "true"})
	f.remove("example")
	f.Struck(held, 1)
	early := f.within(6*time.Second, func(ctx context.Context) error { return f.isGone(ctx, "example") }) == nil
	held.Remove()
	if early {
		return fmt.Errorf("the policy is gone, marks are left: %w", f.hasMarks(f.Context(), nil))
	}
	return f.within(wait, func(ctx context.Context) error {
		return errors.Join(f.isGone(ctx, "example"), f.hasMarks(ctx, nil))
	})
}

// The answer to the mark is lost, and so is its event for a while.
func finalizerWaitsForALostAnswer(f *policyTest, _ time.Duration) error {
	f.Start()
	f.policy("other", specOf("annotate", withKey("other")))
	f.pod("a", withoutProbes)
	f.expect("other", counted(1, 0), done)
	held := f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	lost := f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Lose})
	stalled := f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Stall, Times: -1, After: 1})
	f.policy("example", specOf("label"))
	f.Struck(lost, 1)
	f.Struck(stalled, 1)
	f.remove("example")
	stalled.Remove()
	f.Struck(held, 1)
	err := f.within(time.Minute, func(ctx context.Context) error { return f.isGone(ctx, "example") })
	err = errors.Join(err, f.hasMarks(f.Context(), nil)) // as long as the cache is held: later it would show the mark, which would be taken back
	held.Remove()
	return err
}

func evictionIsNotRepeatedBlindly(f *policyTest, _ time.Duration) error {
	f.Start()
	f.pod("a", withoutProbes, f.controlled())
	i := f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 429, RetryAfter: time.Second})
	f.policy("example", specOf("kill", every(1)))
	f.Struck(i, 1)
	if err := f.within(time.Minute, func(context.Context) error {
		if len(f.evicted()) == 0 {
			return errors.New("no eviction")
		}
		return nil
	}); err != nil {
		return err
	}
	writes := f.Writes()
	for i, line := range writes {
		if strings.Contains(line, "pods/eviction") && !strings.Contains(writes[i-1], "healthcheckpolicies/status") {
			return fmt.Errorf("an eviction without a status write before it:\n%s", strings.Join(writes, "\n"))
		}
	}
	return nil
}

func finishedPodKeepsItsMark(f *policyTest, _ time.Duration) error {
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0), done)
	f.phase("a", corev1.PodSucceeded)
	f.expect("example", counted(0, 0), done)
	return f.Hold(f.looksOn(), func() error { return f.hasMarks(f.Context(), map[string]string{"a": "true"}) })
}
