package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// A Reconciler gives each Icecream a Deployment, and says in its status how that goes.
type Reconciler struct {
	client.Client               // reads from the cache, writes to the API server
	Live          client.Reader // reads from the API server
}

// byDeployment is an index of the cache: Icecreams by the name of the Deployment that they want.
const byDeployment = "spec.deploymentName"

// SetupWithManager says what wakes the Reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Icecream{}, byDeployment, func(o client.Object) []string {
		return []string{o.(*v1alpha1.Icecream).Spec.DeploymentName}
	}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Icecream{}).
		Watches(&appsv1.Deployment{}, handler.EnqueueRequestsFromMapFunc(r.icecreams)). // Owns would not see a foreign one
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 2,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 10*time.Second),
		}).
		Named("icecream").
		Complete(r)
}

// icecreams returns the Icecreams that name a Deployment, be it theirs or in their way.
func (r *Reconciler) icecreams(ctx context.Context, d client.Object) (requests []reconcile.Request) {
	var all v1alpha1.IcecreamList
	if err := r.List(ctx, &all, client.InNamespace(d.GetNamespace()), client.MatchingFields{byDeployment: d.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Reading the index of Icecreams")
	}
	for _, ice := range all.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&ice)})
	}
	return requests
}

// errForeign says that the Deployment belongs to somebody else. Trying again would not help.
var errForeign = errors.New("exists and does not belong to this Icecream")

// Reconcile brings an Icecream's Deployment and status to what they should be.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The Manager's context ends with SIGTERM, which would cut a write off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	ice := &v1alpha1.Icecream{}
	if err := r.Get(ctx, req.NamespacedName, ice); err != nil || !ice.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err) // the garbage collector deletes the Deployment
	}
	d, err := r.deployment(ctx, ice)
	unknown := r.Get(ctx, client.ObjectKey{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName}, &appsv1.Deployment{}) // no event tells of the end of what the cache has never known
	if reported := r.report(ctx, ice, d, err); reported != nil || unknown == nil && errors.Is(err, errForeign) {
		return ctrl.Result{}, reported
	}
	return ctrl.Result{}, err
}

// deployment returns the Icecream's Deployment as it should be.
func (r *Reconciler) deployment(ctx context.Context, ice *v1alpha1.Icecream) (*appsv1.Deployment, error) {
	name := client.ObjectKey{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName}
	d := &appsv1.Deployment{}
	err := r.Get(ctx, name, d)
	if apierrors.IsNotFound(err) {
		d = deploymentFor(ice)
		if err := controllerutil.SetControllerReference(ice, d, r.Scheme()); err != nil {
			return nil, err
		}
		if err = r.Create(ctx, d); apierrors.IsAlreadyExists(err) { // the cache was behind
			d = &appsv1.Deployment{}
			err = r.Live.Get(ctx, name, d)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case !metav1.IsControlledBy(d, ice):
		return nil, fmt.Errorf("the Deployment %s %w", d.Name, errForeign)
	case !d.DeletionTimestamp.IsZero() || equality.Semantic.DeepEqual(d.Spec.Replicas, ice.Spec.Replicas):
		return d, nil
	}
	d.Spec.Replicas = ice.Spec.Replicas // of a copy: Get makes one
	return d, r.Update(ctx, d)          // 409 Conflict if the cache was behind
}

func deploymentFor(ice *v1alpha1.Icecream) *appsv1.Deployment {
	labels := metav1.ObjectMeta{Labels: map[string]string{v1alpha1.UIDLabel: string(ice.UID)}}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "icecream", Image: "workshop/pause:1"}}}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ice.Namespace, Name: ice.Spec.DeploymentName},
		Spec: appsv1.DeploymentSpec{
			Replicas: ice.Spec.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: labels, Spec: pod},
		},
	}
}

// report writes the status, if it differs: what the Deployment says, or why there is none.
func (r *Reconciler) report(ctx context.Context, ice *v1alpha1.Icecream, d *appsv1.Deployment, failed error) error {
	available := metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProgressing, ObservedGeneration: ice.Generation}
	status := ice.Status.DeepCopy()
	status.ObservedGeneration = ice.Generation
	status.Replicas, status.AvailableReplicas = nil, nil
	if d != nil {
		status.Replicas, status.AvailableReplicas = &d.Status.Replicas, &d.Status.AvailableReplicas
	}
	switch {
	case failed == nil && d.Status.AvailableReplicas >= *ice.Spec.Replicas:
		available.Status, available.Reason = metav1.ConditionTrue, v1alpha1.ReasonAvailable
	case errors.Is(failed, errForeign):
		available.Reason, available.Message = v1alpha1.ReasonErrResourceExists, failed.Error()
	case apierrors.IsBadRequest(failed), apierrors.IsForbidden(failed), apierrors.IsInvalid(failed): // this may stay so
		available.Reason, available.Message = v1alpha1.ReasonRefused, failed.Error()
		if is := meta.FindStatusCondition(status.Conditions, available.Type); is != nil && is.Reason == available.Reason && is.ObservedGeneration == available.ObservedGeneration {
			available.Message = is.Message // other words each time would bring it back at once each time
		}
	case failed != nil:
		return nil // this will pass
	}
	meta.SetStatusCondition(&status.Conditions, available)
	if equality.Semantic.DeepEqual(&ice.Status, status) {
		return nil
	}
	ice.Status = *status
	return client.IgnoreNotFound(r.Status().Update(ctx, ice))
}
