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

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
)

// withoutGuards builds the controller so that the environment variable WITHOUT
// names a guard that it then does not have. It is built once for all guards.
var withoutGuards = []testenv.ProgramOption{
	testenv.AddFile("controller/without.go", `package controller

import "os"

func without(guard string) bool { return os.Getenv("WITHOUT") == guard }
`),
	testenv.Replace("controller/requests.go", `apply := applycorev1.Pod(p.Name, p.Namespace).WithUID(p.UID)`,
		`apply := applycorev1.Pod(p.Name, p.Namespace)
	if !without("uid") {
		apply.WithUID(p.UID)
	}`),
	testenv.Replace("controller/requests.go", `&metav1.PatchOptions{FieldManager: manager(policy)}`,
		`&metav1.PatchOptions{FieldManager: manager(policy), Force: map[bool]*bool{true: new(true)}[without("respect for conflicts")]}`),
	testenv.Replace("controller/judge.go", `if present && !equal && !owned {`, `if present && !equal && !owned && !without("respect for conflicts") {`),
	testenv.Replace("controller/marks.go", `if ch.mine != nil { // give up`, `if ch.mine != nil && !without("giving up the claim") { // give up`),
	testenv.Replace("controller/requests.go", `Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}`,
		`Preconditions: map[bool]*metav1.Preconditions{false: {UID: &uid, ResourceVersion: &version}}[without("preconditions")]}`),
	testenv.Replace("controller/evict.go", `if policy.UID != p.memory.uid ||`, `if !without("live check") && (policy.UID != p.memory.uid ||`),
	testenv.Replace("controller/evict.go", `p.memory.brake(policy, p.now) > 0 {`, `p.memory.brake(policy, p.now) > 0) {`),
	testenv.Replace("controller/evict.go", `return max(0, last.Add(interval(policy)).Sub(now))`, `if without("brake") {
		return 0
	}
	return max(0, last.Add(interval(policy)).Sub(now))`),
	testenv.Replace("controller/evict.go", `if last.After(now.Add(time.Second)) {`, `if last.After(now.Add(time.Second)) && !without("clock check") {`),
	testenv.Replace("controller/evict.go", `c.noteAnswer(p, pod, c.postEviction(ctx, pod, metav1.DryRunAll))`, `if without("dry run") {
			p.memory.remember(pod, p.now, "", "", 0)
		} else {
			c.noteAnswer(p, pod, c.postEviction(ctx, pod, metav1.DryRunAll))
		}`),
	testenv.Replace("controller/status.go", `if equality.Semantic.DeepEqual(*status, p.policy.Status) {`,
		`if equality.Semantic.DeepEqual(*status, p.policy.Status) && !without("no-op check of the status") {`),
	testenv.Replace("controller/judge.go", `return !(alone && equal), false`, `return !(alone && equal) || without("no-op check of the marks"), false`),
	testenv.Replace("controller/controller.go", `if !c.caughtUp(p) {`, `if !c.caughtUp(p) && !without("catching up") {`),
	testenv.Replace("controller/marks.go", `if !p.holds || slices`, `if without("finalizer") || !p.holds || slices`),
	testenv.Replace("controller/marks.go", `case known && !reached(`, `case known && !without("certainty") && !reached(`),
	testenv.Replace("controller/marks.go", `case held && !known:`, `case held && !known && !without("live list"):`),
	testenv.Replace("controller/requests.go", `return r.MaxRetries(0).`, `return r.MaxRetries(map[bool]int{true: 10}[without("single requests")]).`),
	testenv.Replace("controller/controller.go", `case pod.finished && policy.Generation == policy.Status.ObservedGeneration:`,
		`case pod.finished && policy.Generation == policy.Status.ObservedGeneration && !without("mercy for finished pods"):`),
}

// Each guard is there for a case. A scenario returns an error if that case went
// wrong. With the guard it must not; without it, it must, or nothing would
// notice if the guard were lost.
func TestGuards(t *testing.T) {
	t.Parallel()
	for guard, scenario := range map[string]func(*ward) error{
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
				w := openWard(t)
				w.command.Args = append(w.command.Args, "-resync", "1s")
				w.patience = time.Minute
				if removed {
					w.patience = 6 * time.Second // what the guard ensures will not come
					w.command.Path = w.Program("./06-controller/healthcheckpolicy", withoutGuards...)
					w.command.Env = []string{"WITHOUT=" + guard}
				}
				switch err := scenario(w); {
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
func (w *ward) within(timeout time.Duration, f func(context.Context) error) error {
	return poll.Until(w.Context(), 50*time.Millisecond, timeout, f)
}

// A pod was replaced by a good one of the same name, and the cache does not know it yet.
func replacedPodIsNotMarked(w *ward) error {
	w.start()
	w.pod("a", ill)
	w.pod("b", ill, labelled("app", "db"))
	w.policy("other", specOf("label", withKey("other")))
	w.expect("other", counted(2, 0)) // the pods are in the cache
	held := w.inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	w.dismiss("a")
	w.pod("a", healthy)
	w.struck(held, 1)
	example := w.policy("example", specOf("label"))
	var marks map[string]string
	err := w.within(time.Minute, func(ctx context.Context) (err error) {
		// First whether a was tried to its end, then what came of it.
		tried := slices.ContainsFunc(w.requests(faultproxy.Match{Verb: "patch", Resource: "pods", Name: "a"}),
			func(r faultproxy.Request) bool { return r.Code != 0 && strings.Contains(r.Query, string(example.UID)) })
		if marks, err = w.marked(ctx, "lacks"); err == nil && marks["b"] == "" {
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

func usersKeyStays(w *ward) error {
	w.pod("a", ill, labelled("lacks", "patience"))
	w.policy("example", specOf("label"))
	w.start()
	w.expect("example", counted(1, 0))
	return w.hasMarks(w.Context(), map[string]string{"a": "patience"})
}

func policiesConverge(w *ward) error {
	w.start()
	w.pod("a", ill)
	w.policy("first", specOf("annotate"))
	w.policy("second", specOf("annotate"))
	w.expect("first", done)
	w.expect("second", done)
	for _, name := range []string{"first", "second"} {
		w.change(name, `{"spec":{"requiredProbes":["startup"]}}`)
	}
	return w.within(w.patience, func(ctx context.Context) error {
		return w.hasMarks(ctx, map[string]string{"a": "annotation web: startup"})
	})
}

func changedPodIsNotEvicted(w *ward) error {
	w.start()
	w.pod("a", ill, w.controlled())
	i := w.inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
		w.edit("a", `{"metadata":{"labels":{"app":"db"}}}`)
		return nil
	}})
	w.policy("example", specOf("kill", selecting("app=web"), every(3600)))
	w.struck(i, 1)
	w.Eventually(time.Minute, func(context.Context) error {
		if w.proxy.Open(evictions) > 0 {
			return errors.New("the eviction has no answer yet")
		}
		return nil
	})
	w.expect("example", counted(0, 0), done)
	if n := len(w.evicted()); n > 0 {
		return fmt.Errorf("%d evictions of a pod that was no longer selected", n)
	}
	return nil
}

func changedPolicyDoesNotEvict(w *ward) error {
	delivered := deliveries(w.t, w.proxy)
	w.start()
	w.policy("example", specOf("kill", every(3600)))
	p := w.expect("example", counted(0, 0), done)
	w.Eventually(time.Minute, func(context.Context) error { return delivered(p.ResourceVersion) })
	held := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	w.change("example", `{"spec":{"action":"label"}}`)
	w.struck(held, 1)
	w.pod("a", ill, w.controlled())
	err := w.within(time.Minute, func(context.Context) error {
		if len(w.requests(faultproxy.Match{Verb: "get", Resource: "pods"})) < 2 && len(w.evicted()) == 0 {
			return errors.New("it has not looked yet")
		}
		return nil
	})
	held.Remove()
	if n := len(w.evicted()); err == nil && n > 0 {
		err = fmt.Errorf("%d evictions for a policy that labels", n)
	}
	return err
}

func evictionsKeepTheInterval(w *ward) error {
	owned := w.controlled()
	w.pod("a", ill, owned)
	w.pod("b", ill, owned)
	w.policy("example", specOf("kill", every(3600)))
	w.start()
	_ = w.within(time.Minute, func(context.Context) error {
		if len(w.evicted()) == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	w.resyncs(2)
	if n := len(w.evicted()); n != 1 {
		return fmt.Errorf("%d evictions in the hour", n)
	}
	return nil
}

func clockSetBackDoesNotStopEvictions(w *ward) error {
	w.pod("a", ill, w.controlled())
	p := w.policy("example", specOf("kill", every(1)))
	p.Status.LastEvictionTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
	if _, err := w.policies.UpdateStatus(w.Context(), p, metav1.UpdateOptions{}); err != nil {
		return err
	}
	w.start()
	return w.within(w.patience, func(context.Context) error {
		if len(w.evicted()) == 0 {
			return errors.New("no eviction")
		}
		return nil
	})
}

func budgetLeavesNoEvictionTime(w *ward) error {
	w.pod("a", ill, w.controlled(), labelled("app", "guarded"))
	w.phase("a", corev1.PodRunning)
	w.budget("budget", 1)
	w.policy("example", specOf("kill", every(3600)))
	w.start()
	return neverEvicted(w.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod")))
}

func nothingIsWrittenAtAResync(w *ward) error {
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	w.start()
	w.expect("example", counted(1, 0), done)
	before := len(w.writes())
	w.resyncs(3)
	if more := w.writes()[before:]; len(more) > 0 {
		return fmt.Errorf("written without a change:\n%s", strings.Join(more, "\n"))
	}
	return nil
}

// The events of the own writes are late.
func nothingIsWrittenTwice(w *ward) error {
	w.start()
	w.policy("example", specOf("label"))
	w.expect("example", counted(0, 0), done)
	// That the pod is scheduled is its first modification, and the mark is a later one.
	w.inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Delay, Event: "MODIFIED", Delay: 6 * time.Second})
	w.pod("a", ill)
	w.expect("example", counted(1, 0), done)
	w.change("example", `{"metadata":{"annotations":{"x":"y"}}}`) // an event, while the cache of pods is behind
	w.resyncs(3)
	if n := len(w.requests(markWrites)); n != 1 {
		return fmt.Errorf("a was marked %d times", n)
	}
	return nil
}

func policyWaitsForItsController(w *ward) error {
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	w.start()
	w.expect("example", counted(1, 0), done)
	w.kill()
	w.remove("example")
	w.start()
	return w.within(w.patience, func(ctx context.Context) error {
		return errors.Join(w.hasMarks(ctx, nil), w.isGone(ctx, "example"))
	})
}

// The cache does not show the mark yet when the policy is deleted.
func finalizerWaitsForTheCache(w *ward) error {
	w.start()
	w.pod("a", ill, labelled("app", "db"))
	w.pod("first", ill)
	w.policy("example", specOf("label", selecting("app=web")))
	w.expect("example", counted(1, 0), done)
	w.dismiss("first")
	w.expect("example", counted(0, 0), done)
	held := w.inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	w.change("example", `{"spec":{"selector":{"matchLabels":{"app":"db"}}}}`)
	w.expectMarks(map[string]string{"a": "true"})
	w.remove("example")
	w.struck(held, 1)
	early := w.within(6*time.Second, func(ctx context.Context) error { return w.isGone(ctx, "example") }) == nil
	held.Remove()
	if early {
		return fmt.Errorf("the policy is gone, marks are left: %w", w.hasMarks(w.Context(), nil))
	}
	return w.within(w.patience, func(ctx context.Context) error {
		return errors.Join(w.isGone(ctx, "example"), w.hasMarks(ctx, nil))
	})
}

// The answer to the mark is lost, and so is its event for a while.
func finalizerWaitsForALostAnswer(w *ward) error {
	w.start()
	w.policy("other", specOf("annotate", withKey("other")))
	w.pod("a", ill)
	w.expect("other", counted(1, 0), done)
	held := w.inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	lost := w.inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Lose})
	stalled := w.inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Stall, Times: -1, After: 1})
	w.policy("example", specOf("label"))
	w.struck(lost, 1)
	w.struck(stalled, 1)
	w.remove("example")
	stalled.Remove()
	w.struck(held, 1)
	err := w.within(time.Minute, func(ctx context.Context) error { return w.isGone(ctx, "example") })
	err = errors.Join(err, w.hasMarks(w.Context(), nil)) // as long as the cache is held: later it would show the mark, which would be taken back
	held.Remove()
	return err
}

func evictionIsNotRepeatedBlindly(w *ward) error {
	w.start()
	w.pod("a", ill, w.controlled())
	i := w.inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 429, RetryAfter: time.Second})
	w.policy("example", specOf("kill", every(1)))
	w.struck(i, 1)
	if err := w.within(time.Minute, func(context.Context) error {
		if len(w.evicted()) == 0 {
			return errors.New("no eviction")
		}
		return nil
	}); err != nil {
		return err
	}
	writes := w.writes()
	for i, line := range writes {
		if strings.Contains(line, "pods/eviction") && !strings.Contains(writes[i-1], "healthcheckpolicies/status") {
			return fmt.Errorf("an eviction without a status write before it:\n%s", strings.Join(writes, "\n"))
		}
	}
	return nil
}

func finishedPodKeepsItsMark(w *ward) error {
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	w.start()
	w.expect("example", counted(1, 0), done)
	w.phase("a", corev1.PodSucceeded)
	w.expect("example", counted(0, 0), done)
	w.resyncs(2)
	return w.hasMarks(w.Context(), map[string]string{"a": "true"})
}
