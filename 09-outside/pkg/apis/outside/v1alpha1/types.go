package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ColdRoom is a room that is rented in the cold store, for as long as this object lives.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
//
// +kubebuilder:resource:path=coldrooms,singular=coldroom
// +kubebuilder:metadata:labels="workshop.k8s-go.dev/step=09"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Room,type=string,JSONPath=".status.roomID"
// +kubebuilder:printcolumn:name=Pallets,type=integer,JSONPath=".status.pallets"
// +kubebuilder:printcolumn:name=Celsius,type=integer,JSONPath=".status.celsius"
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name=Synced,type=string,JSONPath=".status.conditions[?(@.type=='Synced')].reason"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
type ColdRoom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ColdRoomSpec `json:"spec"`
	// +optional
	Status ColdRoomStatus `json:"status,omitzero"`
}

// ColdRoomSpec is what the author of a ColdRoom wants.
type ColdRoomSpec struct {
	// How many pallets it holds.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Pallets int32 `json:"pallets"`

	// How cold it is.
	// +optional
	// +kubebuilder:default=-18
	// +kubebuilder:validation:Minimum=-30
	// +kubebuilder:validation:Maximum=8
	Celsius *int32 `json:"celsius,omitempty"`

	// What happens to the room when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// DeletionPolicy says what happens to the room when its ColdRoom is deleted.
//
// +kubebuilder:validation:Enum=Delete;Orphan
type DeletionPolicy string

const (
	Delete DeletionPolicy = "Delete" // it is given up, and the object stays until it is gone
	Orphan DeletionPolicy = "Orphan" // it stays rented, and nobody here looks after it any more
)

// Finalizer keeps a ColdRoom until its room is gone.
const Finalizer = "outside.k8s-go.openshift.org/room"

// UIDTag is the tag of a room whose value is the UID of its ColdRoom.
const UIDTag = "coldroom-uid"

// The types of the conditions in a ColdRoom's status, and their reasons.
const (
	// ConditionReady is True while the room can be used.
	ConditionReady  = "Ready"
	ReasonReady     = "Ready"
	ReasonNotRented = "NotRented"
	ReasonPreparing = "Preparing"
	ReasonClosed    = "Closed"

	// ConditionSynced is True while the room is what the spec wants.
	ConditionSynced   = "Synced"
	ReasonSynced      = "Synced"
	ReasonProgressing = "Progressing"
	ReasonRefused     = "Refused" // by the store, which will say the same again: the message says why
	ReasonFailing     = "Failing" // for now: it is tried again later and later
)

// ColdRoomStatus is what the controller has done and seen.
type ColdRoomStatus struct {
	// The metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The request for a room, written down before it is sent, until its answer is here.
	// +optional
	Request *RoomRequest `json:"request,omitempty"`

	// How many requests there have been. Each has a key of its own.
	// +optional
	Requests int64 `json:"requests,omitempty"`

	// The room's ID in the store.
	// +optional
	RoomID string `json:"roomID,omitempty"`

	// The change of size that was begun last, until it has come to an end.
	// +optional
	Resize *Resize `json:"resize,omitempty"`

	// The change of temperature that was refused, until one is not.
	// +optional
	Cooling *Attempt `json:"cooling,omitempty"`

	// +optional
	Pallets *int32 `json:"pallets,omitempty"`
	// +optional
	Celsius *int32 `json:"celsius,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RoomRequest is a request as it is sent: the same again means the same room.
type RoomRequest struct {
	Key     string `json:"key"` // the Idempotency-Key
	Pallets int32  `json:"pallets"`
	Celsius int32  `json:"celsius"`
	Attempt `json:",inline"`
}

// Resize is a change of size, which takes several calls.
type Resize struct {
	To      int32 `json:"to"`
	Attempt `json:",inline"`
}

// Attempt says when and why something was begun, and how it ended if that was in vain.
type Attempt struct {
	// The metadata.generation that wanted it.
	Generation int64       `json:"generation"`
	Since      metav1.Time `json:"since"`
	// Why the store has refused it. It is not tried again before the spec changes, or long after Since.
	// +optional
	Refused string `json:"refused,omitempty"`
}

// ColdRoomList is what a list request returns.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type ColdRoomList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ColdRoom `json:"items"`
}
