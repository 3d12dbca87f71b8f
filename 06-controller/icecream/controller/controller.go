package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Manager is the field manager of everything that this controller writes.
const Manager = "icecream-controller"

// patience is how long to wait for a cache that does not show our own write
// yet. The event of that write brings the key back sooner, unless it is lost.
// patienceWithOthers is how long to stay away when those of other Icecreams take long.
const (
	patience           = time.Second
	patienceWithOthers = 200 * time.Millisecond
)

// atOnce is how many Deployments are made in one namespace at the same time. A namespace that
// goes takes many Deployments with it, and no more requests than these find that out.
const atOnce = 2

// A Controller gives each Icecream a Deployment, and reports on it.
type Controller struct {
	loop     *loop.Loop
	clients  Clients
	recorder events.EventRecorder
	image    string // of the only container

	// What the informers hold. NEVER change an object from there: others read it, too.
	icecreams, deployments, pods cache.Indexer
	factories                    []loop.Informers
	writes                       loop.Writes
	making                       sync.Map // by namespace, a chan with as many places as Deployments are made there at the same time
	closed                       sync.Map // UIDs of Icecreams, by their names, for which the API server creates nothing any more
	refusals                     sync.Map // names of Icecreams whose last report is a refusal, which is tried again
}

// The names of the indexes. Each answers a question of an event or of a phase
// without a walk through all objects.
const (
	byUID        = "uid"        // an Icecream by its UID
	byDeployment = "deployment" // Icecreams by the name of the Deployment that they want
	byOwner      = "owner"      // Deployments by the UIDs of their owners
	byLabel      = "label"      // pods by the UID in their label
)

// New returns a controller of the Icecreams in a namespace, or in all of them.
func New(clients Clients, recorder events.EventRecorder, namespace, image string, resync time.Duration, options loop.Options) (*Controller, error) {
	if err := loop.CheckFlags(namespace, resync); err != nil {
		return nil, err
	}
	c := &Controller{clients: clients, recorder: recorder, image: image}
	c.loop = loop.New("icecream", c.reconcile, options)

	own := externalversions.NewSharedInformerFactoryWithOptions(clients.Sweets, resync, externalversions.WithNamespace(namespace))
	// All Deployments, because one that is foreign can be in the way of an Icecream.
	all := informers.NewSharedInformerFactoryWithOptions(clients.Core, resync, informers.WithNamespace(namespace), informers.WithTransform(trim))
	// Only the pods that carry our label: the server sends no others.
	labelled := informers.NewSharedInformerFactoryWithOptions(clients.Core, resync, informers.WithNamespace(namespace), informers.WithTransform(trim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.UIDLabel }))
	c.factories = []loop.Informers{own, all, labelled}

	icecreams := own.Icecream().V1alpha1().Icecreams().Informer()
	deployments := all.Apps().V1().Deployments().Informer()
	pods := labelled.Core().V1().Pods().Informer()
	c.icecreams, c.deployments, c.pods = icecreams.GetIndexer(), deployments.GetIndexer(), pods.GetIndexer()

	for _, informer := range []struct {
		cache.SharedIndexInformer
		indexers cache.Indexers
		handler  cache.ResourceEventHandler
	}{
		{icecreams, cache.Indexers{byUID: uidOf, byDeployment: wantedDeployment}, c.onChange("Icecream", c.icecreamChanged)},
		{deployments, cache.Indexers{byOwner: ownersOf}, c.onChange("Deployment", c.deploymentChanged)},
		{pods, cache.Indexers{byLabel: labelOf}, c.onChange("pod", c.podChanged)},
	} {
		if err := informer.AddIndexers(informer.indexers); err != nil {
			return nil, fmt.Errorf("adding an index: %w", err)
		}
		if err := c.loop.Watch(informer, informer.handler); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx, c.factories...) }

// Ready reports whether the caches are filled.
func (c *Controller) Ready() bool { return c.loop.Ready() }

// An Icecream that has changed has to be looked at. So has any Icecream that
// wants a Deployment which has changed, or which no longer stands in its way,
// and any whose pod has moved.

func (c *Controller) icecreamChanged(what string, old, now metav1.Object) {
	key := cache.MetaObjectToName(newest(old, now))
	// Without a report of ours, somebody else has written the refusal, such as a restore, and nothing else would bring us back.
	if _, ours := c.refusals.Load(key); ours && old != nil && now != nil && refused(now.(*v1alpha1.Icecream)) && onlyStatusChanged(old.(*v1alpha1.Icecream), now.(*v1alpha1.Icecream)) {
		return // our own report of a refusal is no reason to ask again: with a message that differs each time, that would never end
	}
	c.loop.Add(key, "Icecream "+what)
}

func (c *Controller) deploymentChanged(what string, old, now metav1.Object) {
	for _, d := range []metav1.Object{old, now} {
		if d == nil {
			continue
		}
		for _, reference := range d.GetOwnerReferences() {
			c.addAll(byUID, string(reference.UID), "Deployment "+what)
		}
		c.addAll(byDeployment, cache.MetaObjectToName(d).String(), "Deployment "+what)
	}
}

func (c *Controller) podChanged(what string, old, now metav1.Object) {
	if old != nil && now != nil && nodeOf(old.(*corev1.Pod)) == nodeOf(now.(*corev1.Pod)) && uidLabel(old) == uidLabel(now) {
		return // a pod changes often, and only its node is of interest
	}
	for _, pod := range []metav1.Object{old, now} {
		if pod != nil {
			c.addAll(byUID, uidLabel(pod), "pod "+what)
		}
	}
}

// addAll puts the Icecreams that an index finds into the queue.
func (c *Controller) addAll(index, value, reason string) {
	icecreams, err := c.icecreams.ByIndex(index, value)
	if err != nil {
		klog.Background().Error(err, "Reading an index", "index", index) // there is no such index: a fault in this file
	}
	for _, o := range icecreams {
		c.loop.Add(cache.MetaObjectToName(o.(metav1.Object)), reason)
	}
}

// reconcile brings one Icecream's Deployment to the state that the Icecream
// asks for, and the Icecream's status to what the Deployment is like. It does
// not know which event has brought it here, or whether there was one.
func (c *Controller) reconcile(ctx context.Context, key cache.ObjectName) (again time.Duration, err error) {
	c.loop.Phase(key, "read")
	behind := c.writes.Behind(key) // asked before the cache is read, which may catch up in between
	o, exists, err := c.icecreams.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !exists || o.(*v1alpha1.Icecream).DeletionTimestamp != nil {
		c.writes.Forget(key)
		c.closed.Delete(key)
		c.refusals.Delete(key)
		return 0, nil // garbage collection deletes what has an owner reference
	}
	c.loop.Phase(key, "catch up")
	if behind {
		return patience, loop.ErrBehind // the caches are older than what we did: what we would do now, we may have done
	}
	ice := o.(*v1alpha1.Icecream).DeepCopy()

	olds, err := c.olds(ice)
	if err != nil {
		return 0, err
	}

	c.loop.Phase(key, "own")
	deployment, wrote, err := c.own(ctx, ice)
	if errors.Is(err, loop.ErrBehind) {
		return patienceWithOthers, err
	}
	if err != nil {
		return 0, c.failed(ctx, ice, first(olds), err)
	}
	if deployment == nil {
		return 0, nil // the namespace is being deleted, and the Icecream with it
	}
	ours := owned(ice, deployment)

	if ours {
		c.loop.Phase(key, "correct")
		corrected, err := c.correct(ctx, ice, deployment)
		if err != nil {
			return 0, c.failed(ctx, ice, deployment, err)
		}
		if corrected != nil {
			deployment, wrote = corrected, true
		}
	}

	retired := false
	if ours && available(ice, deployment) {
		c.loop.Phase(key, "retire")
		if retired, err = c.retire(ctx, ice, olds); err != nil {
			return 0, c.failed(ctx, ice, deployment, err)
		}
	}

	c.loop.Phase(key, "report")
	if c.writes.Behind(key) && !wrote {
		again = patience // what was found live may be gone before the cache shows it, and then no event tells us
	}
	if !ours {
		return again, c.refuse(ctx, ice, deployment, first(olds))
	}
	reported, err := c.report(ctx, ice, deployment, problem{})
	if err != nil {
		return 0, err
	}
	if wrote || retired || reported {
		c.recorder.Eventf(icecreamReference(ice), deploymentReference(deployment), corev1.EventTypeNormal, "Synced", "Sync", "Icecream synced successfully")
	}
	return again, nil
}

// own returns the Deployment of the name that the Icecream wants, and creates
// it if there is none. It may be somebody else's. It is nil if nothing can be
// created any more, because the namespace is being deleted.
func (c *Controller) own(ctx context.Context, ice *v1alpha1.Icecream) (d *appsv1.Deployment, created bool, err error) {
	key := cache.NewObjectName(ice.Namespace, ice.Spec.DeploymentName)
	o, exists, err := c.deployments.GetByKey(key.String())
	if err != nil {
		return nil, false, err
	}
	if exists {
		return o.(*appsv1.Deployment), false, nil
	}
	known, _ := c.making.LoadOrStore(ice.Namespace, make(chan struct{}, atOnce))
	places := known.(chan struct{})
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-time.After(patienceWithOthers / 10): // no worker waits for long: other namespaces need it
		return nil, false, loop.ErrBehind
	}
	if uid, ok := c.closed.Load(cache.MetaObjectToName(ice)); ok && uid == ice.UID {
		return nil, false, nil
	}
	// The Icecream may be going, which the cache may not show yet; and what the garbage collector has
	// deleted, or looks for (--cascade=foreground), a new one would race.
	if err := c.confirm(ctx, ice); err != nil {
		return nil, false, err
	}
	d, created, err = c.create(ctx, ice)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		c.close(ice.Namespace)
		return nil, false, nil
	}
	return d, created, err
}

// close notes that the API server creates nothing in a namespace any more. It never comes back, so
// one answer is enough for all its Icecreams.
func (c *Controller) close(namespace string) {
	for _, o := range c.icecreams.List() {
		if ice := o.(*v1alpha1.Icecream); ice.Namespace == namespace {
			c.closed.Store(cache.MetaObjectToName(ice), ice.UID)
		}
	}
	c.making.Delete(namespace)
}

// create creates the Deployment that the Icecream wants. If the API server has
// one of that name already, create returns that one, whoever owns it.
func (c *Controller) create(ctx context.Context, ice *v1alpha1.Icecream) (d *appsv1.Deployment, created bool, err error) {
	wanted, err := newDeployment(ice, c.image)
	if err != nil {
		return nil, false, err
	}
	// A POST, not an apply: an apply would take over whatever has that name.
	deployments := c.clients.Deployments.Deployments(wanted.Namespace)
	d, err = deployments.Create(ctx, wanted, metav1.CreateOptions{FieldManager: Manager})
	if apierrors.IsAlreadyExists(err) {
		// The cache does not have it yet. It can be ours: if the answer to our
		// POST was lost, or this process has restarted since.
		switch d, failed := deployments.Get(ctx, wanted.Name, metav1.GetOptions{}); {
		case failed == nil:
			c.writes.Record(cache.MetaObjectToName(ice), c.deployments, d.ResourceVersion)
			return d, false, nil
		case !apierrors.IsNotFound(failed): // else it is the answer of a webhook
			return nil, false, fmt.Errorf("reading Deployment %s: %w", klog.KObj(wanted), failed)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("creating Deployment %s: %w", klog.KObj(wanted), loop.Confirm(ctx, err, wanted, deployments.Get))
	}
	c.wrote(ice, "create", "there was none", c.deployments, d)
	return d, true, nil
}

// owned says whether the Deployment is the Icecream's. A reference that is not
// marked as the controller's counts if there is no other controller: correct
// completes it. Whatever else has that name is foreign, also what an earlier
// Icecream of the same name has left.
func owned(ice *v1alpha1.Icecream, d *appsv1.Deployment) bool {
	if controller := metav1.GetControllerOfNoCopy(d); controller != nil {
		return controller.UID == ice.UID
	}
	for _, reference := range d.OwnerReferences {
		if reference.UID == ice.UID {
			return true
		}
	}
	return false
}

// correct applies what the Icecream asks for, if the Deployment differs in
// that. What others have set stays. It returns nil if there was nothing to do.
func (c *Controller) correct(ctx context.Context, ice *v1alpha1.Icecream, d *appsv1.Deployment) (*appsv1.Deployment, error) {
	drift := driftOf(ice, c.image, d)
	if drift == "" || d.DeletionTimestamp != nil {
		return nil, nil
	}
	// With UID and resourceVersion, the apply changes what we have looked at, or nothing.
	wanted := desired(ice, c.image).WithUID(d.UID).WithResourceVersion(d.ResourceVersion)
	deployments := c.clients.Deployments.Deployments(d.Namespace)
	corrected, err := deployments.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: Manager, Force: true})
	if err != nil {
		return nil, fmt.Errorf("applying Deployment %s: %w", klog.KObj(d), loop.Confirm(ctx, err, d, deployments.Get))
	}
	if corrected.ResourceVersion == d.ResourceVersion {
		return nil, nil // it was no write: a webhook keeps what we would correct
	}
	c.wrote(ice, "apply", drift, c.deployments, corrected)
	return corrected, nil
}

// olds returns the Deployments that the Icecream had under other names, in their order.
func (c *Controller) olds(ice *v1alpha1.Icecream) ([]*appsv1.Deployment, error) {
	all, err := c.deployments.ByIndex(byOwner, string(ice.UID))
	if err != nil {
		return nil, err
	}
	var olds []*appsv1.Deployment
	for _, o := range all {
		if d := o.(*appsv1.Deployment); d.Namespace == ice.Namespace && d.Name != ice.Spec.DeploymentName && made(ice, d) && d.DeletionTimestamp == nil {
			olds = append(olds, d)
		}
	}
	slices.SortFunc(olds, func(a, b *appsv1.Deployment) int { return cmp.Compare(a.Name, b.Name) })
	return olds, nil
}

// made says whether this controller has made an owned Deployment for the Icecream: it may have lost the mark
// of a controller, but its selector cannot change. One of somebody else's may only name the Icecream as its owner.
func made(ice *v1alpha1.Icecream, d *appsv1.Deployment) bool {
	return owned(ice, d) && (metav1.GetControllerOfNoCopy(d) != nil || d.Spec.Selector.MatchLabels[v1alpha1.UIDLabel] == string(ice.UID))
}

// first returns the Deployment whose numbers a status has while the new one is missing.
func first(olds []*appsv1.Deployment) *appsv1.Deployment {
	if len(olds) == 0 {
		return nil
	}
	return olds[0]
}

// retire deletes the Deployments that the Icecream had under other names.
func (c *Controller) retire(ctx context.Context, ice *v1alpha1.Icecream, olds []*appsv1.Deployment) (retired bool, err error) {
	if len(olds) == 0 {
		return false, nil
	}
	if err := c.confirm(ctx, ice); err != nil {
		return false, err
	}
	// What is to take its place may have gone, too.
	deployments := c.clients.Deployments.Deployments(ice.Namespace)
	now, err := deployments.Get(ctx, ice.Spec.DeploymentName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading the new Deployment: %w", err)
	}
	if err != nil || !owned(ice, now) || !available(ice, now) {
		return false, fmt.Errorf("the new Deployment has changed: %w", loop.ErrStale)
	}
	var kept []error // one that may not go keeps no other
	for _, old := range olds {
		// The preconditions make sure that what goes is what we have looked at:
		// not another Deployment of that name, nor one that was taken from us.
		err := deployments.Delete(ctx, old.Name, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
		switch err = loop.Confirm(ctx, err, old, deployments.Get); {
		case apierrors.IsNotFound(err):
		case err != nil:
			kept = append(kept, fmt.Errorf("deleting the old Deployment %s: %w", klog.KObj(old), err))
		default:
			retired = true
			c.loop.Wrote(cache.MetaObjectToName(ice), "delete", "the new Deployment is available")
		}
	}
	return retired, errors.Join(kept...)
}

// confirm asks the API server whether the Icecream still asks for the same: before
// what cannot be undone, a cache that may be behind is not enough.
func (c *Controller) confirm(ctx context.Context, ice *v1alpha1.Icecream) error {
	live, err := c.clients.Icecreams.Icecreams(ice.Namespace).Get(ctx, ice.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the Icecream: %w", err)
	}
	if err != nil || live.UID != ice.UID || live.Generation != ice.Generation || live.DeletionTimestamp != nil {
		return fmt.Errorf("the Icecream has changed: %w", loop.ErrStale)
	}
	return nil
}

// failed puts an error that stays into the status, with the numbers of the
// Deployment that the Icecream has, if any. The loop tries again after every error.
func (c *Controller) failed(ctx context.Context, ice *v1alpha1.Icecream, d *appsv1.Deployment, err error) error {
	said := loop.Refused(err)
	if said == "" {
		return err
	}
	if before := meta.FindStatusCondition(ice.Status.Conditions, v1alpha1.ConditionAvailable); before != nil && before.Reason == v1alpha1.ReasonRefused && before.ObservedGeneration == ice.Generation && loop.SameWords(before.Message, said) {
		said = before.Message // without the time, or the number of the request, that this answer has
	}
	c.loop.Phase(cache.MetaObjectToName(ice), "report")
	_, reportErr := c.report(ctx, ice, d, problem{v1alpha1.ReasonRefused, said})
	return errors.Join(err, reportErr)
}

// refuse reports that the Deployment of the wanted name is somebody else's.
// The numbers are those of the Deployment that the Icecream still has, if any.
func (c *Controller) refuse(ctx context.Context, ice *v1alpha1.Icecream, foreign, kept *appsv1.Deployment) error {
	message := fmt.Sprintf("Deployment %s exists and does not belong to this Icecream", foreign.Name)
	reported, err := c.report(ctx, ice, kept, problem{v1alpha1.ReasonErrResourceExists, message})
	if err == nil && reported {
		c.recorder.Eventf(icecreamReference(ice), deploymentReference(foreign), corev1.EventTypeWarning, v1alpha1.ReasonErrResourceExists, "Sync", "%s", message)
	}
	return err
}

// report writes the status if it has changed.
func (c *Controller) report(ctx context.Context, ice *v1alpha1.Icecream, d *appsv1.Deployment, p problem) (reported bool, err error) {
	pods, err := c.pods.ByIndex(byLabel, ice.Namespace+"/"+string(ice.UID))
	if err != nil {
		return false, err
	}
	if p.reason == v1alpha1.ReasonRefused {
		c.refusals.Store(cache.MetaObjectToName(ice), true) // before the write, whose event may come before its answer
	} else {
		c.refusals.Delete(cache.MetaObjectToName(ice))
	}
	status := statusOf(ice, d, pods, p)
	if equality.Semantic.DeepEqual(ice.Status, status) {
		return false, nil
	}
	ice.Status = status
	// The resourceVersion in ice makes this fail if somebody has changed the Icecream.
	updated, err := c.clients.Icecreams.Icecreams(ice.Namespace).UpdateStatus(ctx, ice, metav1.UpdateOptions{FieldManager: Manager})
	if apierrors.IsNotFound(err) {
		return false, loop.ErrStale // nobody is left to report to, which the cache will show
	}
	if err != nil {
		return false, fmt.Errorf("writing the status: %w", err)
	}
	c.wrote(ice, "status", "it has changed", c.icecreams, updated)
	return true, nil
}

// wrote remembers a write, so that the next look waits until the cache shows it.
func (c *Controller) wrote(ice *v1alpha1.Icecream, what, reason string, store cache.Store, result metav1.Object) {
	key := cache.MetaObjectToName(ice)
	c.loop.Wrote(key, what, reason)
	c.writes.Record(key, store, result.GetResourceVersion())
}
