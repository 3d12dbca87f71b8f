// Package v1alpha1 holds the Go types of Widgets. make generate makes the deep
// copies and the CRD from them.
//
// +kubebuilder:object:generate=true
// +groupName=stable.example.org
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Widget asks for a ConfigMap of the same name.
// The ConfigMap holds a text.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=widgets,singular=widget
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec WidgetSpec `json:"spec"`
	// +optional
	Status WidgetStatus `json:"status,omitzero"`
}

// WidgetSpec is what the author of an object wants.
// The API server refuses what does not fit.
type WidgetSpec struct {
	// The text that the ConfigMap holds.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Text string `json:"text"`
}

// The types of the conditions in a status, and their reasons.
const (
	// ConditionReady is True while the ConfigMap holds the text.
	ConditionReady = "Ready"
	ReasonWritten  = "Written"
	ReasonNotOwned = "NotOwned" // a ConfigMap of somebody else has the name
	ReasonRefused  = "Refused"  // by the API server: a quota, a policy, a right that is missing
)

// WidgetStatus is what the controller has seen.
// It is a subresource, so an update of the spec does not change it.
type WidgetStatus struct {
	// The metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WidgetList is what a list request returns.
//
// +kubebuilder:object:root=true
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Widget `json:"items"`
}
