package controller

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// What an Icecream's Deployment and status should be. These functions only compute.

const (
	container = "icecream"
	maxNodes  = 100 // in a status
)

func replicasOf(ice *controllerv1alpha1.Icecream) int32 { return ptr.Deref(ice.Spec.Replicas, 1) }

// deploymentFor is all that this controller sets in a Deployment. The rest is others'.
func deploymentFor(ice *controllerv1alpha1.Icecream, image string) *applyappsv1.DeploymentApplyConfiguration {
	labels := map[string]string{controllerv1alpha1.UIDLabel: string(ice.UID)}
	return applyappsv1.Deployment(ice.Spec.DeploymentName, ice.Namespace).
		WithOwnerReferences(applymetav1.OwnerReference(). // SetControllerReference wants an object
									WithAPIVersion(controllerv1alpha1.GroupVersion.String()).WithKind("Icecream").
									WithName(ice.Name).WithUID(ice.UID).
									WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(applyappsv1.DeploymentSpec().
			WithReplicas(replicasOf(ice)).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().
				WithLabels(labels).
				WithSpec(applycorev1.PodSpec().
					WithContainers(applycorev1.Container().WithName(container).WithImage(image)))))
}

// owned says whether the Deployment is the Icecream's. A reference that is not marked as the
// controller's counts if there is no other controller.
func owned(ice *controllerv1alpha1.Icecream, d *appsv1.Deployment) bool {
	if metav1.GetControllerOfNoCopy(d) != nil {
		return metav1.IsControlledBy(d, ice)
	}
	return slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == ice.UID })
}

// drifted says whether something that we set is different.
func drifted(ice *controllerv1alpha1.Icecream, image string, d *appsv1.Deployment) bool {
	owner := *metav1.NewControllerRef(ice, controllerv1alpha1.GroupVersion.WithKind("Icecream"))
	labels := map[string]string{controllerv1alpha1.UIDLabel: string(ice.UID)}
	return !slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(r, owner) }) ||
		ptr.Deref(d.Spec.Replicas, 1) != replicasOf(ice) ||
		!equality.Semantic.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{MatchLabels: labels}) ||
		d.Spec.Template.Labels[controllerv1alpha1.UIDLabel] != string(ice.UID) ||
		!slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == container && c.Image == image })
}

// available says whether the Deployment's controller has rolled out what the Icecream asks for,
// and all of it is available.
func available(ice *controllerv1alpha1.Icecream, d *appsv1.Deployment) bool {
	return d.DeletionTimestamp.IsZero() && ptr.Deref(d.Spec.Replicas, 1) == replicasOf(ice) && rolledOut(d)
}

// rolledOut says whether all pods of a Deployment are those that it asks for now, and available.
func rolledOut(d *appsv1.Deployment) bool {
	s, replicas := d.Status, ptr.Deref(d.Spec.Replicas, 1)
	return s.ObservedGeneration >= d.Generation && // else the numbers are about something older
		s.UpdatedReplicas >= replicas && s.Replicas == s.UpdatedReplicas && s.AvailableReplicas >= replicas
}

// digits are what differs from one refusal to the next without a meaning: times, and the numbers of requests.
var digits = regexp.MustCompile(`[0-9]+`)

// statusOf returns the status that an Icecream should have. The Deployment is the one whose
// numbers count, if there is any; it may still be one of an older name.
func statusOf(ice *controllerv1alpha1.Icecream, d *appsv1.Deployment, pods []corev1.Pod, failed error) controllerv1alpha1.IcecreamStatus {
	status := *ice.Status.DeepCopy()
	status.ObservedGeneration = ice.Generation
	status.Selector = controllerv1alpha1.UIDLabel + "=" + string(ice.UID)
	status.Nodes = nodesOf(pods)
	status.Replicas, status.AvailableReplicas = nil, nil
	if d != nil && d.Status.ObservedGeneration > 0 { // else nobody has counted
		status.Replicas, status.AvailableReplicas = ptr.To(d.Status.Replicas), ptr.To(d.Status.AvailableReplicas)
	}
	set := func(kind string, ok bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: ice.Generation}
		if ok {
			c.Status = metav1.ConditionTrue
		}
		if before := meta.FindStatusCondition(status.Conditions, kind); reason == controllerv1alpha1.ReasonRefused &&
			before != nil && before.Reason == reason && before.ObservedGeneration == ice.Generation && digits.ReplaceAllString(before.Message, "") == digits.ReplaceAllString(message, "") {
			c.Message = before.Message // another time or number in each answer would be a write each time
		}
		meta.SetStatusCondition(&status.Conditions, c) // moves lastTransitionTime only with the condition's status
	}
	switch said := refusal(failed); {
	case errors.Is(failed, errForeign):
		set(controllerv1alpha1.ConditionOwned, false, controllerv1alpha1.ReasonErrResourceExists, failed.Error())
		set(controllerv1alpha1.ConditionAvailable, false, controllerv1alpha1.ReasonProgressing, "Waiting for the name "+ice.Spec.DeploymentName)
		return status
	case d == nil || d.Name != ice.Spec.DeploymentName:
		set(controllerv1alpha1.ConditionOwned, false, controllerv1alpha1.ReasonRefused, "There is no Deployment "+ice.Spec.DeploymentName)
		set(controllerv1alpha1.ConditionAvailable, false, controllerv1alpha1.ReasonRefused, said)
	case said != "":
		set(controllerv1alpha1.ConditionOwned, true, controllerv1alpha1.ReasonCreated, "Deployment "+d.Name+" belongs to this Icecream")
		set(controllerv1alpha1.ConditionAvailable, false, controllerv1alpha1.ReasonRefused, said)
	default:
		reason := controllerv1alpha1.ReasonProgressing
		if available(ice, d) {
			reason = controllerv1alpha1.ReasonAvailable
		}
		set(controllerv1alpha1.ConditionOwned, true, controllerv1alpha1.ReasonCreated, "Deployment "+d.Name+" belongs to this Icecream")
		set(controllerv1alpha1.ConditionAvailable, available(ice, d), reason, fmt.Sprintf("%d of %d replicas are available", d.Status.AvailableReplicas, replicasOf(ice)))
	}
	return status
}

// refusal returns what the server has said, if the same request will meet the same answer again:
// a quota, a webhook, a policy, a right that is missing.
func refusal(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ""
	}
	s := status.Status()
	passing := []int32{http.StatusUnauthorized, http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests}
	if s.Code < 400 || s.Code >= 500 || slices.Contains(passing, s.Code) {
		return ""
	}
	return strings.ToValidUTF8(s.Message[:min(len(s.Message), 1024)], "")
}

// refused says whether the status reports a refusal.
func refused(ice *controllerv1alpha1.Icecream) bool {
	c := meta.FindStatusCondition(ice.Status.Conditions, controllerv1alpha1.ConditionAvailable)
	return c != nil && c.Reason == controllerv1alpha1.ReasonRefused
}

// nodesOf returns the names of the nodes that the pods run on, in order.
func nodesOf(pods []corev1.Pod) []string {
	var nodes []string
	for _, pod := range pods {
		if node := nodeOf(&pod); node != "" {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	return nodes[:min(len(nodes), maxNodes)]
}

// nodeOf returns the node that a pod runs on: none if it waits for one or has finished.
func nodeOf(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Spec.NodeName
}

func uidLabel(o client.Object) string { return o.GetLabels()[controllerv1alpha1.UIDLabel] }
