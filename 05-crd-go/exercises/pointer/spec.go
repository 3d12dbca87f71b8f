// Package pointer holds the spec of a Cup.
package pointer

// CupSpec is what the author of a Cup wants.
type CupSpec struct {
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Scoops *int32 `json:"scoops,omitempty"`

	// +optional
	// +kubebuilder:default=true
	Lid *bool `json:"lid,omitempty"`

	// +optional
	Note string `json:"note,omitempty"`
}
