package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

func aDifferentPod() *pod { return &pod{ObjectMeta: metav1.ObjectMeta{UID: uuid.NewUUID()}} }

func TestTheFirstReasonThatAppliesAndACountOfEach(t *testing.T) {
	var o outcome
	if reason, _ := o.enforced(); reason != "" {
		t.Errorf("reason %q, though nothing is in the way", reason)
	}
	for _, step := range []struct{ add, said, reason, message string }{
		{"NotEvictable", "", "NotEvictable", "NotEvictable: 1 pod"},
		{"Throttled", "", "Throttled", "Throttled: 1 pod; NotEvictable: 1 pod"},
		{"DisruptionBudget", "", "DisruptionBudget", "DisruptionBudget: 1 pod; Throttled: 1 pod; NotEvictable: 1 pod"},
		{"DisruptionBudget", "", "DisruptionBudget", "DisruptionBudget: 2 pods; Throttled: 1 pod; NotEvictable: 1 pod"},
		{"KeyConflict", "", "KeyConflict", "KeyConflict: 1 pod; DisruptionBudget: 2 pods; Throttled: 1 pod; NotEvictable: 1 pod"},
		{"Refused", "no such field", "Refused", "Refused: 1 pod; KeyConflict: 1 pod; DisruptionBudget: 2 pods; Throttled: 1 pod; NotEvictable: 1 pod. The server says: no such field"},
		{"Refused", "something else", "Refused", "Refused: 2 pods; KeyConflict: 1 pod; DisruptionBudget: 2 pods; Throttled: 1 pod; NotEvictable: 1 pod. The server says: no such field"},
		{"Forbidden", "you cannot", "Forbidden", "Forbidden: 1 pod; Refused: 2 pods; KeyConflict: 1 pod; DisruptionBudget: 2 pods; Throttled: 1 pod; NotEvictable: 1 pod. The server says: you cannot"},
	} {
		o.add(step.add, aDifferentPod(), step.said)
		if reason, message := o.enforced(); reason != step.reason || message != step.message {
			t.Errorf("after %s: %s, %q; want %s, %q", step.add, reason, message, step.reason, step.message)
		}
	}
	o = outcome{}
	one := aDifferentPod()
	o.add("Forbidden", one, "its mark")
	o.add("Forbidden", one, "its eviction")
	if _, message := o.enforced(); message != "Forbidden: 1 pod. The server says: its eviction" {
		t.Errorf("a pod of which both requests are refused: %q", message)
	}
	o = outcome{}
	o.add("Forbidden", nil, "no policies")
	if _, message := o.enforced(); message != "Forbidden. The server says: no policies" {
		t.Errorf("a policy that cannot go: %q", message)
	}
	o = outcome{}
	o.add("Refused", aDifferentPod(), strings.Repeat("ä", 5000))
	if _, message := o.enforced(); len(message) > 1100 || !strings.HasSuffix(message, "...") {
		t.Errorf("a long message of the server is not cut: %d bytes", len(message))
	}
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func aPass(policy *v1alpha1.HealthCheckPolicy, now time.Time) *pass {
	return &pass{policy: policy, memory: newMemory(policy.UID), now: now}
}

func TestStatusChangesOnlyWithWhatItReports(t *testing.T) {
	policy := policyWith(metav1.LabelSelector{})
	policy.Generation = 3
	p := aPass(policy, noon)
	p.passed = 2
	first := p.statusOf()
	if c := meta.FindStatusCondition(first.Conditions, "Compliant"); c == nil || c.Status != "True" || c.Reason != "AllPassed" || c.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(noon) {
		t.Errorf("Compliant: %+v", c)
	}
	if c := meta.FindStatusCondition(first.Conditions, "Enforced"); c == nil || c.Status != "True" || c.Reason != "Done" || c.ObservedGeneration != 3 {
		t.Errorf("Enforced: %+v", c)
	}
	if first.ObservedGeneration != 3 || first.Statistics == nil || first.Statistics.Pods.Passed != 2 || first.Statistics.Pods.Failed != 0 {
		t.Errorf("status: %+v", first)
	}

	policy.Status = *first
	p = aPass(policy, noon.Add(time.Hour))
	p.passed = 2
	if again := p.statusOf(); !equality.Semantic.DeepEqual(again, first) {
		t.Errorf("nothing has changed, and the status becomes %+v", again)
	}

	p.passed, p.failed = 1, []*pod{{}}
	p.add("KeyConflict", aDifferentPod(), "")
	worse := p.statusOf()
	if c := meta.FindStatusCondition(worse.Conditions, "Compliant"); c.Status != "False" || c.Reason != "ProbesMissing" || c.Message != "1 of 2 pods lack a required probe" || !c.LastTransitionTime.Time.Equal(noon.Add(time.Hour)) {
		t.Errorf("Compliant: %+v", c)
	}
	policy.Status = *worse
	p = aPass(policy, noon.Add(2*time.Hour))
	p.failed = []*pod{{}, {}}
	p.add("Refused", aDifferentPod(), "no")
	if c := meta.FindStatusCondition(p.statusOf().Conditions, "Enforced"); c.Reason != "Refused" || !c.LastTransitionTime.Time.Equal(noon.Add(time.Hour)) {
		t.Errorf("the time of the transition moves though the status stays False: %+v", c)
	}
}

func TestStatusOfAnInvalidSelector(t *testing.T) {
	policy := policyWith(metav1.LabelSelector{})
	policy.Status.Statistics = &v1alpha1.Statistics{}
	policy.Generation = 2
	p := aPass(policy, noon)
	p.invalidSelector = errors.New("bad")
	status := p.statusOf()
	compliant, enforced := meta.FindStatusCondition(status.Conditions, "Compliant"), meta.FindStatusCondition(status.Conditions, "Enforced")
	if status.Statistics != nil || status.ObservedGeneration != 2 || compliant.Status != "Unknown" || enforced.Status != "False" ||
		compliant.Reason != "InvalidSelector" || enforced.Reason != "InvalidSelector" || compliant.Message != "bad" {
		t.Errorf("status: %+v", status)
	}
}

// An API server's error quotes the value, and a condition's message has a limit.
func TestStatusOfALongInvalidSelector(t *testing.T) {
	p := aPass(policyWith(metav1.LabelSelector{}), noon)
	p.invalidSelector = errors.New(strings.Repeat("x", 40_000))
	for _, c := range p.statusOf().Conditions {
		if len(c.Message) > 32768 { // maxLength of metav1.Condition
			t.Errorf("the message of %s has %d bytes", c.Type, len(c.Message))
		}
	}
}

// Which of several pods is looked at first varies from pass to pass. The message does not.
func TestMessageDoesNotDependOnTheOrder(t *testing.T) {
	one, other := aPass(policyWith(metav1.LabelSelector{}), noon), aPass(policyWith(metav1.LabelSelector{}), noon)
	one.add("Forbidden", aDifferentPod(), "pods a")
	one.add("Forbidden", aDifferentPod(), "pods b")
	other.add("Forbidden", aDifferentPod(), "pods b")
	other.add("Forbidden", aDifferentPod(), "pods a")
	_, first := one.enforced()
	if _, second := other.enforced(); first != second {
		t.Errorf("%q and %q", first, second)
	}
}

// What has failed for now says nothing about the action, and the generation is not through.
func TestStatusWhileSomethingIsUnclear(t *testing.T) {
	policy := policyWith(metav1.LabelSelector{})
	policy.Status.ObservedGeneration, policy.Generation = 1, 2
	p := aPass(policy, noon)
	p.failed = []*pod{{}}
	p.errs = []error{errors.New("503")}
	if s := p.statusOf(); meta.FindStatusCondition(s.Conditions, "Enforced") != nil || s.ObservedGeneration != 1 || s.Statistics.Pods.Failed != 1 {
		t.Errorf("status: %+v", s)
	}
	p.errs, p.keepObserved = nil, true
	if s := p.statusOf(); meta.FindStatusCondition(s.Conditions, "Enforced") == nil || s.ObservedGeneration != 1 {
		t.Errorf("status: %+v", s)
	}
}

func TestConditionsOfOthersStay(t *testing.T) {
	policy := policyWith(metav1.LabelSelector{})
	policy.Status.Conditions = []metav1.Condition{{Type: "Reviewed", Status: "True", Reason: "ByHand"}}
	if c := meta.FindStatusCondition(aPass(policy, noon).statusOf().Conditions, "Reviewed"); c == nil || c.Reason != "ByHand" {
		t.Errorf("%+v", c)
	}
}
