package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// These are all the requests of the controller beside those of its informers, each
// of them sent once (see loop.Once).

// applyMark makes a pod carry exactly the wished mark of a policy, and returns
// the pod as it is after that. Whatever the field manager no longer
// names, the API server removes, unless somebody else owns it, too.
//
// The UID in the body keeps the request from marking, or even making, another
// pod with the same name.
func (c *Controller) applyMark(ctx context.Context, policy types.UID, p *pod, w wish) (now pod, err error) {
	apply := applycorev1.Pod(p.Name, p.Namespace).WithUID(p.UID)
	switch {
	case w == wishNone: // neither labels nor annotations: with empty ones an entry in managedFields would stay
	case w.annotation:
		apply.WithAnnotations(map[string]string{w.key: w.value})
	default:
		apply.WithLabels(map[string]string{w.key: w.value})
	}
	answer, err := c.core.Pods(p.Namespace).Apply(ctx, apply, metav1.ApplyOptions{FieldManager: manager(policy)})
	if err != nil {
		return pod{}, fmt.Errorf("applying the mark of pod %s: %w", p.Name, c.confirm(ctx, p, err))
	}
	return *reduce(answer), nil
}

// livePolicy reads a policy from the API server.
func (c *Controller) livePolicy(ctx context.Context, key cache.ObjectName) (*v1alpha1.HealthCheckPolicy, error) {
	policy, err := c.policyClient.HealthCheckPolicies(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the policy live: %w", err)
	}
	return policy, nil
}

// patchFinalizers adds or removes the finalizer. It is a patch, not an update:
// an update would lose the fields that this program does not know.
func (c *Controller) patchFinalizers(ctx context.Context, policy *v1alpha1.HealthCheckPolicy, add bool) (*v1alpha1.HealthCheckPolicy, error) {
	finalizers := slices.DeleteFunc(slices.Clone(policy.Finalizers), func(f string) bool { return f == v1alpha1.TakeBackFinalizer })
	if add {
		finalizers = append(finalizers, v1alpha1.TakeBackFinalizer)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers": finalizers, "uid": policy.UID, "resourceVersion": policy.ResourceVersion,
	}})
	if err != nil {
		return nil, fmt.Errorf("encoding the finalizers: %w", err)
	}
	policies := c.policyClient.HealthCheckPolicies(policy.Namespace)
	answer, err := policies.Patch(ctx, policy.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("writing the finalizers: %w", loop.Confirm(ctx, err, policy, policies.Get))
	}
	return answer, nil
}

// postEviction asks for the eviction of a pod in exactly this state. A dry run
// asks only whether the eviction would be allowed.
//
// Both preconditions are needed even for the dry run: without a resourceVersion
// the API server itself tries again for ten seconds after a conflict.
func (c *Controller) postEviction(ctx context.Context, p metav1.Object, dryRun ...string) error {
	name, uid, version := p.GetName(), p.GetUID(), p.GetResourceVersion()
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.GetNamespace(), Name: name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}},
	}
	err := c.core.RESTClient().Post().
		Namespace(p.GetNamespace()).Resource("pods").Name(name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{DryRun: dryRun}, scheme.ParameterCodec).
		Body(eviction).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("evicting pod %s: %w", name, c.confirm(ctx, p, err))
	}
	return nil
}

// confirm looks whether a pod is gone or has changed, if an error says so.
func (c *Controller) confirm(ctx context.Context, p metav1.Object, err error) error {
	if answerOf(err) != podGone {
		return err
	}
	return loop.Confirm(ctx, err, p, c.core.Pods(p.GetNamespace()).Get)
}

// An answer is what an error of the API server means for a request about a pod.
type answer int

const (
	accepted     answer = iota
	podGone             // or it was replaced
	keyConflict         // another field manager owns the key, with another value
	budgetAnswer        // a PodDisruptionBudget is in the way
	forbidden           // 403
	refused             // any other 4xx: the same request will fail again
	tryAgain            // another try may go better
)

// reason is that of the condition Enforced.
func (a answer) reason() string {
	switch a {
	case forbidden:
		return v1alpha1.ReasonForbidden
	case keyConflict:
		return v1alpha1.ReasonKeyConflict
	case budgetAnswer:
		return v1alpha1.ReasonDisruptionBudget
	default:
		return v1alpha1.ReasonRefused
	}
}

func answerOf(err error) answer {
	var status apierrors.APIStatus
	if err == nil {
		return accepted
	}
	if !errors.As(err, &status) {
		return tryAgain // no answer at all
	}
	code := status.Status().Code
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) && code == http.StatusConflict:
		return keyConflict
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause), strings.Contains(status.Status().Message, twoBudgets):
		return budgetAnswer
	case code == http.StatusConflict, code == http.StatusNotFound, uidRefused(status.Status()):
		return podGone
	case code == http.StatusForbidden:
		return forbidden
	case code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusGone: // 410 is a list that took too long
		return refused
	default:
		return tryAgain
	}
}

// mayBeDone reports whether the API server may have done what a request asked for, although it has failed.
func mayBeDone(err error) bool {
	var status apierrors.APIStatus
	return err != nil && (!errors.As(err, &status) || status.Status().Code >= 500 && answerOf(err) == tryAgain)
}

// twoBudgets is in the answer to the eviction of a pod with more than one
// PodDisruptionBudget. It is a 500 without a reason or a cause, but no accident.
const twoBudgets = "more than one PodDisruptionBudget"

// uidRefused recognizes a pod that was replaced by one with the same name: its UID cannot be changed.
func uidRefused(s metav1.Status) bool {
	return s.Code == http.StatusUnprocessableEntity && s.Details != nil &&
		slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// serverMessage is what the server said, without this program's words around it.
func serverMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}
