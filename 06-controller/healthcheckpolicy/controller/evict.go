package controller

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// maxAsked is how many pods the API server is asked about while the brake holds.
// The others wait in any case, so their number costs no requests. In one pass, as many
// answers that say nothing are enough.
const maxAsked = 4

// evict evicts at most one of the pods that fail, and finds out what holds the
// others. It reports whether the pass may go on.
//
// Three guards keep an eviction from being wrong. The policy and the pod are read
// live and judged again. The status write that comes first carries the policy's
// resourceVersion, so it fails if the policy has changed since. The eviction
// carries the pod's UID and resourceVersion, so it fails if the pod has.
func (c *Controller) evict(ctx context.Context, p *pass) (goOn bool) {
	budgets, err := c.budgetsIn(p.key.Namespace)
	if err != nil {
		p.errs = append(p.errs, err)
		return true
	}
	brake := &p.memory.brake
	left := brake.wait(p.policy, p.now, time.Now())
	slices.SortFunc(p.failed, byAge)
	usedUp := map[types.UID]bool{} // budgets that have refused in the state that the cache shows: somebody else has used them
	failed := slices.Clone(p.failed)
	if i := slices.IndexFunc(failed, func(pod *pod) bool { return pod.UID == brake.stopped }); i >= 0 {
		failed = slices.Concat(failed[i+1:], failed[:i+1]) // it holds up no other
	}
	if left == 0 {
		brake.stopped = "" // till then, the passes that only wait remember it
	}
	unsure := 0 // answers that say nothing
	for _, pod := range failed {
		if pod.mirror || !pod.controlled { // nobody would replace it, or deleting it would not stop it
			p.add(v1alpha1.ReasonNotEvictable, pod, "")
			continue
		}
		own := budgetsOf(pod, budgets)
		costs := len(own) == 1 && !own[0].spares(pod)
		if len(own) > 1 || costs && (usedUp[own[0].UID] || !own[0].allows(pod, brake.used)) { // the API server refuses it under two budgets
			p.add(v1alpha1.ReasonDisruptionBudget, pod, "") // the budget's next event says when to look again
			continue
		}
		request := evicting(pod, own...)
		o, known := p.memory.obstacleOf(request)
		held := known && (left > 0 || time.Now().Before(o.until))
		switch {
		case held:
			p.waits(pod, o, left)
		case left == 0 || len(brake.asked) < maxAsked && !brake.asked[pod.UID]:
			if left > 0 {
				brake.asked[pod.UID] = true
			}
			err := c.postEviction(ctx, pod, metav1.DryRunAll)
			held = !p.went(err, request)
			if answerOf(err) == tryAgain {
				if unsure++; unsure == maxAsked || isBusy(err) {
					brake.stopped = pod.UID
					return true
				}
			}
			if err == nil && left > 0 { // no eviction follows now; if it were refused, its wait would have to go on growing
				delete(p.memory.obstacles, request.key)
			}
		}
		if held {
			if o, refused := p.memory.obstacleOf(request); refused && costs && o.reason == v1alpha1.ReasonDisruptionBudget {
				usedUp[own[0].UID] = true
			}
			continue
		}
		if left == 0 {
			evicted, err := c.evictOne(ctx, p, pod, own)
			if err != nil {
				p.errs = append(p.errs, err)
				return false
			}
			if brake.stopped == pod.UID {
				return true
			}
			left = max(brake.wait(p.policy, c.clock.Now(), time.Now()), firstWait)
			if evicted {
				p.failed = slices.DeleteFunc(p.failed, pod.is)
				continue
			}
			if _, refused := p.memory.obstacleOf(request); refused {
				continue
			}
		}
		if known := p.memory.obstacles[request.key]; left > 0 && (known.reason == v1alpha1.ReasonForbidden || known.reason == v1alpha1.ReasonRefused) {
			p.add(known.reason, pod, known.message) // the pod has changed since, and the server is not asked again before the interval is over
		} else {
			p.add(v1alpha1.ReasonThrottled, pod, "")
		}
		p.lookAgain(left)
	}
	return true
}

// isBusy reports whether the API server has asked to be left alone, or has not answered at all: it
// would be the same for the next pod. Any other answer may be that of a webhook to one pod.
func isBusy(err error) bool {
	var status apierrors.APIStatus
	return loop.RetryAfter(err) > 0 || !errors.As(err, &status) || status.Status().Code == http.StatusTooManyRequests
}

// evictOne evicts a pod whose dry run went well, and reports whether it did. An error
// means that the status could not be written, so nothing more should be tried.
func (c *Controller) evictOne(ctx context.Context, p *pass, cached *pod, budgets []budget) (evicted bool, err error) {
	request := evicting(cached, budgets...)
	brake := &p.memory.brake
	went := func(err error) bool {
		if answerOf(err) == tryAgain {
			brake.stopped = cached.UID
		}
		return p.went(err, request)
	}
	policy, err := c.livePolicy(ctx, p.key)
	if !went(err) {
		return false, nil
	}
	live, err := c.core.Pods(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	if !went(err) {
		return false, nil
	}
	if policy.UID != p.memory.uid || policy.Generation != p.policy.Generation || live.UID != cached.UID || !kills(policy, reduce(live)) || brake.wait(policy, c.clock.Now(), time.Now()) > 0 {
		p.errs = append(p.errs, loop.ErrStale)
		return false, nil
	}

	began := time.Now()
	stamp := stampOf(c.clock.Now().Add(brake.delay))
	policy.Status.LastEvictionTime = &metav1.Time{Time: stamp}
	written, err := c.policyClient.HealthCheckPolicies(policy.Namespace).UpdateStatus(ctx, policy, metav1.UpdateOptions{})
	if err != nil {
		return false, err
	}
	c.wrotePolicy(p, written, "status", "pod "+cached.Name+" is about to be evicted")
	if took := time.Since(began); took > brake.delay+time.Second {
		// The next process would count the interval from a time that is long over. So the next try writes a later one.
		brake.delay, brake.ignored = took, stamp
		p.errs = append(p.errs, loop.ErrStale)
		return false, nil
	}
	brake.delay = 0

	brake.ignored = time.Time{} // the last try, which was refused, may have had the same second
	err = c.postEviction(ctx, live)
	if err == nil || mayBeDone(err) {
		brake.last = time.Now()
		clear(brake.asked)
	} else {
		brake.ignored = stamp
	}
	if !went(err) {
		return false, nil
	}
	p.memory.evicted[cached.UID] = true
	if len(budgets) == 1 && !budgets[0].spares(reduce(live)) {
		brake.used = budgets[0].PodDisruptionBudget
	}
	c.loop.Wrote(p.key, "eviction", "pod "+cached.Name+" lacks a probe")
	c.event(p, []*pod{cached}, corev1.EventTypeNormal, "Evicted", "Evict", "The pod lacks "+markText(cached, required(policy.Spec.RequiredProbes)))
	return true, nil
}

// kills reports whether a policy evicts a pod, both as they are now.
func kills(policy *v1alpha1.HealthCheckPolicy, p *pod) bool {
	selector, err := selectorOf(policy)
	return err == nil && policy.DeletionTimestamp == nil && policy.Spec.Action == v1alpha1.ActionKill &&
		selector.Matches(podLabels(p)) && p.counts() && p.controlled && !p.mirror && p.fails(required(policy.Spec.RequiredProbes))
}

// stampOf rounds up to the second, which is as exact as a time in a status can be.
// Rounded down, two evictions could come closer to each other than the policy allows.
func stampOf(now time.Time) time.Time {
	stamp := now.Truncate(time.Second)
	if stamp.Before(now) {
		stamp = stamp.Add(time.Second)
	}
	return stamp
}

// A brake holds up the evictions of a policy.
type brake struct {
	last    time.Time // when the API server has last agreed to an eviction, or may have; on the process's own clock
	ignored time.Time // a lastEvictionTime that does not count: its eviction was refused, or it lies in the future

	delay   time.Duration                 // what the status write took, if that was long
	asked   map[types.UID]bool            // pods, at most maxAsked, while the brake has held since the last eviction
	used    *policyv1.PodDisruptionBudget // by the last eviction, in the state before that
	stopped types.UID                     // of the pod at which the last pass ended, because the server could not say
}

// wait returns how long a policy has to wait before its next eviction. The interval
// has to pass on two clocks, because either can be wrong: on the wall clock, after the
// time in the status, which outlives this process; and on the process's own clock,
// which nobody sets, after what this process has done.
func (b *brake) wait(policy *v1alpha1.HealthCheckPolicy, wall, own time.Time) time.Duration {
	interval := interval(policy)
	var left time.Duration
	if written := policy.Status.LastEvictionTime; written != nil && !written.Time.Equal(b.ignored) {
		if written.After(wall.Add(time.Second)) {
			// The clock was set back. Waiting until then could take years, so it counts as now.
			b.ignored, b.last = written.Time, own
		} else {
			left = written.Add(interval).Sub(wall)
		}
	}
	// The status was written before the eviction was sent, which the server may have
	// carried out much later. And somebody may have removed the time from the status.
	if !b.last.IsZero() {
		left = max(left, b.last.Add(interval).Sub(own))
	}
	return max(0, left)
}

func interval(policy *v1alpha1.HealthCheckPolicy) time.Duration {
	if seconds := policy.Spec.Eviction.MinIntervalSeconds; seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return 10 * time.Second
}
