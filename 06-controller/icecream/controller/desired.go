package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// What an Icecream's Deployment and status should be. These functions only
// compute: they read no cache and write nothing, so that a test needs no server.

const container = "icecream"

// maxNodes is how many nodes a status names at most.
const maxNodes = 100

func replicasOf(ice *v1alpha1.Icecream) int32 { return ptr.Deref(ice.Spec.Replicas, 1) }

func podLabels(ice *v1alpha1.Icecream) map[string]string {
	return map[string]string{v1alpha1.UIDLabel: string(ice.UID)}
}

// desired is all that this controller sets in a Deployment. It leaves every
// other field to its default, or to others.
func desired(ice *v1alpha1.Icecream, image string) *applyappsv1.DeploymentApplyConfiguration {
	return applyappsv1.Deployment(ice.Spec.DeploymentName, ice.Namespace).
		WithOwnerReferences(applymetav1.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind(v1alpha1.IcecreamKind.Kind).
			WithName(ice.Name).WithUID(ice.UID).
			WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(applyappsv1.DeploymentSpec().
			WithReplicas(replicasOf(ice)).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(podLabels(ice))).
			WithTemplate(applycorev1.PodTemplateSpec().
				WithLabels(podLabels(ice)).
				WithSpec(applycorev1.PodSpec().
					WithContainers(applycorev1.Container().WithName(container).WithImage(image)))))
}

// newDeployment is the same as an object to create.
func newDeployment(ice *v1alpha1.Icecream, image string) (*appsv1.Deployment, error) {
	data, err := json.Marshal(desired(ice, image))
	if err != nil {
		return nil, fmt.Errorf("encoding the Deployment: %w", err)
	}
	d := &appsv1.Deployment{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("decoding the Deployment: %w", err)
	}
	return d, nil
}

// driftOf names the first field of ours that is not as desired, or "".
func driftOf(ice *v1alpha1.Icecream, image string, d *appsv1.Deployment) string {
	owner := metav1.NewControllerRef(ice, v1alpha1.IcecreamKind)
	template := d.Spec.Template
	switch {
	case !slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.UID == owner.UID && r.APIVersion == owner.APIVersion && r.Kind == owner.Kind && r.Name == owner.Name &&
			ptr.Deref(r.Controller, false) && ptr.Deref(r.BlockOwnerDeletion, false)
	}):
		return "owner reference"
	case ptr.Deref(d.Spec.Replicas, 1) != replicasOf(ice):
		return "replicas"
	case d.Spec.Selector == nil || len(d.Spec.Selector.MatchExpressions) > 0 || !maps.Equal(d.Spec.Selector.MatchLabels, podLabels(ice)):
		return "selector"
	case template.Labels[v1alpha1.UIDLabel] != string(ice.UID):
		return "pod label"
	case !slices.ContainsFunc(template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == container && c.Image == image
	}):
		return "image"
	}
	return ""
}

// available says whether the Deployment's controller has rolled out what the
// Icecream asks for, and all of it is available.
func available(ice *v1alpha1.Icecream, d *appsv1.Deployment) bool {
	s := d.Status
	return d.DeletionTimestamp == nil && s.ObservedGeneration >= d.Generation && // else the numbers are about something older
		ptr.Deref(d.Spec.Replicas, 1) == replicasOf(ice) &&
		s.UpdatedReplicas >= replicasOf(ice) && s.Replicas == s.UpdatedReplicas && s.AvailableReplicas >= replicasOf(ice)
}

// A problem is why an Icecream does not get what it asks for: the name is somebody
// else's (ErrResourceExists), or the API server has refused a write (Refused).
type problem struct{ reason, message string }

// refused says whether the Icecream's status reports that the API server has refused a write.
func refused(ice *v1alpha1.Icecream) bool {
	c := meta.FindStatusCondition(ice.Status.Conditions, v1alpha1.ConditionAvailable)
	return c != nil && c.Reason == v1alpha1.ReasonRefused
}

// onlyStatusChanged compares two versions of an Icecream. A resync brings the same one twice.
func onlyStatusChanged(old, now *v1alpha1.Icecream) bool {
	if old.ResourceVersion == now.ResourceVersion {
		return false
	}
	same := old.DeepCopy()
	same.Status, same.ResourceVersion, same.ManagedFields = now.Status, now.ResourceVersion, now.ManagedFields
	return equality.Semantic.DeepEqual(same, now)
}

// statusOf returns the status that an Icecream should have. The Deployment is the
// one whose numbers count: nil if the Icecream has none, and one of an older name as
// long as it does not get the one that it asks for.
func statusOf(ice *v1alpha1.Icecream, d *appsv1.Deployment, pods []any, p problem) v1alpha1.IcecreamStatus {
	status := *ice.Status.DeepCopy()
	status.ObservedGeneration = ice.Generation
	status.Selector = labels.Set(podLabels(ice)).String()
	status.Nodes = nodesOf(pods)
	// What nobody has counted yet is absent; zero is a count.
	status.Replicas, status.AvailableReplicas = nil, nil
	if d != nil && d.Status.ObservedGeneration > 0 {
		status.Replicas, status.AvailableReplicas = ptr.To(d.Status.Replicas), ptr.To(d.Status.AvailableReplicas)
	}

	set := func(kind string, ok bool, yes, no, message string) {
		condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message, ObservedGeneration: ice.Generation}
		if ok {
			condition.Status, condition.Reason = metav1.ConditionTrue, yes
		}
		meta.SetStatusCondition(&status.Conditions, condition) // moves lastTransitionTime only with the condition's status
	}
	if p.reason == v1alpha1.ReasonErrResourceExists {
		set(v1alpha1.ConditionOwned, false, "", p.reason, p.message)
		set(v1alpha1.ConditionAvailable, false, "", v1alpha1.ReasonProgressing, "Waiting for the name "+ice.Spec.DeploymentName)
		return status
	}
	if d == nil || d.Name != ice.Spec.DeploymentName {
		set(v1alpha1.ConditionOwned, false, "", p.reason, "There is no Deployment "+ice.Spec.DeploymentName)
	} else {
		set(v1alpha1.ConditionOwned, true, v1alpha1.ReasonCreated, "", "Deployment "+d.Name+" belongs to this Icecream")
	}
	if p.reason == v1alpha1.ReasonRefused {
		set(v1alpha1.ConditionAvailable, false, "", p.reason, p.message)
		return status
	}
	set(v1alpha1.ConditionAvailable, available(ice, d), v1alpha1.ReasonAvailable, v1alpha1.ReasonProgressing,
		fmt.Sprintf("%d of %d replicas are available", d.Status.AvailableReplicas, replicasOf(ice)))
	return status
}

// nodesOf returns the names of the nodes that the pods run on, in order.
func nodesOf(pods []any) []string {
	nodes := map[string]bool{}
	for _, o := range pods {
		if node := nodeOf(o.(*corev1.Pod)); node != "" {
			nodes[node] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(nodes))
	return sorted[:min(len(sorted), maxNodes)]
}

// nodeOf returns the node that a pod runs on: none if it waits for one or has finished.
func nodeOf(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Spec.NodeName
}
