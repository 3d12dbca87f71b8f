// Package v1alpha1 holds the Go types of HealthCheckPolicy.
//
// What is valid and what is the default stands in the CRD, which is made from
// the markers of types.go, and nowhere else: the server has to check every
// object anyway, whoever wrote it, and a second copy in Go would drift away.
//
// The comments that begin with a plus are markers, for the generators. Here
// they are about the package:
//
//	k8s:deepcopy-gen=package    DeepCopy for every type
//	k8s:openapi-gen=true        an OpenAPI model for every type; apply learns from it which lists merge
//	groupName                   the API group, for registration, client, informer and CRD
//	kubebuilder:object:generate controller-gen can make deep copies too; one generator of them is enough
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=policy.k8s-go.openshift.org
// +kubebuilder:object:generate=false
package v1alpha1
