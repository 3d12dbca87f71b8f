package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
	policylisters "github.com/k8s-go/workshop/05-crd-go/pkg/generated/listers/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Controller brings pods and statuses to what HealthCheckPolicies say.
//
// Two informers fill two caches. Their handlers find the policies that a change
// concerns and put their keys into the queue of the loop. A worker takes a key
// and calls reconcile, which compares what is with what should be, in phases:
//
//	read       the policy, from the cache
//	leave      only for a policy that is being deleted: take all marks back, then remove the finalizer
//	catch up   do nothing until the caches show this process's own last writes
//	judge      which pods the policy selects, which fail, and what each should carry
//	protect    put the finalizer on the policy before its first mark
//	mark       put marks and take them back
//	evict      only with the action kill: at most one pod
//	report     write the status, if it differs
//
// Every phase can be cut off and begun again by another process: what it needs
// to know is in the API server. So the record of the marks is managedFields of
// the pods, and the brake of the evictions is in the policy's status.
type Controller struct {
	client       kubernetes.Interface
	policyClient versioned.Interface
	recorder     events.EventRecorder
	clock        clock.PassiveClock

	lister   policylisters.HealthCheckPolicyLister
	policies cache.Indexer // the same cache as the lister's, for its indexes
	pods     cache.Indexer // of *pod, see pod.go

	factories []loop.Informers
	loop      *loop.Loop
	memories  memories
}

// Clients are the connections of a controller to the API server.
type Clients struct {
	Core     kubernetes.Interface
	Policies versioned.Interface
	Recorder events.EventRecorder
}

// New connects informers, indexes and handlers. Nothing happens before Run.
func New(clients Clients, namespace string, resync time.Duration, clock clock.PassiveClock, options loop.Options) (*Controller, error) {
	podFactory := informers.NewSharedInformerFactoryWithOptions(clients.Core, resync, informers.WithNamespace(namespace), informers.WithTransform(transform))
	policyFactory := externalversions.NewSharedInformerFactoryWithOptions(clients.Policies, resync,
		externalversions.WithNamespace(namespace), externalversions.WithTransform(stripManagedFields))
	pods := podFactory.Core().V1().Pods().Informer()
	policies := policyFactory.Policy().V1alpha1().HealthCheckPolicies()

	c := &Controller{
		client: clients.Core, policyClient: clients.Policies, recorder: clients.Recorder, clock: clock,
		lister: policies.Lister(), policies: policies.Informer().GetIndexer(), pods: pods.GetIndexer(),
		factories: []loop.Informers{podFactory, policyFactory},
	}
	c.loop = loop.New("healthcheckpolicy", c.reconcile, options)
	return c, errors.Join(
		pods.AddIndexers(podIndexers),
		policies.Informer().AddIndexers(policyIndexers),
		c.loop.Watch(policies.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { c.policyChanged("policy added", obj) },
			UpdateFunc: func(_, obj any) { c.policyChanged("policy updated", obj) }, // a resync comes as an update, too
			DeleteFunc: func(obj any) { c.policyChanged("policy deleted", obj) },
		}),
		c.loop.Watch(pods, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { c.podChanged("pod added", obj) },
			UpdateFunc: func(old, obj any) { c.podChanged("pod updated", old, obj) },
			DeleteFunc: func(obj any) { c.podChanged("pod deleted", obj) },
		}),
	)
}

func stripManagedFields(obj any) (any, error) {
	if policy, ok := obj.(*v1alpha1.HealthCheckPolicy); ok {
		policy.ManagedFields = nil
	}
	return obj, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx, c.factories...) }

// Ready reports whether the caches are filled.
func (c *Controller) Ready() bool { return c.loop.Ready() }

func (c *Controller) policyChanged(what string, obj any) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	c.loop.Event(what, key)
	c.loop.Add(key, what)
}

// podChanged queues the policies that a change of a pod concerns. A pod that has
// stopped matching a selector concerns the policy as well, so the old state counts, too.
func (c *Controller) podChanged(what string, objs ...any) {
	states := make([]*pod, 0, 2)
	for _, obj := range objs {
		p, err := podIn(obj)
		if err != nil {
			utilruntime.HandleError(err)
			return
		}
		states = append(states, p)
	}
	if len(states) == 2 && states[0].same(states[1]) {
		return // most changes of pods concern nobody here
	}
	c.loop.Event(what, states[0].key())
	keys, err := c.concerned(states...)
	if err != nil {
		utilruntime.HandleError(err)
	}
	for key := range keys {
		c.loop.Add(key, what)
	}
}

// A pass is one call of reconcile: what it has found out so far.
type pass struct {
	key    cache.ObjectName
	policy *v1alpha1.HealthCheckPolicy // the newest that is known; read-only, because the cache may share it
	memory *memory
	now    time.Time
	again  time.Time // when to look again without an event; zero for never

	selector        labels.Selector
	invalidSelector error
	failed          []*pod // of the pods that count ...
	passed          int    // ... and how many do not fail
	holds           bool   // after this pass pods carry the mark

	outcome              // why not everything could be done
	errs         []error // what may go better next time
	stale        bool    // the cache holds a pod that is gone, so it is behind
	unwritable   bool    // the status could not be written in this pass
	keepObserved bool    // a finished pod still carries its mark, so the policy's change has not been carried out
}

// reconcile brings the pods of one policy, and its status, to what they should be.
func (c *Controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	c.loop.Phase(key, "read")
	policy, err := c.lister.HealthCheckPolicies(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, key)
	} else if err != nil {
		return 0, fmt.Errorf("reading the policy from the cache: %w", err)
	}
	p := &pass{key: key, policy: policy, memory: c.memories.of(key, policy), now: c.clock.Now()}

	if policy.DeletionTimestamp != nil {
		c.loop.Phase(key, "leave")
		c.leave(ctx, p)
		c.loop.Phase(key, "report")
		c.report(ctx, p)
		return p.result()
	}

	c.loop.Phase(key, "catch up")
	if !c.caughtUp(p) {
		return firstWait, nil // the event of the write that is missing will come sooner
	}

	c.loop.Phase(key, "judge")
	changes, err := c.judge(p)
	if err != nil {
		return 0, err
	}

	c.loop.Phase(key, "protect")
	changes = c.protect(ctx, p, changes)

	c.loop.Phase(key, "mark")
	c.mark(ctx, p, changes)

	if policy.Spec.Action == v1alpha1.ActionKill && p.invalidSelector == nil {
		c.loop.Phase(key, "evict")
		c.evict(ctx, p)
	}

	c.loop.Phase(key, "report")
	c.report(ctx, p)
	return p.result()
}

// caughtUp reports whether the caches show what this process has last written
// because of this policy. Without this, a pass on an old cache would repeat what
// the last one has done.
func (c *Controller) caughtUp(p *pass) bool {
	cached, written := c.pods.LastStoreSyncResourceVersion(), p.memory.podWrite
	return p.sawOwnWrite() && (written == "" || cached == "" || reached(cached, written))
}

// sawOwnWrite reports whether the policy is at least as new as this process's last write to it.
func (p *pass) sawOwnWrite() bool {
	return p.memory.policyWrite == "" || reached(p.policy.ResourceVersion, p.memory.policyWrite)
}

// judge finds the pods that the policy is about, and what has to change on them.
func (c *Controller) judge(p *pass) ([]change, error) {
	policy := p.policy
	p.selector, p.invalidSelector = selectorOf(policy)
	if p.invalidSelector != nil {
		return nil, nil // no pod is written until somebody has repaired it
	}
	selected, err := c.selected(p.key.Namespace, p.selector)
	if err != nil {
		return nil, err
	}
	marked, err := c.marked(policy.UID)
	if err != nil {
		return nil, err
	}
	p.memory.keepOnly(selected, marked)
	required := required(policy.Spec.RequiredProbes)

	var changes []change
	need := func(pod *pod, w wish) {
		mine := pod.markOf(policy.UID)
		write, taken := compare(pod, mine, w)
		if taken {
			p.add(v1alpha1.ReasonKeyConflict, "")
			w = wishNone
		}
		if write {
			changes = append(changes, change{pod, mine, w})
		}
		p.holds = p.holds || w != wishNone
	}
	for _, pod := range selected {
		switch {
		case !pod.counts(), len(p.memory.evicted) > 0 && p.memory.evicted[pod.UID]: // the cache will show in a moment that an evicted pod is being deleted
		case pod.fails(required):
			p.failed = append(p.failed, pod)
			need(pod, wishFor(&policy.Spec, pod, required))
		default:
			p.passed++
			need(pod, wishNone)
		}
	}
	for _, pod := range marked {
		switch {
		case pod.deleting: // left alone
		case pod.finished && policy.Generation == policy.Status.ObservedGeneration:
			p.holds = true // finished pods keep the mark until the policy changes
		case pod.finished, !p.selector.Matches(podLabels(pod)):
			need(pod, wishNone)
		}
	}
	return changes, nil
}

// result is what reconcile returns.
func (p *pass) result() (time.Duration, error) {
	if p.stale {
		p.errs = append(p.errs, loop.ErrStale)
	}
	if err := errors.Join(p.errs...); err != nil {
		return 0, err
	}
	if p.again.IsZero() {
		return 0, nil
	}
	return max(p.again.Sub(p.now), time.Millisecond), nil
}

// lookAgain makes sure that the policy is looked at again at t, or before.
func (p *pass) lookAgain(t time.Time) {
	if p.again.IsZero() || t.Before(p.again) {
		p.again = t
	}
}

// maxNoteBytes is how much the API server takes as the note of an Event.
const maxNoteBytes = 1024

// event records an Event about what a policy has done to a pod.
func (c *Controller) event(p *pass, pod *pod, reason, action, note string) {
	related := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	c.recorder.Eventf(p.reference(), related, corev1.EventTypeNormal, reason, action, "%s", cut(note, maxNoteBytes))
}

// reference is the policy as Events name it: without a resourceVersion, by which
// two Events about the same thing would not be seen to be the same.
func (p *pass) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.HealthCheckPolicyKind.Kind,
		Namespace: p.key.Namespace, Name: p.key.Name, UID: p.memory.uid}
}
