package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// register-gen makes Install, which puts the types into a Scheme. These two are
// for code that has no generated client at hand: an owner reference or a
// RESTMapper wants the kind, a dynamic client the resource.
var (
	HealthCheckPolicyKind     = schema.GroupVersionKind{Group: GroupName, Version: GroupVersion.Version, Kind: "HealthCheckPolicy"}
	HealthCheckPolicyResource = schema.GroupVersionResource{Group: GroupName, Version: GroupVersion.Version, Resource: "healthcheckpolicies"}
)
