// Package v1alpha1 holds the Go types of ColdRoom. The markers are those of step 05.
//
// +k8s:deepcopy-gen=package
// +groupName=outside.k8s-go.openshift.org
// +groupGoName=Outside
// +kubebuilder:object:generate=false
package v1alpha1
