// Package controller gives each Widget a ConfigMap of the same name, and reports
// on it in the status.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"example.org/widgets/api/v1alpha1"
	"example.org/widgets/internal/client"
	"example.org/widgets/internal/loop"
)

const (
	// Manager is the field manager of all that this controller writes.
	Manager = "widget-controller"
	// Label is on every ConfigMap of this controller: the server sends it no others.
	Label = "app.kubernetes.io/managed-by"
	// TextKey is the key of the text in a ConfigMap.
	TextKey = "text"
)

// How long to wait before looking again: at a ConfigMap of somebody else, whose events
// do not come here, because it has no Label; and at a cache that does not show an own
// write yet, whose event comes sooner, unless it is lost.
const (
	patienceWithOthers = time.Minute
	patienceWithCache  = time.Second
)

// A Controller works on the objects of one namespace, or of all of them.
type Controller struct {
	loop     *loop.Loop
	clients  clients
	recorder events.EventRecorder
	factory  informers.SharedInformerFactory

	// What the informers hold. NEVER change an object from there: others read it, too.
	owners, configMaps cache.Indexer

	// What was written. A cache that does not show it yet is too old to act on.
	writes loop.Writes
	// Names of Widgets whose last report is a refusal.
	refusals sync.Map
}

// clients send what the workers write.
type clients struct {
	configMaps corev1client.ConfigMapsGetter
	read       func(ctx context.Context, key cache.ObjectName) (*v1alpha1.Widget, error) // asks the server
	report     func(ctx context.Context, o *v1alpha1.Widget) (*v1alpha1.Widget, error)   // writes a status
}

// New returns a controller, and a function that ends its Events.
func New(ctx context.Context, config *rest.Config, namespace string, options loop.Options) (*Controller, func(), error) {
	if err := loop.CheckFlags(namespace, 0); err != nil {
		return nil, nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the client: %w", err)
	}
	own, err := client.New(config)
	if err != nil {
		return nil, nil, err
	}
	// The workers' requests are sent once, with a deadline; what the server asks to send again later, the queue holds back.
	once := own.Through(loop.Once)
	c := &Controller{clients: clients{
		configMaps: corev1client.New(loop.Once(core.CoreV1().RESTClient())),
		read: func(ctx context.Context, key cache.ObjectName) (*v1alpha1.Widget, error) {
			return once.Widgets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
		report: func(ctx context.Context, o *v1alpha1.Widget) (*v1alpha1.Widget, error) {
			return once.Widgets(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{FieldManager: Manager})
		},
	}}
	c.loop = loop.New("widget", c.reconcile, options)
	// No resync: it would look again at what lies outside of Kubernetes, and nothing here does.
	c.factory = informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithNamespace(namespace),
		informers.WithTransform(trim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = Label + "=" + Manager }))

	owners := c.factory.InformerFor(&v1alpha1.Widget{}, own.Informer(namespace))
	configMaps := c.factory.Core().V1().ConfigMaps().Informer()
	c.owners, c.configMaps = owners.GetIndexer(), configMaps.GetIndexer()
	// Both have the same name, so an event of either says which key to look at.
	for kind, informer := range map[string]cache.SharedIndexInformer{"Widget": owners, "ConfigMap": configMaps} {
		if err := c.loop.Watch(informer, c.onChange(kind)); err != nil {
			return nil, nil, err
		}
	}
	recorder, stop, err := loop.Recorder(ctx, core, Manager)
	if err != nil {
		return nil, nil, err
	}
	c.recorder = recorder
	return c, stop, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx, c.factory) }

// Ready reports whether the caches are filled, and the stop has not begun.
func (c *Controller) Ready() bool { return c.loop.Ready() }

func (c *Controller) onChange(kind string) cache.ResourceEventHandler {
	add := func(o any, what string) {
		if key, err := cache.DeletionHandlingObjectToName(o); err == nil { // also of a tombstone
			c.loop.Event(kind+" "+what, key)
			c.loop.Add(key, kind+" "+what)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { add(o, "added") },
		UpdateFunc: func(old, now any) {
			if !c.reportsRefusal(old, now) {
				add(now, "updated")
			}
		},
		DeleteFunc: func(o any) { add(o, "deleted") },
	}
}

// reportsRefusal reports whether an event shows nothing but the own report of a refusal.
// That is no reason to try again: if the server's message differed each time, it would
// go on for ever. A resync brings the same version twice, and is a reason; so is a
// refusal that somebody else has written, such as a restore.
func (c *Controller) reportsRefusal(old, now any) bool {
	was, _ := old.(*v1alpha1.Widget)
	owner, ok := now.(*v1alpha1.Widget)
	if !ok || was.ResourceVersion == owner.ResourceVersion {
		return false
	}
	if _, ours := c.refusals.Load(cache.MetaObjectToName(owner)); !ours {
		return false
	}
	ready := meta.FindStatusCondition(owner.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != v1alpha1.ReasonRefused {
		return false
	}
	same := was.DeepCopy()
	same.Status, same.ResourceVersion = owner.Status, owner.ResourceVersion
	return equality.Semantic.DeepEqual(same, owner)
}

// reconcile brings one ConfigMap to the state that its owner asks for, and the
// owner's status to what the ConfigMap is like. It does not know which event has
// brought it here, or whether there was one.
func (c *Controller) reconcile(ctx context.Context, key cache.ObjectName) (again time.Duration, err error) {
	c.loop.Phase(key, "read")
	behind := c.writes.Behind(key) // asked before the cache is read, which may catch up in between
	o, exists, err := c.owners.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !exists || o.(*v1alpha1.Widget).DeletionTimestamp != nil {
		c.writes.Forget(key)
		c.refusals.Delete(key)
		return 0, nil // garbage collection deletes what has an owner reference
	}
	if behind {
		return patienceWithCache, loop.ErrBehind // what would be done now may have been done
	}
	owner := o.(*v1alpha1.Widget).DeepCopy()

	c.loop.Phase(key, "write")
	condition := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: owner.Generation,
		Reason: v1alpha1.ReasonWritten, Message: "the ConfigMap holds the text"}
	ours, err := c.write(ctx, key, owner)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil // the owner goes with the namespace
	}
	// An answer that stays the same until somebody changes something is for the owner's
	// author, too. Every other error is for the log only, and for another try.
	if err != nil {
		err = fmt.Errorf("writing the ConfigMap: %w", err)
	}
	said := loop.Refused(err)
	switch {
	case said != "":
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonRefused, said
	case err != nil:
		return 0, err
	case !ours:
		again = patienceWithOthers
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonNotOwned
		condition.Message = "a ConfigMap of somebody else has this name: rename or delete one of the two"
	}

	c.loop.Phase(key, "report")
	if reportErr := c.report(ctx, key, owner, condition); reportErr != nil {
		err = errors.Join(err, fmt.Errorf("writing the status: %w", reportErr))
	}
	if again == 0 && c.writes.Behind(key) {
		again = patienceWithCache // what only the server has shown may be gone before the cache shows it, and then no event tells us
	}
	return again, err
}

// write creates or corrects the ConfigMap. It returns false if the ConfigMap of
// that name belongs to somebody else.
func (c *Controller) write(ctx context.Context, key cache.ObjectName, owner *v1alpha1.Widget) (ours bool, err error) {
	configMaps := c.clients.configMaps.ConfigMaps(key.Namespace)
	o, exists, err := c.configMaps.GetByKey(key.String())
	if err != nil {
		return false, err
	}
	var now *corev1.ConfigMap
	if exists {
		now = o.(*corev1.ConfigMap)
	} else {
		// The owner may be going, which the cache may not show yet; and what the garbage collector
		// has deleted, or looks for (--cascade=foreground), a new one would race.
		live, err := c.clients.read(ctx, key)
		if apierrors.IsNotFound(err) || err == nil && (live.UID != owner.UID || live.DeletionTimestamp != nil) {
			err = loop.ErrStale
		}
		if err != nil {
			return false, err
		}
		wanted := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name:            key.Name,
				Labels:          map[string]string{Label: Manager},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.GroupVersionKind)},
			},
			Data: map[string]string{TextKey: owner.Spec.Text},
		}
		// A POST, not an apply: an apply would take over whatever has that name.
		created, err := configMaps.Create(ctx, wanted, metav1.CreateOptions{FieldManager: Manager})
		if err == nil {
			c.wrote(key, owner, created, "Created", "created the ConfigMap")
			return true, nil
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || !apierrors.IsAlreadyExists(err) && loop.Refused(err) == "" {
			return false, loop.Confirm(ctx, err, wanted, configMaps.Get)
		}
		// Somebody else's, or one that the cache does not show, or shows no longer: what refuses (a quota, a webhook)
		// is asked before anybody looks whether the name is taken.
		var failed error
		if now, failed = configMaps.Get(ctx, key.Name, metav1.GetOptions{}); apierrors.IsNotFound(failed) {
			return false, err
		} else if failed != nil {
			return false, errors.Join(err, failed)
		}
		c.writes.Record(key, c.configMaps, now.ResourceVersion)
	}
	if !metav1.IsControlledBy(now, owner) {
		return false, nil
	}
	wanted := now.DeepCopy() // with its resourceVersion: a write of something outdated is a conflict
	metav1.SetMetaDataLabel(&wanted.ObjectMeta, Label, Manager)
	wanted.Data = maps.Clone(wanted.Data)
	if wanted.Data == nil {
		wanted.Data = map[string]string{}
	}
	wanted.Data[TextKey] = owner.Spec.Text
	if equality.Semantic.DeepEqual(now, wanted) {
		return true, nil
	}
	updated, err := configMaps.Update(ctx, wanted, metav1.UpdateOptions{FieldManager: Manager})
	if err != nil {
		return false, loop.Confirm(ctx, err, now, configMaps.Get)
	}
	c.wrote(key, owner, updated, "Corrected", "corrected the ConfigMap")
	return true, nil
}

// wrote remembers and reports a write of the ConfigMap.
func (c *Controller) wrote(key cache.ObjectName, owner *v1alpha1.Widget, result *corev1.ConfigMap, reason, note string) {
	c.writes.Record(key, c.configMaps, result.ResourceVersion)
	c.loop.Wrote(key, "ConfigMap", note)
	// A reference, not the object: its resourceVersion would make every Event a new one.
	c.recorder.Eventf(&corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.GroupVersionKind.Kind,
		Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}, nil, corev1.EventTypeNormal, reason, "Reconcile", "%s", note)
}

// report writes the status if it says something new.
func (c *Controller) report(ctx context.Context, key cache.ObjectName, owner *v1alpha1.Widget, condition metav1.Condition) error {
	if condition.Reason == v1alpha1.ReasonRefused {
		c.refusals.Store(key, true) // before the write, whose event may come before its answer
	} else {
		c.refusals.Delete(key)
	}
	before := owner.Status.DeepCopy()
	owner.Status.ObservedGeneration = owner.Generation
	meta.SetStatusCondition(&owner.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(*before, owner.Status) {
		return nil
	}
	updated, err := c.clients.report(ctx, owner)
	if apierrors.IsNotFound(err) {
		return loop.ErrStale // nobody is left to report to, which the cache will show
	}
	if err != nil {
		return err
	}
	c.writes.Record(key, c.owners, updated.ResourceVersion)
	c.loop.Wrote(key, "status", condition.Reason)
	return nil
}

// trim drops what this controller never reads, before the cache keeps it.
func trim(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return o, nil
}
