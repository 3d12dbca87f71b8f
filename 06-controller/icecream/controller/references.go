package controller

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// What an Event refers to. client-go would put a resourceVersion into the
// reference if it got the object, and count no two Events as the same.

func icecreamReference(ice *v1alpha1.Icecream) *corev1.ObjectReference {
	gvk := v1alpha1.IcecreamKind
	return &corev1.ObjectReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: ice.Namespace, Name: ice.Name, UID: ice.UID}
}

func deploymentReference(d *appsv1.Deployment) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Namespace: d.Namespace, Name: d.Name, UID: d.UID}
}
