package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// A change is a write that a pod needs.
type change struct {
	pod  *pod
	mine *mark // what the policy has on it; nil for nothing
	wish wish  // what it should have
}

func (ch change) puts() bool { return ch.wish != wishNone }

// atOnce is how many requests one policy has under way at the same time.
const atOnce = 8

// protect puts the finalizer on the policy, so that it cannot go before its
// marks. It returns the changes that may be carried out: without the finalizer
// no mark is put.
func (c *Controller) protect(ctx context.Context, p *pass, changes []change) []change {
	if !p.marks || slices.Contains(p.policy.Finalizers, v1alpha1.TakeBackFinalizer) {
		return changes
	}
	o := &p.memory.finalizer
	if !time.Now().Before(o.until) {
		policy, err := c.patchFinalizers(ctx, p.policy, true)
		switch answer := answerOf(err); answer {
		case accepted:
			*o = obstacle{}
			c.wrotePolicy(p, policy, "finalizer", "pods are about to be marked")
			return changes
		case forbidden, refused:
			p.finalizerRefused(answer, err)
		default:
			p.errs = append(p.errs, err)
			return slices.DeleteFunc(changes, change.puts)
		}
	}
	for _, ch := range changes {
		if ch.puts() {
			p.add(o.reason, ch.pod, o.message)
		}
	}
	p.lookAgain(time.Until(o.until))
	return slices.DeleteFunc(changes, change.puts)
}

// mark carries out the changes, and returns how many the API server has accepted. Each pod
// stands for itself: what happens to one holds up no other.
func (c *Controller) mark(ctx context.Context, p *pass, changes []change) (accepted int) {
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.pod.Name, b.pod.Name) })
	changes = slices.DeleteFunc(changes, func(ch change) bool {
		o, known := p.memory.obstacleOf(marking(ch.pod))
		if known = known && time.Now().Before(o.until); known {
			p.waits(ch.pod, o, 0)
		}
		return known
	})
	results := make([]result, len(changes))
	errs := loop.Parallel(ctx, atOnce, len(changes), func(i int) (err error) {
		results[i], err = c.apply(ctx, p.memory.uid, changes[i])
		return err
	})
	var marked, takenBack []*pod
	for i, ch := range changes {
		r := results[i]
		if r.conflict { // the event of the pod's next change will come sooner
			p.waits(ch.pod, p.memory.remember(marking(ch.pod), v1alpha1.ReasonKeyConflict, "", time.Now(), 0), 0)
		}
		if mayBeDone(errs[i]) {
			c.writes.Record(p.key, c.pods, "")
		}
		if !p.went(errs[i], marking(ch.pod)) {
			if r.version != "" { // the first of its two writes went well
				c.writes.Record(p.key, c.pods, r.version)
			}
			continue
		}
		if r.conflict && r.version == "" {
			continue
		}
		accepted++
		if !r.conflict {
			delete(p.memory.obstacles, marking(ch.pod).key)
		}
		if r.version == "" || r.version == ch.pod.ResourceVersion {
			continue // an apply that changes nothing is no write
		}
		c.writes.Record(p.key, c.pods, r.version)
		if r.marked {
			marked = append(marked, ch.pod)
			c.loop.Wrote(p.key, "mark", "pod "+ch.pod.Name+" lacks a probe")
		} else {
			takenBack = append(takenBack, ch.pod)
			c.loop.Wrote(p.key, "take back", "pod "+ch.pod.Name)
		}
	}
	if len(marked) > 0 {
		c.event(p, marked, corev1.EventTypeNormal, "Marked", "Mark", "The pod lacks "+markText(marked[0], required(p.policy.Spec.RequiredProbes)))
	}
	if len(takenBack) > 0 {
		c.event(p, takenBack, corev1.EventTypeNormal, "TakenBack", "TakeBack", "The pod no longer carries the mark")
	}
	return accepted
}

// A result is what a change has led to.
type result struct {
	version  string // of the pod after the last write; empty if there was none
	marked   bool
	conflict bool // somebody else has the key
}

// apply carries out one change.
func (c *Controller) apply(ctx context.Context, policy types.UID, ch change) (r result, err error) {
	now, err := c.applyMark(ctx, policy, ch.pod, ch.wish)
	switch r.conflict = answerOf(err) == keyConflict; {
	case r.conflict && ch.mine == nil:
		return r, nil
	case r.conflict: // give up the own claim: perhaps the other policies wait for just that
	case err == nil && ch.puts() && now.finished: // which the cache did not show: a finished pod would keep the mark
	default:
		return result{version: now.ResourceVersion, marked: ch.puts()}, err
	}
	first := now.ResourceVersion // if there was a first write
	now, err = c.applyMark(ctx, policy, ch.pod, wishNone)
	r.version = cmp.Or(now.ResourceVersion, first)
	return r, err
}

// wrotePolicy notes a change of the policy that the API server has accepted.
func (c *Controller) wrotePolicy(p *pass, policy *v1alpha1.HealthCheckPolicy, what, reason string) {
	p.policy = policy
	c.writes.Record(p.key, c.policies, policy.ResourceVersion)
	c.loop.Wrote(p.key, what, reason)
}

// leave takes back every mark of a policy that is being deleted, and then lets it go.
//
// That no pod carries a mark must be certain. The cache is good enough if it has
// reached this process's last write. After a restart, and after a write that got
// no answer, nobody knows which write was the last one: then the API server is asked.
func (c *Controller) leave(ctx context.Context, p *pass) {
	if c.writes.Behind(p.key) && !c.writes.Lost(p.key, c.pods) {
		p.lookAgain(firstWait) // the event of the write that is missing will come sooner
		return
	}
	held := slices.Contains(p.policy.Finalizers, v1alpha1.TakeBackFinalizer)
	if o := p.memory.finalizer; held && time.Now().Before(o.until) {
		p.heldBy(o)
		return
	}
	marked, err := c.marked(p)
	if held && !c.writes.Certain(p.key, c.pods) {
		marked, err = c.markedLive(ctx, p)
	}
	if err != nil {
		p.hindered(err)
		return
	}
	var changes []change
	for _, pod := range marked {
		if !pod.deleting { // a pod that goes takes its mark with it
			changes = append(changes, change{pod, pod.markOf(p.memory.uid), wishNone})
		}
	}
	if c.mark(ctx, p, changes) > 0 {
		p.lookAgain(firstWait) // the events of these writes will come sooner
	} else if held && len(changes) == 0 {
		c.letGo(ctx, p)
	}
}

// letGo removes the finalizer. That cannot be undone, so it looks at the live policy.
func (c *Controller) letGo(ctx context.Context, p *pass) {
	live, err := c.livePolicy(ctx, p.key)
	switch {
	case err != nil:
	case live.UID != p.memory.uid || live.DeletionTimestamp == nil:
		err = loop.ErrStale
	case slices.Contains(live.Finalizers, v1alpha1.TakeBackFinalizer):
		if live, err = c.patchFinalizers(ctx, live, false); err == nil {
			c.wrotePolicy(p, live, "finalizer", "no pod carries a mark")
		}
	}
	if apierrors.IsNotFound(err) {
		err = loop.ErrStale // it may have gone before, by a write whose answer was lost; then the cache will show it
	}
	if err != nil {
		p.hindered(err)
	}
}

// hindered notes an error about the policy itself. If it will stay, the status says so, and the next
// try has to wait, also for the event of that status.
func (p *pass) hindered(err error) {
	if answer := answerOf(err); answer == forbidden || answer == refused {
		p.heldBy(p.finalizerRefused(answer, err))
		return
	}
	p.errs = append(p.errs, err)
}

// heldBy says what keeps the policy from going, and when that is tried again.
func (p *pass) heldBy(o obstacle) {
	p.add(o.reason, nil, o.message)
	p.lookAgain(time.Until(o.until))
}

// markedLive asks the API server which pods carry a policy's mark.
func (c *Controller) markedLive(ctx context.Context, p *pass) (marked []*pod, err error) {
	for page := (metav1.ListOptions{Limit: 500, TimeoutSeconds: ptr.To(int64(loop.Deadline.Seconds()))}); ; {
		list, err := c.core.Pods(p.key.Namespace).List(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("listing the pods that carry a mark: %w", err)
		}
		for i := range list.Items {
			if pod := reduce(&list.Items[i]); pod.markOf(p.memory.uid) != nil {
				marked = append(marked, pod)
			}
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return marked, nil
		}
	}
}

// gone cleans up after a policy that is in the cache no more. Its finalizer makes
// sure that no mark is left, unless somebody has removed it by force.
func (c *Controller) gone(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	known, _ := c.memories.Load(key)
	m, ok := known.(*memory)
	if !ok {
		return 0, nil
	}
	p := &pass{key: key, memory: m, now: c.clock.Now()}
	c.cleanUp(ctx, p)
	if c.leftNothing(ctx, p, m) && len(m.earlier) == 0 {
		c.memories.Delete(key)
		c.writes.Forget(key)
	}
	return p.result()
}

// cleanUp takes back what earlier policies of the name have left: this one was made again
// before that was done.
func (c *Controller) cleanUp(ctx context.Context, p *pass) {
	p.memory.earlier = slices.DeleteFunc(p.memory.earlier, func(m *memory) bool { return c.leftNothing(ctx, p, m) })
}

// leftNothing takes back the marks of a policy that is not there any more, and reports
// whether none is left. If not, the key comes back.
func (c *Controller) leftNothing(ctx context.Context, p *pass, m *memory) bool {
	old := &pass{key: p.key, policy: &v1alpha1.HealthCheckPolicy{}, memory: m, now: p.now}
	c.loop.Phase(p.key, "leave")
	c.leave(ctx, old)
	again, err := old.result()
	if again > 0 {
		p.lookAgain(again)
	}
	if err != nil {
		p.errs = append(p.errs, err)
	}
	return again == 0 && err == nil
}
