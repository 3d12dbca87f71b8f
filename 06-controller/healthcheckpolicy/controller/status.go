package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// precedence is the order in which the reasons of Enforced=False apply.
// InvalidSelector comes before all of them, but then no pod is looked at.
var precedence = []string{
	v1alpha1.ReasonForbidden, v1alpha1.ReasonRefused, v1alpha1.ReasonKeyConflict,
	v1alpha1.ReasonDisruptionBudget, v1alpha1.ReasonThrottled, v1alpha1.ReasonNotEvictable,
}

// An outcome holds the pods on which the action could not be carried out.
type outcome struct {
	pods    map[string]sets.Set[types.UID] // by reason; none where it is about the policy itself
	message map[string]string              // by reason, what the server said about one of them
}

// add notes a reason. A pod counts once for it, though two requests about it may have failed.
func (o *outcome) add(reason string, pod *pod, message string) {
	if o.pods == nil {
		o.pods, o.message = map[string]sets.Set[types.UID]{}, map[string]string{}
	}
	// Of several messages the same one counts in each pass, whatever its order.
	if o.pods[reason] == nil || message < o.message[reason] {
		o.message[reason] = message
	}
	if o.pods[reason] == nil {
		o.pods[reason] = sets.New[types.UID]()
	}
	if pod != nil {
		o.pods[reason].Insert(pod.UID)
	}
}

const (
	maxServerMessage = 1024
	serverSays       = ". The server says: "
)

// sameRefusal reports whether two messages count the same pods, and quote the same words of the server.
func sameRefusal(a, b string) bool {
	counts, said, _ := strings.Cut(a, serverSays)
	otherCounts, otherSaid, _ := strings.Cut(b, serverSays)
	return counts == otherCounts && loop.SameWords(said, otherSaid)
}

// enforced returns the condition's reason and message. The message holds nothing
// that varies without a change: no times, and no numbers of tries.
func (o *outcome) enforced() (reason, message string) {
	var counts []string
	var said string
	for _, r := range precedence {
		pods, applies := o.pods[r]
		if !applies {
			continue
		}
		if reason == "" {
			reason = r
		}
		if len(pods) > 0 {
			counts = append(counts, fmt.Sprintf("%s: %s", r, plural(len(pods))))
		} else {
			counts = append(counts, r)
		}
		if said == "" {
			said = o.message[r]
		}
	}
	message = strings.Join(counts, "; ")
	if said != "" {
		message += serverSays + loop.Cut(said, maxServerMessage)
	}
	return reason, message
}

func plural(pods int) string {
	if pods == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", pods)
}

// statusOf returns what the policy's status should be, except for the time.
func (p *pass) statusOf() *v1alpha1.HealthCheckPolicyStatus {
	status := p.policy.Status.DeepCopy()
	switch {
	case p.policy.DeletionTimestamp != nil: // nothing is counted any more, but a user wants to know what holds the policy
		if reason, message := p.enforced(); reason != "" {
			p.set(status, v1alpha1.ConditionEnforced, metav1.ConditionFalse, reason, message)
		}
	case p.invalidSelector != nil:
		status.Statistics = nil
		message := loop.Cut(p.invalidSelector.Error(), maxServerMessage) // it quotes the selector, which can be long
		p.set(status, v1alpha1.ConditionCompliant, metav1.ConditionUnknown, v1alpha1.ReasonInvalidSelector, message)
		p.set(status, v1alpha1.ConditionEnforced, metav1.ConditionFalse, v1alpha1.ReasonInvalidSelector, message)
		status.ObservedGeneration = p.policy.Generation
	default:
		p.judged(status)
	}
	return status
}

// set sets a condition about the present generation of the policy.
func (p *pass) set(status *v1alpha1.HealthCheckPolicyStatus, kind string, value metav1.ConditionStatus, reason, message string) {
	if before := meta.FindStatusCondition(status.Conditions, kind); before != nil && before.Reason == reason && before.ObservedGeneration == p.policy.Generation && sameRefusal(before.Message, message) {
		message = before.Message // a process that has just begun hears another number of the request, for example
	}
	// SetStatusCondition uses the time only if the condition's status changes.
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: kind, Status: value, Reason: reason, Message: message,
		ObservedGeneration: p.policy.Generation, LastTransitionTime: metav1.NewTime(p.now)})
}

// judged fills in what this pass has found out about the pods.
func (p *pass) judged(status *v1alpha1.HealthCheckPolicyStatus) {
	failed, passed := len(p.failed), p.passed
	before := status.Statistics
	status.Statistics = &v1alpha1.Statistics{Pods: v1alpha1.PodStatistics{Failed: int32(failed), Passed: int32(passed)}}
	if failed == 0 {
		p.set(status, v1alpha1.ConditionCompliant, metav1.ConditionTrue, v1alpha1.ReasonAllPassed, "Every pod that counts declares every required probe")
	} else {
		p.set(status, v1alpha1.ConditionCompliant, metav1.ConditionFalse, v1alpha1.ReasonProbesMissing, fmt.Sprintf("%d of %s lack a required probe", failed, plural(failed+passed)))
	}
	if len(p.errs) > 0 { // how far the action has come is not known yet, so the generation is not through
		if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionEnforced) || !equality.Semantic.DeepEqual(before, status.Statistics) {
			meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionEnforced) // it was about other pods
		}
		return
	}
	if reason, message := p.enforced(); reason == "" {
		p.set(status, v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonDone, "The action has reached every pod that lacks a required probe")
	} else {
		p.set(status, v1alpha1.ConditionEnforced, metav1.ConditionFalse, reason, message)
	}
	if !p.keepObserved {
		status.ObservedGeneration = p.policy.Generation
	}
}

// report writes the status if it differs from what the policy has.
func (c *Controller) report(ctx context.Context, p *pass) {
	if errors.Is(errors.Join(p.errs...), loop.ErrStale) || ctx.Err() != nil {
		return // the event that the cache is waiting for, or the next process, brings the numbers
	}
	status := p.statusOf()
	if equality.Semantic.DeepEqual(*status, p.policy.Status) {
		return
	}
	if old := p.policy.Status; old.Statistics != nil && status.Statistics != nil && *old.Statistics != *status.Statistics && old.ObservedGeneration == p.policy.Generation {
		if left := p.memory.pace.settles(*status.Statistics, time.Now()); left > 0 {
			p.lookAgain(left)
			return
		}
	}
	now := metav1.NewTime(p.now)
	status.LastChecked = &now
	policy := *p.policy // a shallow copy is enough to exchange the status
	policy.Status = *status
	written, err := c.policyClient.HealthCheckPolicies(policy.Namespace).UpdateStatus(ctx, &policy, metav1.UpdateOptions{})
	if err != nil {
		p.errs = append(p.errs, err)
		return
	}
	before := meta.FindStatusCondition(p.policy.Status.Conditions, v1alpha1.ConditionEnforced)
	after := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionEnforced)
	c.wrotePolicy(p, written, "status", "the check has changed it")
	if after != nil && after.Status == metav1.ConditionFalse && after.Reason != v1alpha1.ReasonThrottled && (before == nil || before.Reason != after.Reason) {
		c.event(p, nil, corev1.EventTypeWarning, after.Reason, "Enforce", after.Message)
	}
}
