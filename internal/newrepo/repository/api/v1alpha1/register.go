package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and the version of the types here.
var GroupVersion = schema.GroupVersion{Group: "stable.example.org", Version: "v1alpha1"}

// GroupVersionKind is the full name of the type, as owner references need it.
var GroupVersionKind = GroupVersion.WithKind("Widget")

// AddToScheme registers the types, and the options of requests for them.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Widget{}, &WidgetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
