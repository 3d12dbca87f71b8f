package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

var (
	IcecreamKind     = schema.GroupVersionKind{Group: GroupName, Version: GroupVersion.Version, Kind: "Icecream"}
	IcecreamResource = schema.GroupVersionResource{Group: GroupName, Version: GroupVersion.Version, Resource: "icecreams"}
)
