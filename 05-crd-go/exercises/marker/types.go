// Package marker holds the Go types of a Sauce.
//
// +groupName=controller.nicoleh.io
// +versionName=v1alpha1
package marker

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Sauce is what is poured over an Icecream.
type Sauce struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SauceSpec `json:"spec"`
}

// SauceSpec is what the author of a Sauce wants.
type SauceSpec struct {
	Flavor string `json:"flavor"`

	// What people may be allergic to.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MaxLength=20
	Allergens []string `json:"allergens,omitempty"`
}
