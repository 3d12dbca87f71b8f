// Package v1alpha1 holds the Go types of Icecream. The markers are explained in
// the package of HealthCheckPolicy; groupGoName is the name of the group in Go,
// which would be Controller otherwise, the first word of the group.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=controller.nicoleh.io
// +groupGoName=Icecream
// +kubebuilder:object:generate=false
package v1alpha1
