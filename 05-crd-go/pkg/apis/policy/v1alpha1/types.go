package v1alpha1

// The markers of a type, in three groups. The first makes Go code: genclient a
// client with all verbs (UpdateStatus and ApplyStatus because there is a field
// Status), a lister, an informer and an apply configuration; deepcopy-gen:interfaces
// the method DeepCopyObject, without which it is no runtime.Object. The other two
// go into the CRD: what the resource is called, and how it is written and shown.
//
// The markers of a field go into its schema. Without "optional" it is required.
// Rules over several fields are CEL and stand on the type that has the fields.
//
// The comment on a type or field becomes its description. In JSON tags, omitzero
// leaves out an empty struct; omitempty never does.

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HealthCheckPolicy says which health checks pods must declare, and what
// happens to those that do not.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
//
// +kubebuilder:resource:path=healthcheckpolicies,singular=healthcheckpolicy,shortName=hcp,categories=policies
// +kubebuilder:metadata:labels="workshop.k8s-go.dev/step=05"
//
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=".spec.action"
// +kubebuilder:printcolumn:name=Action,type=string,JSONPath=".spec.action"
// +kubebuilder:printcolumn:name=Compliant,type=string,JSONPath=".status.conditions[?(@.type==\"Compliant\")].status"
// +kubebuilder:printcolumn:name=Failed,type=integer,JSONPath=".status.statistics.pods.failed"
// +kubebuilder:printcolumn:name=Passed,type=integer,JSONPath=".status.statistics.pods.passed"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=".metadata.creationTimestamp"
type HealthCheckPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the author of the policy wants.
	// +required
	Spec HealthCheckPolicySpec `json:"spec"`

	// What the controller has seen.
	// +optional
	Status HealthCheckPolicyStatus `json:"status,omitzero"`
}

// HealthCheckPolicySpec is what the author of a policy wants.
//
// +kubebuilder:validation:XValidation:rule="self.action == 'kill' || has(self.podLabel)",message="podLabel is needed unless action is kill",reason=FieldValueRequired,fieldPath=".podLabel"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.podLabel) || has(self.podLabel) && self.podLabel == oldSelf.podLabel",message="podLabel cannot change, because pods carry the old key",reason=FieldValueForbidden,fieldPath=".podLabel"
// +kubebuilder:validation:XValidation:rule="self.action != 'label' || !has(self.podLabel) || !has(self.selector.matchLabels) || !(self.podLabel in self.selector.matchLabels)",messageExpression="'with action label the selector must not name ' + self.podLabel + ', because the policy would select by its own mark'",message="with action label the selector must not name podLabel",reason=FieldValueForbidden,fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="self.action != 'label' || !has(self.podLabel) || !has(self.selector.matchExpressions) || !(self.podLabel in self.selector.matchExpressions.map(e, e.key))",messageExpression="'with action label the selector must not name ' + self.podLabel + ', because the policy would select by its own mark'",message="with action label the selector must not name podLabel",reason=FieldValueForbidden,fieldPath=".selector"
type HealthCheckPolicySpec struct {
	// What happens to a pod that does not pass.
	// +optional
	// +kubebuilder:default=label
	Action Action `json:"action,omitempty"`

	// Key of the label or annotation that marks a pod that does not pass. Needed unless action is kill.
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:MaxLength=253
	PodLabel string `json:"podLabel,omitempty"`

	// Which pods of the namespace the policy is about. An empty selector selects all of them.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values, Exists and DoesNotExist must not have any"
	Selector metav1.LabelSelector `json:"selector,omitzero"`

	// The probes that every regular container of a pod has to declare.
	// +optional
	// +listType=atomic
	// +kubebuilder:default={liveness,readiness}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(q, q == p))",message="each probe is named once"
	RequiredProbes []Probe `json:"requiredProbes,omitempty"`

	// Limits the action kill.
	// +optional
	// +kubebuilder:default={}
	Eviction EvictionSpec `json:"eviction,omitzero"`
}

// EvictionSpec limits how a policy with the action kill evicts pods.
type EvictionSpec struct {
	// At most one pod is evicted in so many seconds.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	MinIntervalSeconds int32 `json:"minIntervalSeconds,omitempty"`
}

// Action is what happens to a pod that does not pass.
//
// +kubebuilder:validation:Enum=label;annotate;kill
type Action string

const (
	ActionLabel    Action = "label"
	ActionAnnotate Action = "annotate"
	ActionKill     Action = "kill"
)

// Probe is one of the health checks that a container can declare.
//
// +kubebuilder:validation:Enum=liveness;readiness;startup
type Probe string

const (
	ProbeLiveness  Probe = "liveness"
	ProbeReadiness Probe = "readiness"
	ProbeStartup   Probe = "startup"
)

// TakeBackFinalizer keeps a deleted policy until no pod carries its mark.
const TakeBackFinalizer = "policy.k8s-go.openshift.org/take-back"

// The types of the conditions in a policy's status.
const (
	// ConditionCompliant is True when every pod that counts passes.
	ConditionCompliant = "Compliant"
	// ConditionEnforced is True when the action has reached every pod that does not pass.
	ConditionEnforced = "Enforced"
)

// The reasons of Compliant: True, False, and Unknown.
const (
	ReasonAllPassed     = "AllPassed"
	ReasonProbesMissing = "ProbesMissing"
	// ReasonInvalidSelector is one of Enforced too.
	ReasonInvalidSelector = "InvalidSelector"
)

// The reasons of Enforced: True with Done, False with the first that applies of
// ReasonInvalidSelector and the others.
const (
	ReasonDone             = "Done"
	ReasonForbidden        = "Forbidden"
	ReasonRefused          = "Refused"
	ReasonKeyConflict      = "KeyConflict"
	ReasonDisruptionBudget = "DisruptionBudget"
	ReasonThrottled        = "Throttled"
	ReasonNotEvictable     = "NotEvictable"
)

// HealthCheckPolicyStatus is what the controller has seen.
type HealthCheckPolicyStatus struct {
	// The metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Absent until the pods have been counted.
	// +optional
	Statistics *Statistics `json:"statistics,omitempty"`

	// When a check last changed this status.
	// +optional
	LastChecked *metav1.Time `json:"lastChecked,omitempty"`

	// When the policy last evicted a pod. It is written before the eviction is sent.
	// +optional
	LastEvictionTime *metav1.Time `json:"lastEvictionTime,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Statistics counts what was checked.
type Statistics struct {
	Pods PodStatistics `json:"pods"`
}

// PodStatistics counts pods. Zero is a result like any other, so it is written.
type PodStatistics struct {
	// +kubebuilder:validation:Minimum=0
	Failed int32 `json:"failed"`
	// +kubebuilder:validation:Minimum=0
	Passed int32 `json:"passed"`
}

// HealthCheckPolicyList is what a list request returns.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type HealthCheckPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HealthCheckPolicy `json:"items"`
}
