package controller

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// evict evicts at most one of the pods that fail, and finds out what holds the others.
//
// Three guards keep an eviction from being wrong. The policy and the pod are read
// live and judged again. The status write that comes first carries the policy's
// resourceVersion, so it fails if the policy has changed since. The eviction
// carries the pod's UID and resourceVersion, so it fails if the pod has.
func (c *Controller) evict(ctx context.Context, p *pass) {
	var candidates []*pod
	slices.SortFunc(p.failed, byAge)
	for _, pod := range p.failed {
		if pod.mirror || !pod.controlled { // nobody would replace it, or deleting it would not stop it
			p.add(v1alpha1.ReasonNotEvictable, "")
		} else {
			candidates = append(candidates, pod)
		}
	}
	asked := map[*pod]bool{}
	left := p.memory.brake(p.policy, p.now)
	if left <= 0 {
		candidates, left = c.evictFirst(ctx, p, candidates, asked)
	}

	// The condition names what holds each of the others.
	var unasked []*pod
	for _, pod := range candidates {
		if _, known := p.memory.obstacleOf(pod, p.now); !known && !asked[pod] {
			unasked = append(unasked, pod)
		}
	}
	errs := make([]error, len(unasked))
	workqueue.ParallelizeUntil(ctx, atOnce, len(unasked), func(i int) { errs[i] = c.postEviction(ctx, unasked[i], metav1.DryRunAll) })
	for i, pod := range unasked {
		c.noteAnswer(p, pod, errs[i])
	}
	for _, pod := range candidates {
		o, known := p.memory.obstacleOf(pod, p.now)
		switch {
		case !known: // an error, which is in p.errs, or the pod is gone
		case o.reason == "":
			p.add(v1alpha1.ReasonThrottled, "")
			p.lookAgain(p.now.Add(max(left, firstWait)))
		default:
			p.add(o.reason, o.message)
			p.lookAgain(o.until)
		}
	}
}

// evictFirst tries the candidates in order until one is evicted. It returns the
// others, and how long the brake holds from now on.
func (c *Controller) evictFirst(ctx context.Context, p *pass, candidates []*pod, asked map[*pod]bool) ([]*pod, time.Duration) {
	for i, pod := range candidates {
		if o, known := p.memory.obstacleOf(pod, p.now); known && (o.reason != "" || o.strict) {
			continue
		}
		asked[pod] = true
		c.noteAnswer(p, pod, c.postEviction(ctx, pod, metav1.DryRunAll))
		if o, known := p.memory.obstacleOf(pod, p.now); !known || o.reason != "" {
			continue
		}
		if !c.evictOne(ctx, p, pod) {
			return candidates, p.memory.brake(p.policy, p.now)
		}
		// An eviction uses up a budget, so what is known about the other pods is out of date.
		for _, other := range candidates {
			if o, ok := p.memory.obstacles[other.UID]; ok && !o.strict {
				delete(p.memory.obstacles, other.UID)
				delete(asked, other)
			}
		}
		p.failed = slices.DeleteFunc(p.failed, pod.is)
		return slices.Delete(candidates, i, i+1), p.memory.brake(p.policy, p.now)
	}
	return candidates, 0
}

// noteAnswer remembers what the API server says to a request that leads to the eviction of a pod.
func (c *Controller) noteAnswer(p *pass, pod *pod, err error) {
	switch answer := answerOf(err); answer {
	case accepted:
		p.memory.remember(pod, p.now, "", "", 0)
	case budgetAnswer, forbidden, refused:
		message := ""
		if answer != budgetAnswer {
			message = serverMessage(err)
		}
		p.memory.remember(pod, p.now, answer.reason(), message, loop.RetryAfter(err))
	case podGone:
		p.stale = true
	default:
		p.errs = append(p.errs, err)
	}
}

// evictOne evicts a pod whose dry run went well, and reports whether it did.
func (c *Controller) evictOne(ctx context.Context, p *pass, cached *pod) bool {
	policy, err := c.livePolicy(ctx, p.key)
	if err != nil {
		c.noteAnswer(p, cached, err)
		return false
	}
	live, err := c.livePod(ctx, cached.Namespace, cached.Name)
	if err != nil {
		c.noteAnswer(p, cached, err)
		return false
	}
	if policy.UID != p.memory.uid || live.UID != cached.UID || !kills(policy, reduce(live)) || p.memory.brake(policy, p.now) > 0 {
		p.stale = true
		return false
	}

	stamp := stampOf(c.clock.Now())
	policy.Status.LastEvictionTime = &metav1.Time{Time: stamp}
	written, err := c.putStatus(ctx, policy)
	if err != nil {
		p.errs, p.unwritable = append(p.errs, err), true
		return false
	}
	c.wrotePolicy(p, written, "status", "pod "+cached.Name+" is about to be evicted")

	p.memory.unused = time.Time{} // the last try, which was refused, may have had the same second
	err = c.postEviction(ctx, live)
	p.now = c.clock.Now() // all that may have taken its time
	switch answer := answerOf(err); answer {
	case accepted:
		p.memory.evicted[cached.UID], p.memory.agreed = true, p.now
		c.loop.Wrote(p.key, "eviction", "pod "+cached.Name+" lacks a probe")
		c.event(p, cached, "Evicted", "Evict", "The pod lacks "+markText(cached, required(policy.Spec.RequiredProbes)))
		return true
	case unclear: // perhaps it was done: the time counts
		p.memory.agreed = p.now
		p.errs = append(p.errs, err)
		return false
	case podGone: // or it has changed
		p.memory.unused, p.stale = stamp, true
		return false
	case later:
		p.memory.unused, p.errs = stamp, append(p.errs, err)
		return false
	default:
		p.memory.unused = stamp
		c.noteAnswer(p, cached, err)
		return false
	}
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

// brake returns how long a policy has to wait before its next eviction.
func (m *memory) brake(policy *v1alpha1.HealthCheckPolicy, now time.Time) time.Duration {
	var last time.Time
	if written := policy.Status.LastEvictionTime; written != nil && !written.Time.Equal(m.unused) {
		last = written.Time
	}
	if last.After(now.Add(time.Second)) {
		// The clock was set back. Waiting until then could take years.
		if !last.Equal(m.future) {
			m.future, m.futureSeen = last, now
		}
		last = m.futureSeen
	}
	// The status was written before the eviction was sent, which the server may
	// have carried out much later. What this process knows also counts if somebody
	// has removed the time from the status.
	if m.agreed.After(now) {
		m.agreed = now // here, too, the clock was set back
	}
	if m.agreed.After(last) {
		last = m.agreed
	}
	return max(0, last.Add(interval(policy)).Sub(now))
}

func interval(policy *v1alpha1.HealthCheckPolicy) time.Duration {
	if seconds := policy.Spec.Eviction.MinIntervalSeconds; seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return 10 * time.Second
}
