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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/workqueue"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
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
	if !p.holds || slices.Contains(p.policy.Finalizers, v1alpha1.TakeBackFinalizer) {
		return changes
	}
	policy, err := c.patchFinalizers(ctx, p.policy, true)
	switch answer := answerOf(err); answer {
	case accepted:
		c.wrotePolicy(p, policy, "finalizer", "pods are about to be marked")
		return changes
	case forbidden, refused:
		for _, ch := range changes {
			if ch.puts() {
				p.add(answer.reason(), serverMessage(err))
			}
		}
		p.lookAgain(p.now.Add(maxWait))
	default:
		p.errs = append(p.errs, err)
	}
	return slices.DeleteFunc(changes, change.puts)
}

// mark carries out the changes. Each pod stands for itself: what happens to one
// holds up no other.
func (c *Controller) mark(ctx context.Context, p *pass, changes []change) {
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.pod.Name, b.pod.Name) })
	results := make([]applied, len(changes))
	workqueue.ParallelizeUntil(ctx, atOnce, len(changes), func(i int) { results[i] = c.apply(ctx, p, changes[i]) })
	for i, r := range results {
		ch := changes[i]
		if !r.done {
			r.err = cmp.Or(ctx.Err(), context.Canceled) // cut off before its turn
		}
		if r.conflict {
			p.add(v1alpha1.ReasonKeyConflict, "")
			p.lookAgain(p.now.Add(firstWait)) // the event of the pod's next change will come sooner
		}
		if r.waits || r.err != nil {
			p.keepObserved = p.keepObserved || ch.pod.finished
		}
		switch answer := answerOf(r.err); {
		case r.waits:
			p.add(r.obstacle.reason, r.obstacle.message)
			p.lookAgain(r.obstacle.until)
		case answer == accepted:
			if r.version != "" && r.version != ch.pod.ResourceVersion { // an apply that changes nothing is no write
				c.wroteMark(p, ch, r)
			}
		case answer == podGone:
			p.stale = true
		case answer == forbidden, answer == refused:
			message := serverMessage(r.err)
			p.add(answer.reason(), message)
			p.lookAgain(p.memory.remember(ch.pod, p.now, answer.reason(), message, 0))
		default:
			p.memory.unsure = p.memory.unsure || answer == unclear
			p.errs = append(p.errs, r.err)
		}
	}
}

// applied is what has become of one change.
type applied struct {
	done     bool
	version  string // the pod's resourceVersion after the write
	conflict bool
	waits    bool // not tried again yet, because of the obstacle
	obstacle obstacle
	err      error
}

func (c *Controller) apply(ctx context.Context, p *pass, ch change) applied {
	r := applied{done: true}
	if r.obstacle, r.waits = p.memory.obstacleOf(ch.pod, p.now); r.waits {
		return r
	}
	r.version, r.err = c.applyMark(ctx, p.memory.uid, ch.pod, ch.wish)
	if answerOf(r.err) == keyConflict {
		r.conflict, r.err = true, nil
		if ch.mine != nil { // give up the own claim: perhaps the other policies wait for just that
			r.version, r.err = c.applyMark(ctx, p.memory.uid, ch.pod, wishNone)
		}
	}
	return r
}

// wroteMark notes a change of a mark that the API server has accepted.
func (c *Controller) wroteMark(p *pass, ch change, r applied) {
	p.memory.wrotePod(r.version)
	delete(p.memory.obstacles, ch.pod.UID)
	if ch.puts() && !r.conflict {
		c.event(p, ch.pod, "Marked", "Mark", "The pod lacks "+markText(ch.pod, required(p.policy.Spec.RequiredProbes)))
		c.loop.Wrote(p.key, "mark", "pod "+ch.pod.Name+" lacks a probe")
		return
	}
	c.event(p, ch.pod, "TakenBack", "TakeBack", "The pod no longer carries the mark")
	c.loop.Wrote(p.key, "take back", "pod "+ch.pod.Name)
}

// wrotePolicy notes a change of the policy that the API server has accepted.
func (c *Controller) wrotePolicy(p *pass, policy *v1alpha1.HealthCheckPolicy, what, reason string) {
	p.policy, p.memory.policyWrite = policy, policy.ResourceVersion
	c.loop.Wrote(p.key, what, reason)
}

// leave takes back every mark of a policy that is being deleted, and then lets it go.
//
// That no pod carries a mark must be certain. The cache is good enough if it has
// reached this process's last write. After a restart, and after a write that got
// no answer, nobody knows which write was the last one: then the API server is asked.
func (c *Controller) leave(ctx context.Context, p *pass) {
	if !p.sawOwnWrite() {
		p.lookAgain(p.now.Add(firstWait)) // the event of that write will come sooner
		return
	}
	held := slices.Contains(p.policy.Finalizers, v1alpha1.TakeBackFinalizer)
	known := p.memory.podWrite != "" && !p.memory.unsure
	var marked []*pod
	var err error
	switch {
	case held && p.memory.released:
		return // the cache shows it still; the answer that let the policy go carried no newer resourceVersion
	case held && !known:
		marked, err = c.markedLive(ctx, p)
	case known && !reached(c.pods.LastStoreSyncResourceVersion(), p.memory.podWrite):
		p.lookAgain(p.now.Add(firstWait)) // the event of that write will come sooner
		return
	default:
		marked, err = c.marked(p.memory.uid)
	}
	if err != nil {
		p.errs = append(p.errs, err)
		return
	}
	var changes []change
	for _, pod := range marked {
		if !pod.deleting { // a pod that goes takes its mark with it
			changes = append(changes, change{pod, pod.markOf(p.memory.uid), wishNone})
		}
	}
	c.mark(ctx, p, changes)
	if len(changes) > 0 {
		p.lookAgain(p.now.Add(firstWait)) // the events of these writes will come sooner
	} else if held {
		c.letGo(ctx, p)
	}
}

// letGo removes the finalizer.
func (c *Controller) letGo(ctx context.Context, p *pass) {
	policy, err := c.patchFinalizers(ctx, p.policy, false)
	if apierrors.IsNotFound(err) {
		return // it was removed before, by a write whose answer was lost
	}
	if err != nil {
		p.errs = append(p.errs, err)
		return
	}
	p.memory.released = true
	c.wrotePolicy(p, policy, "finalizer", "no pod carries a mark")
}

// markedLive asks the API server which pods carry a policy's mark.
func (c *Controller) markedLive(ctx context.Context, p *pass) ([]*pod, error) {
	var marked []*pod
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return c.livePods(ctx, p.key.Namespace, options)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		live, ok := obj.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("a list of pods holds a %T", obj)
		}
		if pod := reduce(live); pod.markOf(p.memory.uid) != nil {
			marked = append(marked, pod)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods that carry a mark: %w", err)
	}
	return marked, nil
}

// gone cleans up after a policy that is in the cache no more. Its finalizer makes
// sure that no mark is left, unless somebody has removed it by force.
func (c *Controller) gone(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	m := c.memories.get(key)
	if m == nil {
		return 0, nil
	}
	m.policyWrite = "" // there will be no event of that write
	p := &pass{key: key, policy: &v1alpha1.HealthCheckPolicy{}, memory: m, now: c.clock.Now()}
	c.loop.Phase(key, "leave")
	c.leave(ctx, p)
	again, err := p.result()
	if again == 0 && err == nil {
		c.memories.forget(key)
	}
	return again, err
}
