package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1listers "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedpolicy "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
	policylisters "github.com/k8s-go/workshop/05-crd-go/pkg/generated/listers/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Controller brings pods and statuses to what HealthCheckPolicies say.
//
// Three informers fill three caches, of policies, pods and PodDisruptionBudgets. Their handlers find the policies that a change
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
	core         *typedcorev1.CoreV1Client
	policyClient *typedpolicy.PolicyV1alpha1Client
	recorder     events.EventRecorder
	clock        clock.PassiveClock // of the times in a status

	lister   policylisters.HealthCheckPolicyLister
	policies cache.Indexer // the same cache as the lister's, for its indexes
	pods     cache.Indexer // of *pod, see pod.go
	budgets  policyv1listers.PodDisruptionBudgetLister

	factories []loop.Informers
	loop      *loop.Loop
	writes    loop.Writes
	memories  sync.Map // of *memory, by the key of the policy
}

// Clients are the connections of a controller to the API server.
type Clients struct {
	Core     kubernetes.Interface
	Policies versioned.Interface
	Recorder events.EventRecorder
}

// New connects informers, indexes and handlers. Nothing happens before Run.
func New(clients Clients, namespace string, resync time.Duration, clock clock.PassiveClock, options loop.Options) (*Controller, error) {
	if err := loop.CheckFlags(namespace, resync); err != nil {
		return nil, err
	}
	podFactory := informers.NewSharedInformerFactoryWithOptions(clients.Core, resync, informers.WithNamespace(namespace), informers.WithTransform(transform))
	policyFactory := externalversions.NewSharedInformerFactoryWithOptions(clients.Policies, resync,
		externalversions.WithNamespace(namespace), externalversions.WithTransform(stripManagedFields))
	pods := podFactory.Core().V1().Pods().Informer()
	policies := policyFactory.Policy().V1alpha1().HealthCheckPolicies()
	budgets := podFactory.Policy().V1().PodDisruptionBudgets()

	c := &Controller{
		core:         typedcorev1.New(loop.Once(clients.Core.CoreV1().RESTClient())),
		policyClient: typedpolicy.New(loop.Once(clients.Policies.PolicyV1alpha1().RESTClient())),
		recorder:     clients.Recorder, clock: clock,
		lister: policies.Lister(), policies: policies.Informer().GetIndexer(), pods: pods.GetIndexer(), budgets: budgets.Lister(),
		factories: []loop.Informers{podFactory, policyFactory},
	}
	c.loop = loop.New("healthcheckpolicy", c.reconcile, options)
	return c, errors.Join(
		pods.AddIndexers(podIndexers),
		policies.Informer().AddIndexers(policyIndexers),
		c.loop.Watch(policies.Informer(), handler("policy", c.policyChanged)),
		c.loop.Watch(pods, handler("pod", c.podChanged)),
		c.loop.Watch(budgets.Informer(), handler("budget", c.budgetChanged)),
	)
}

// handler calls a function with what has happened, and the states that are known of
// the object, the newest last. A resync comes as an update, too.
func handler(kind string, changed func(what string, states ...any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(kind+" added", obj) },
		UpdateFunc: func(old, obj any) { changed(kind+" updated", old, obj) },
		DeleteFunc: func(obj any) { changed(kind+" deleted", obj) },
	}
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

func (c *Controller) policyChanged(what string, states ...any) {
	key, err := cache.DeletionHandlingObjectToName(states[0])
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
	onlyKill := len(states) == 2 && states[0].same(states[1])
	if onlyKill && states[0].sameToBudgets(states[1]) {
		return // most changes of pods concern nobody here
	}
	c.loop.Event(what, states[0].key())
	keys, err := c.concerned(onlyKill, states...)
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
	now    time.Time // for the status

	invalidSelector error
	failed          []*pod // of the pods that count ...
	passed          int    // ... and how many do not fail
	marks           bool   // after this pass pods carry the mark

	outcome                    // why not everything could be done
	keepObserved bool          // a finished pod still carries its mark, so the policy's change has not been carried out
	errs         []error       // the next try, which follows soon, may go better
	again        time.Duration // when to look again without an event; zero for never
}

// reconcile brings the pods of one policy, and its status, to what they should be.
func (c *Controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	c.loop.Phase(key, "read")
	behind := c.writes.Behind(key) // asked before the cache is read, which may catch up in between
	policy, err := c.lister.HealthCheckPolicies(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, key)
	} else if err != nil {
		return 0, fmt.Errorf("reading the policy from the cache: %w", err)
	}
	p := &pass{key: key, policy: policy, memory: c.memoryOf(key, policy), now: c.clock.Now()}
	c.cleanUp(ctx, p)

	if policy.DeletionTimestamp != nil {
		c.loop.Phase(key, "leave")
		c.leave(ctx, p)
		c.loop.Phase(key, "report")
		c.report(ctx, p)
		return p.result()
	}

	c.loop.Phase(key, "catch up")
	if behind {
		return firstWait, loop.ErrBehind // the event of the write that is missing will come sooner
	}

	c.loop.Phase(key, "judge")
	changes, err := c.judge(p)
	if err != nil {
		return 0, err
	}

	c.loop.Phase(key, "protect")
	changes = c.protect(ctx, p, changes)

	c.loop.Phase(key, "mark")
	if accepted := c.mark(ctx, p, changes); accepted > 0 && policy.Spec.Action == v1alpha1.ActionKill {
		p.lookAgain(firstWait) // an eviction names the pod's resourceVersion, which has just changed; the event will come sooner
		return p.result()
	}

	if policy.Spec.Action == v1alpha1.ActionKill && p.invalidSelector == nil {
		c.loop.Phase(key, "evict")
		if !c.evict(ctx, p) {
			return p.result()
		}
	}

	c.loop.Phase(key, "report")
	c.report(ctx, p)
	return p.result()
}

// judge finds the pods that the policy is about, and what has to change on them.
func (c *Controller) judge(p *pass) ([]change, error) {
	policy := p.policy
	selector, invalid := selectorOf(policy)
	if invalid != nil {
		p.invalidSelector = invalid
		return nil, nil // no pod is written until somebody has repaired it
	}
	selected, err := c.selected(p.key.Namespace, selector)
	if err != nil {
		return nil, err
	}
	marked, err := c.marked(p)
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
			p.add(v1alpha1.ReasonKeyConflict, pod, "")
			w = wishNone
		}
		if write {
			changes = append(changes, change{pod, mine, w})
		}
		p.marks = p.marks || w != wishNone
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
		case pod.finished && policy.Generation <= policy.Status.ObservedGeneration:
			p.marks = true // finished pods keep the mark until the policy changes
		case pod.finished, !selector.Matches(podLabels(pod)):
			need(pod, wishNone)
		}
	}
	return changes, nil
}

// result is what reconcile returns.
func (p *pass) result() (time.Duration, error) { return p.again, errors.Join(p.errs...) }

// lookAgain makes sure that the policy is looked at again after d, or before.
func (p *pass) lookAgain(d time.Duration) {
	if d = max(d, time.Millisecond); p.again == 0 || d < p.again {
		p.again = d
	}
}

// went reports whether a request about a pod has gone well. If not, it notes what
// follows from that: the key comes back, or the pod waits.
func (p *pass) went(err error, r request) bool {
	switch answer := answerOf(err); answer {
	case accepted:
		return true
	case podGone:
		p.errs = append(p.errs, loop.ErrStale)
	case tryAgain:
		p.errs = append(p.errs, err)
	default:
		message := ""
		if answer != budgetAnswer {
			message = serverMessage(err)
		}
		p.waits(r.pod, p.memory.remember(r, answer.reason(), message, time.Now(), loop.RetryAfter(err)), 0)
	}
	return false
}

// waits counts a pod that is not tried again while an obstacle is there, nor within a time.
func (p *pass) waits(pod *pod, o obstacle, within time.Duration) {
	p.add(o.reason, pod, o.message)
	p.lookAgain(max(time.Until(o.until), within))
	p.keepObserved = p.keepObserved || pod.finished
}

// eventBurst is how many Events about a policy may follow each other closely;
// later ones have to wait five minutes each, as with client-go's older recorder.
const eventBurst = 25

// event records one Event about what a policy has done to pods, related to the first
// of them. It says how many others there are, with those that the limit has left out.
func (c *Controller) event(p *pass, pods []*pod, kind, reason, action, note string) {
	m := p.memory
	if !m.events.TryAccept() {
		m.unsaid[reason] += max(1, len(pods))
		return
	}
	more := m.unsaid[reason]
	delete(m.unsaid, reason)
	var related runtime.Object
	if len(pods) > 0 {
		first := pods[0]
		more += len(pods) - 1
		related = &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: first.Namespace, Name: first.Name, UID: first.UID}
	}
	count := ""
	if more > 0 {
		count = fmt.Sprintf(" (and %d more)", more)
	}
	// Without a resourceVersion, by which two Events about the same thing would not be seen to be the same.
	policy := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.HealthCheckPolicyKind.Kind,
		Namespace: p.key.Namespace, Name: p.key.Name, UID: m.uid}
	c.recorder.Eventf(policy, related, kind, reason, action, "%s%s", loop.Cut(note, loop.MaxNote-len(count)), count)
}
