package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the fields and the markers of step 05: both CRDs accept the same objects.

// IcecreamSpec is what the author of an Icecream wants.
type IcecreamSpec struct {
	// Name of the Deployment that belongs to this Icecream.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	DeploymentName string `json:"deploymentName"`

	// How many pods the Deployment has.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
}

// UIDLabel is the label of a Deployment's pods whose value is the Icecream's UID.
const UIDLabel = "controller.nicoleh.io/uid"

// The types of the conditions in an Icecream's status, and their reasons.
const (
	// ConditionAvailable is True when all the replicas that are wanted are available.
	ConditionAvailable = "Available"
	ReasonAvailable    = "Available"
	ReasonProgressing  = "Progressing"
	ReasonRefused      = "Refused" // by the API server: the message says why

	// ConditionOwned is False while the Deployment belongs to somebody else, or while there is none.
	ConditionOwned          = "Owned"
	ReasonCreated           = "Created"
	ReasonErrResourceExists = "ErrResourceExists"
)

// IcecreamStatus is what the controller has seen. A number that is absent is not
// known; 0 is a number.
type IcecreamStatus struct {
	// The metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// How many pods the Deployment has, available or not.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// +optional
	// +kubebuilder:validation:Minimum=0
	AvailableReplicas *int32 `json:"availableReplicas,omitempty"`

	// Selects the Deployment's pods. The subresource scale shows it, and an
	// autoscaler needs it to find their metrics.
	// +optional
	Selector string `json:"selector,omitempty"`

	// Names of the nodes that the pods run on, in order; of more than 100 the first 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Nodes []string `json:"nodes,omitempty"`

	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=icecreams,singular=icecream
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name=Deployment,type=string,JSONPath=".spec.deploymentName"
// +kubebuilder:printcolumn:name=Desired,type=integer,JSONPath=".spec.replicas"
// +kubebuilder:printcolumn:name=Available,type=integer,JSONPath=".status.availableReplicas"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:metadata:labels="workshop.k8s-go.dev/step=05"

// Icecream keeps a Deployment and says on which nodes its pods run.
type Icecream struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is a standard object metadata
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// +required
	Spec IcecreamSpec `json:"spec"`

	// +optional
	Status IcecreamStatus `json:"status,omitzero"`
}

// +kubebuilder:object:root=true

// IcecreamList contains a list of Icecream
type IcecreamList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Icecream `json:"items"`
}
