// Package resourcespolicy holds the Go types of step 04's ResourcesPolicy.
//
// +groupName=policy.k8s-go.openshift.org
// +versionName=v1alpha1
package resourcespolicy

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ResourcesPolicy says which limits and requests containers must declare.
//
// +kubebuilder:resource:path=resourcespolicies,shortName=rp,categories=policies
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Action,type=string,JSONPath=".spec.action"
// +kubebuilder:printcolumn:name=Failed,type=integer,JSONPath=".status.statistics.pods.failed"
// +kubebuilder:printcolumn:name=Passed,type=integer,JSONPath=".status.statistics.pods.passed"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
type ResourcesPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ResourcesPolicySpec `json:"spec"`
	// +optional
	Status ResourcesPolicyStatus `json:"status,omitzero"`
}

// ResourcesPolicySpec is what the author of a policy wants.
//
// +kubebuilder:validation:XValidation:rule="self.action != 'label' || has(self.labels) && has(self.labels.pods)",message="labels.pods is needed when action is label",reason=FieldValueRequired,fieldPath=".labels"
type ResourcesPolicySpec struct {
	// What happens to a pod that does not pass.
	// +optional
	// +kubebuilder:default=label
	Action Action `json:"action,omitempty"`

	// Keys of the labels that mark what does not pass.
	// +optional
	Labels Labels `json:"labels,omitzero"`

	// What containers must declare.
	// +required
	Require Require `json:"require"`
}

// Action is what happens to a pod that does not pass.
//
// +kubebuilder:validation:Enum=delete;label
type Action string

// Labels are keys of labels.
type Labels struct {
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:MaxLength=253
	Pods string `json:"pods,omitempty"`
}

// Require is what containers must declare.
//
// +kubebuilder:validation:XValidation:rule="self.limits || self.requests",message="require limits, requests or both"
// +kubebuilder:validation:XValidation:rule="!self.requestsLowerThanLimits || self.limits && self.requests",message="requestsLowerThanLimits needs limits and requests"
type Require struct {
	// +optional
	// +kubebuilder:default=false
	Limits bool `json:"limits,omitempty"`
	// +optional
	// +kubebuilder:default=false
	Requests bool `json:"requests,omitempty"`
	// +optional
	// +kubebuilder:default=false
	RequestsLowerThanLimits bool `json:"requestsLowerThanLimits,omitempty"`
}

// ResourcesPolicyStatus is what a controller has seen.
type ResourcesPolicyStatus struct {
	// +optional
	Statistics *Statistics `json:"statistics,omitempty"`
}

// Statistics counts what was checked.
type Statistics struct {
	Pods PodStatistics `json:"pods"`
}

// PodStatistics counts pods.
type PodStatistics struct {
	// +kubebuilder:validation:Minimum=0
	Failed int32 `json:"failed"`
	// +kubebuilder:validation:Minimum=0
	Passed int32 `json:"passed"`
}
