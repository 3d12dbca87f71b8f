package v1alpha1

// New here: markers for the subresource scale, which is of a type of another
// group, and a pointer, which tells 0 replicas from none given.

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Icecream keeps a Deployment and says on which nodes its pods run.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
//
// +kubebuilder:resource:path=icecreams,singular=icecream
// +kubebuilder:metadata:labels="workshop.k8s-go.dev/step=05"
//
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.availableReplicas
// +kubebuilder:printcolumn:name=Deployment,type=string,JSONPath=".spec.deploymentName"
// +kubebuilder:printcolumn:name=Desired,type=integer,JSONPath=".spec.replicas"
// +kubebuilder:printcolumn:name=Available,type=integer,JSONPath=".status.availableReplicas"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
type Icecream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec IcecreamSpec `json:"spec"`
	// +optional
	Status IcecreamStatus `json:"status,omitzero"`
}

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

// IcecreamStatus is what the controller has seen.
type IcecreamStatus struct {
	// +optional
	// +kubebuilder:validation:Minimum=0
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`

	// Names of the nodes that the pods run on.
	// +optional
	// +listType=set
	Nodes []string `json:"nodes,omitempty"`
}

// IcecreamList is what a list request returns.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type IcecreamList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Icecream `json:"items"`
}
