package controller

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// onChange makes one function of the three that an informer calls. The
// function gets what has happened, what the object was, and what it is; one of
// the last two is nil when the object is added or deleted.
func (c *Controller) onChange(kind string, changed func(what string, old, now metav1.Object)) cache.ResourceEventHandler {
	tell := func(what string, old, now metav1.Object) {
		c.loop.Event(kind+" "+what, cache.MetaObjectToName(newest(old, now)))
		changed(what, old, now)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { tell("added", nil, now.(metav1.Object)) },
		UpdateFunc: func(old, now any) { tell("updated", old.(metav1.Object), now.(metav1.Object)) }, // also a resync
		DeleteFunc: func(old any) {
			if tombstone, ok := old.(cache.DeletedFinalStateUnknown); ok { // the deletion was missed, see 03-informer/tombstones
				old = tombstone.Obj
			}
			if old, ok := old.(metav1.Object); ok {
				tell("deleted", old, nil)
			}
		},
	}
}

func newest(old, now metav1.Object) metav1.Object {
	if now == nil {
		return old
	}
	return now
}

// trim drops what this controller never reads, before the cache keeps it.
func trim(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	if pod, ok := o.(*corev1.Pod); ok {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
	}
	return o, nil
}

// The functions of the indexes: under which values to find an object.

func uidOf(o any) ([]string, error) { return []string{string(o.(*v1alpha1.Icecream).UID)}, nil }

func wantedDeployment(o any) ([]string, error) {
	ice := o.(*v1alpha1.Icecream)
	return []string{cache.NewObjectName(ice.Namespace, ice.Spec.DeploymentName).String()}, nil
}

func ownersOf(o any) (uids []string, err error) {
	for _, reference := range o.(*appsv1.Deployment).OwnerReferences {
		uids = append(uids, string(reference.UID))
	}
	return uids, nil
}

func labelOf(o any) ([]string, error) {
	pod := o.(*corev1.Pod)
	return []string{pod.Namespace + "/" + uidLabel(pod)}, nil
}

func uidLabel(pod metav1.Object) string { return pod.GetLabels()[v1alpha1.UIDLabel] }
