package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// FieldManager is that of everything that this controller writes.
const FieldManager = client.FieldOwner("icecream-controller")

// IcecreamReconciler gives each Icecream a Deployment, and says in its status how that goes.
// What both should be stands in desired.go.
type IcecreamReconciler struct {
	client.Client               // reads from the cache, writes to the API server
	Live          client.Reader // reads from the API server
	Recorder      events.EventRecorder
	Image         string // of the only container
	SaveFlavours  bool   // see flavour.go

	memories sync.Map // of *memory, by the names of the Icecreams
}

// +kubebuilder:rbac:groups=controller.nicoleh.io,resources=icecreams,verbs=get;list;watch
// +kubebuilder:rbac:groups=controller.nicoleh.io,resources=icecreams/status,verbs=update
// +kubebuilder:rbac:groups=controller.nicoleh.io,resources=icecreams/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile looks at one Icecream, and decides what follows for the queue.
func (r *IcecreamReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	found, _ := r.memories.LoadOrStore(req.NamespacedName, &memory{written: map[string]string{}})
	m := found.(*memory)
	if wait := time.Until(m.asleep); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil // an event has come before the server's Retry-After was over
	}
	// The context that we get has no deadline, and ends with SIGTERM: that would cut a write off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := r.reconcile(ctx, req.NamespacedName, m)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		wait := time.Duration(seconds) * time.Second
		m.asleep = time.Now().Add(wait)
		return ctrl.Result{RequeueAfter: wait}, nil // beside an error, the result would be ignored
	}
	if apierrors.IsConflict(err) { // somebody was faster: the event of that brings us back, and an error would be an alarm
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	return ctrl.Result{}, err // an error comes back later each time
}

// errForeign says that the Deployment belongs to somebody else. Trying again would not help.
var errForeign = errors.New("exists and does not belong to this Icecream")

// reconcile brings an Icecream's Deployment and status to what they should be.
func (r *IcecreamReconciler) reconcile(ctx context.Context, name client.ObjectKey, m *memory) error {
	ice := &controllerv1alpha1.Icecream{}
	err := r.read(ctx, name, ice, m)
	switch {
	case apierrors.IsNotFound(err):
		r.memories.Delete(name)
		return nil
	case err != nil:
		return err
	case !ice.DeletionTimestamp.IsZero():
		return nil // the garbage collector deletes the Deployment
	}
	olds, err := r.olds(ctx, ice)
	if err != nil {
		return err
	}
	d, wrote, err := r.deployment(ctx, ice, m)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // a namespace never comes back
	}
	if err == nil && available(ice, d) && len(olds) > 0 {
		wrote, err = true, r.retire(ctx, ice, olds)
	}
	if d == nil && len(olds) > 0 {
		d = &olds[0] // as long as there is no other, its numbers count
	}
	reported, failed := r.report(ctx, ice, d, err, m)
	switch {
	case failed != nil:
		return errors.Join(failed, err) // in this order: what the API server says about the wait is looked for in the first answer
	case errors.Is(err, errForeign):
		if reported {
			r.event(ice, corev1.EventTypeWarning, controllerv1alpha1.ReasonErrResourceExists, err.Error())
		}
	case err != nil:
		return err
	case wrote || reported:
		r.event(ice, corev1.EventTypeNormal, "Synced", "Icecream synced successfully")
	}
	if unseen := r.Get(ctx, client.ObjectKey{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName}, &appsv1.Deployment{}); apierrors.IsNotFound(unseen) {
		return behind(ice) // what was made or found live may be gone before the cache shows it, and then no event tells us
	}
	return nil
}

// deployment returns the Icecream's Deployment as it should be.
func (r *IcecreamReconciler) deployment(ctx context.Context, ice *controllerv1alpha1.Icecream, m *memory) (d *appsv1.Deployment, wrote bool, err error) {
	name := client.ObjectKey{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName}
	d = &appsv1.Deployment{}
	err = r.read(ctx, name, d, m)
	if apierrors.IsNotFound(err) {
		d, wrote, err = r.create(ctx, ice, name)
	}
	switch {
	case err != nil:
		return nil, false, err
	case !owned(ice, d):
		return nil, false, fmt.Errorf("the Deployment %s %w", d.Name, errForeign)
	case wrote:
		m.wrote(d)
		return d, true, nil
	}
	image, unsaved := r.flavour(ctx, ice, d)
	if unsaved != nil {
		if refusal(unsaved) == "" || flavourOf(d) == "" {
			return d, false, unsaved
		}
		image = flavourOf(d) // without an upgrade, the rest goes on
	}
	if d.DeletionTimestamp.IsZero() && drifted(ice, image, d) {
		// With UID and resourceVersion, the apply changes what we have looked at, or nothing.
		wanted := deploymentFor(ice, image).WithUID(d.UID).WithResourceVersion(d.ResourceVersion)
		if err := r.Apply(ctx, wanted, FieldManager, client.ForceOwnership); err != nil {
			return d, false, fmt.Errorf("applying Deployment %s: %w", d.Name, r.confirmed(ctx, err, d))
		}
		before := d.ResourceVersion
		d = &appsv1.Deployment{}
		if err := convert(wanted, d); err != nil { // the answer is in there now
			return nil, true, err
		}
		wrote = d.ResourceVersion != before // if not, a webhook keeps what this would correct
		m.wrote(d)
	}
	return d, wrote, unsaved
}

// create sends a POST, because an apply would take over whatever has that name. If there is
// one already, create returns that.
func (r *IcecreamReconciler) create(ctx context.Context, ice *controllerv1alpha1.Icecream, name client.ObjectKey) (d *appsv1.Deployment, created bool, err error) {
	// The Icecream may be going, and the cache not show it yet; a new Deployment would race the garbage collector.
	if err := r.confirm(ctx, ice); err != nil {
		return nil, false, err
	}
	image, err := r.flavour(ctx, ice, nil)
	if err != nil {
		return nil, false, err
	}
	d = &appsv1.Deployment{}
	if err := convert(deploymentFor(ice, image), d); err != nil {
		return nil, false, err
	}
	err = r.Create(ctx, d, FieldManager)
	if apierrors.IsAlreadyExists(err) { // the cache was behind, or the answer to our POST was lost
		live := &appsv1.Deployment{}
		if failed := r.Live.Get(ctx, name, live); !apierrors.IsNotFound(failed) {
			return live, false, failed
		}
	}
	return d, err == nil, r.confirmed(ctx, err, d)
}

// confirmed reads the Deployment of which the answer to a request says that it is gone, is there, or has changed. A webhook
// refuses with any code that it likes: if the Deployment is as it was, or still missing, a 403 takes the answer's place.
func (r *IcecreamReconciler) confirmed(ctx context.Context, answer error, was *appsv1.Deployment) error {
	var status *apierrors.StatusError
	if !errors.As(answer, &status) {
		return answer
	}
	s := status.ErrStatus
	if s.Code != http.StatusNotFound && s.Code != http.StatusConflict || s.Details != nil && s.Details.Kind == "resourcequotas" {
		return answer // of the last kind is one for many creations at the same time
	}
	live := &appsv1.Deployment{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(was), live)
	if client.IgnoreNotFound(err) != nil || live.UID != was.UID || live.ResourceVersion != was.ResourceVersion {
		return answer
	}
	s.Code, s.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	return &apierrors.StatusError{ErrStatus: s}
}

// olds returns the Deployments that the Icecream had under other names, in their order.
func (r *IcecreamReconciler) olds(ctx context.Context, ice *controllerv1alpha1.Icecream) ([]appsv1.Deployment, error) {
	var all appsv1.DeploymentList
	err := r.List(ctx, &all, client.InNamespace(ice.Namespace), client.MatchingFields{byOwner: string(ice.UID)})
	olds := slices.DeleteFunc(all.Items, func(d appsv1.Deployment) bool {
		return d.Name == ice.Spec.DeploymentName || !made(ice, &d) || !d.DeletionTimestamp.IsZero()
	})
	slices.SortFunc(olds, func(a, b appsv1.Deployment) int { return cmp.Compare(a.Name, b.Name) })
	return olds, err
}

// made says whether this controller has made an owned Deployment for the Icecream: it may have lost the mark
// of a controller, but its selector cannot change. One of somebody else's may only name the Icecream as its owner.
func made(ice *controllerv1alpha1.Icecream, d *appsv1.Deployment) bool {
	return owned(ice, d) && (metav1.GetControllerOfNoCopy(d) != nil || d.Spec.Selector.MatchLabels[controllerv1alpha1.UIDLabel] == string(ice.UID))
}

// retire deletes what we have looked at, and nothing else of the same name.
func (r *IcecreamReconciler) retire(ctx context.Context, ice *controllerv1alpha1.Icecream, olds []appsv1.Deployment) error {
	if err := r.confirm(ctx, ice); err != nil {
		return err
	}
	now := &appsv1.Deployment{} // may be gone, too
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName}, now)
	if apierrors.IsNotFound(err) || err == nil && !(owned(ice, now) && available(ice, now)) {
		return behind(ice)
	} else if err != nil {
		return err
	}
	var kept error // one that may not go keeps no other
	for _, old := range olds {
		err := r.Delete(ctx, &old, client.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err = r.confirmed(ctx, err, &old); client.IgnoreNotFound(err) == nil {
			continue
		}
		err = fmt.Errorf("deleting the old Deployment %s: %w", old.Name, err)
		if refusal(err) == "" {
			return err // this will pass
		}
		kept = errors.Join(kept, err)
	}
	return kept
}

// confirm asks the API server whether the Icecream still asks for the same. Before what cannot
// be undone, a cache that may be behind is not enough.
func (r *IcecreamReconciler) confirm(ctx context.Context, ice *controllerv1alpha1.Icecream) error {
	live := &controllerv1alpha1.Icecream{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(ice), live)
	if apierrors.IsNotFound(err) || err == nil && (live.UID != ice.UID || live.Generation != ice.Generation) {
		return behind(ice)
	}
	return err
}

// behind is a conflict, after which the key comes back without an alarm.
func behind(ice *controllerv1alpha1.Icecream) error {
	return apierrors.NewConflict(controllerv1alpha1.GroupVersion.WithResource("icecreams").GroupResource(), ice.Name, errors.New("the cache is behind"))
}

// report writes the status, if it differs.
func (r *IcecreamReconciler) report(ctx context.Context, ice *controllerv1alpha1.Icecream, d *appsv1.Deployment, failed error, m *memory) (reported bool, err error) {
	if failed != nil && !errors.Is(failed, errForeign) && refusal(failed) == "" {
		return false, nil // this will pass
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(ice.Namespace), client.MatchingFields{byIcecream: string(ice.UID)}); err != nil {
		return false, err
	}
	m.refused.Store(failed != nil && !errors.Is(failed, errForeign)) // before the write, whose event may come before its answer
	status := statusOf(ice, d, pods.Items, failed)
	if r.SaveFlavours && d != nil && failed == nil {
		setUpgraded(&status, ice, d, r.Image)
	}
	if equality.Semantic.DeepEqual(ice.Status, status) {
		return false, nil
	}
	ice.Status = status // what Get returns is a copy: others do not see this
	if err := r.Status().Update(ctx, ice, FieldManager); apierrors.IsNotFound(err) {
		return false, behind(ice) // nobody is left to report to, which the cache will show
	} else if err != nil {
		return false, err
	}
	m.wrote(ice)
	return true, nil
}

// event records an Event. It regards a reference: with the resourceVersion of an object, no two Events would be the same.
func (r *IcecreamReconciler) event(ice *controllerv1alpha1.Icecream, kind, reason, note string) {
	regarding := &corev1.ObjectReference{APIVersion: controllerv1alpha1.GroupVersion.String(), Kind: "Icecream", Namespace: ice.Namespace, Name: ice.Name, UID: ice.UID}
	r.Recorder.Eventf(regarding, nil, kind, reason, "Sync", "%s", note)
}

// convert makes an object of an apply configuration.
func convert(from, to any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}

// The names of the indexes of the cache.
const (
	byDeployment = "spec.deploymentName" // Icecreams by the Deployment that they want
	byUID        = "metadata.uid"        // an Icecream by its UID
	byOwner      = "owner"               // Deployments by the UIDs of their owners
	byIcecream   = "icecream"            // pods by the UID in their label
)

// SetupWithManager sets up the controller with the Manager.
func (r *IcecreamReconciler) SetupWithManager(mgr ctrl.Manager) error {
	for _, index := range []struct {
		of    client.Object
		name  string
		value func(client.Object) []string
	}{
		{&controllerv1alpha1.Icecream{}, byDeployment, func(o client.Object) []string { return []string{o.(*controllerv1alpha1.Icecream).Spec.DeploymentName} }},
		{&controllerv1alpha1.Icecream{}, byUID, func(o client.Object) []string { return []string{string(o.GetUID())} }},
		{&appsv1.Deployment{}, byOwner, func(o client.Object) (uids []string) {
			for _, owner := range o.GetOwnerReferences() {
				uids = append(uids, string(owner.UID))
			}
			return uids
		}},
		{&corev1.Pod{}, byIcecream, func(o client.Object) []string { return []string{uidLabel(o)} }},
	} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), index.of, index.name, index.value); err != nil {
			return err
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&controllerv1alpha1.Icecream{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			// Our own report of a refusal is no reason to ask again: with a message that differs each time, that would never end.
			// One that somebody else has written is, such as a restore: nothing else would bring us back.
			return !refused(e.ObjectNew.(*controllerv1alpha1.Icecream)) || !r.triesAgain(e.ObjectNew) || e.ObjectNew.GetGeneration() != e.ObjectOld.GetGeneration()
		}})).
		Owns(&appsv1.Deployment{}). // sees those of the Icecreams only
		Watches(&appsv1.Deployment{}, r.icecreams(byDeployment, client.Object.GetName)).
		Watches(&corev1.Pod{}, r.icecreams(byUID, uidLabel), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			old, now := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			return nodeOf(old) != nodeOf(now) || uidLabel(old) != uidLabel(now) // a pod changes often
		}})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 8, // the default is 1
			// An event brings a key back at once, and counts if that fails: with the usual limit of 1,000 s,
			// a key that had events during an outage would stay away long after it.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 10*time.Second),
		}).
		Named("icecream").
		Complete(r)
}

// icecreams queues the Icecreams that an index has under a value of the object that has changed.
func (r *IcecreamReconciler) icecreams(index string, value func(client.Object) string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (requests []reconcile.Request) {
		var all controllerv1alpha1.IcecreamList
		if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace()), client.MatchingFields{index: value(o)}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Reading an index", "index", index)
		}
		for _, ice := range all.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&ice)})
		}
		return requests
	})
}
