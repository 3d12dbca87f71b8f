package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

// A decider knows the rules. Each of them needs objects other than the one in the request,
// which is what a schema, CEL and an admission policy cannot see. They only read, so that a
// dry run is like any other request (sideEffects: None).
//
// Between the answer and the write somebody else's write can come, so a webhook prevents
// mistakes, and not races. What must never be true is the controller's to check, too.
type decider struct {
	core kubernetes.Interface
	own  versioned.Interface
}

// confirmed is the annotation that lets a policy kill so many pods at once.
const confirmed = "policy.k8s-go.openshift.org/confirmed-kills"

// validateIcecream refuses the name of a Deployment that another Icecream wants, or that
// exists already. A name that was accepted before stays accepted: whoever must not change
// anything else of the object, such as its finalizers, could never let it go.
func (d decider) validateIcecream(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	now, old, err := objects[icecreamv1alpha1.Icecream](request)
	if err != nil {
		return nil, err
	}
	name := now.Spec.DeploymentName
	if old != nil && old.Spec.DeploymentName == name {
		return allowed()
	}
	taken, err := d.deploymentNames(ctx, request.Namespace, now.Name)
	if err != nil {
		return nil, err
	}
	if by, ok := taken[name]; ok {
		return nil, apierrors.NewForbidden(resource(request), now.Name, fmt.Errorf("spec.deploymentName: %s belongs to %s", name, by))
	}
	return allowed()
}

// mutateIcecream gives an Icecream without a deploymentName the first free one of name,
// name-2, name-3 and so on.
func (d decider) mutateIcecream(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	now, _, err := objects[icecreamv1alpha1.Icecream](request)
	if err != nil {
		return nil, err
	}
	if now.Spec.DeploymentName != "" || now.Name == "" { // nothing to do, also when we are asked again; or only generateName
		return allowed()
	}
	taken, err := d.deploymentNames(ctx, request.Namespace, now.Name)
	if err != nil {
		return nil, err
	}
	return fill(request, "deploymentName", firstFree(now.Name, taken))
}

// deploymentNames returns the names in use, and by whom, except for those of one Icecream.
func (d decider) deploymentNames(ctx context.Context, namespace, except string) (map[string]string, error) {
	taken := map[string]string{}
	deployments, err := d.core.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil { // not %w: that we may not list is no refusal of the request
		return nil, fmt.Errorf("listing Deployments: %v", err)
	}
	for _, o := range deployments.Items {
		if by := metav1.GetControllerOf(&o); by == nil || by.Kind != "Icecream" || by.Name != except {
			taken[o.Name] = "a Deployment that exists"
		}
	}
	icecreams, err := d.own.IcecreamV1alpha1().Icecreams(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Icecreams: %v", err)
	}
	for _, o := range icecreams.Items {
		if o.Name != except {
			taken[o.Spec.DeploymentName] = "the Icecream " + o.Name
		}
	}
	return taken, nil
}

// validatePolicy refuses a policy that would kill more than half of the pods in its
// namespace, unless an annotation confirms that number. It warns about another policy that
// annotates with the same key, and writes something else.
func (d decider) validatePolicy(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	now, old, err := objects[policyv1alpha1.HealthCheckPolicy](request)
	if err != nil {
		return nil, err
	}
	if old != nil && equality.Semantic.DeepEqual(old.Spec, now.Spec) {
		return allowed()
	}
	if now.Spec.Action == policyv1alpha1.ActionKill {
		return d.validateKill(ctx, request, now)
	}
	response, err := allowed()
	if err != nil || now.Spec.Action != policyv1alpha1.ActionAnnotate {
		return response, err
	}
	policies, err := d.own.PolicyV1alpha1().HealthCheckPolicies(request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing policies: %v", err)
	}
	for _, other := range policies.Items {
		if other.Name != now.Name && other.Spec.Action == now.Spec.Action && other.Spec.PodLabel == now.Spec.PodLabel && !slices.Equal(other.Spec.RequiredProbes, now.Spec.RequiredProbes) {
			response.Warnings = append(response.Warnings, fmt.Sprintf("the policy %s writes the annotation %s, too: a pod that both select keeps the first value", other.Name, now.Spec.PodLabel))
		}
	}
	return response, nil
}

func (d decider) validateKill(ctx context.Context, request *admissionv1.AdmissionRequest, policy *policyv1alpha1.HealthCheckPolicy) (*admissionv1.AdmissionResponse, error) {
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.Selector)
	if err != nil {
		return nil, apierrors.NewForbidden(resource(request), policy.Name, fmt.Errorf("spec.selector: %w", err))
	}
	pods, err := d.core.CoreV1().Pods(request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %v", err)
	}
	all, killed := 0, 0
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		all++
		if selector.Matches(labels.Set(pod.Labels)) && fails(&pod, policy.Spec.RequiredProbes) {
			killed++
		}
	}
	if number, err := strconv.Atoi(policy.Annotations[confirmed]); 2*killed <= all || err == nil && killed <= number {
		return allowed()
	}
	return nil, apierrors.NewForbidden(resource(request), policy.Name, fmt.Errorf("it would kill %d of %d pods; to confirm that, annotate it with %s=%d", killed, all, confirmed, killed))
}

// mutatePolicy gives a policy without a podLabel, which has to have one unless it kills, the
// first free one of health-check-missing, health-check-missing-2 and so on.
func (d decider) mutatePolicy(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	now, _, err := objects[policyv1alpha1.HealthCheckPolicy](request)
	if err != nil {
		return nil, err
	}
	if now.Spec.PodLabel != "" || now.Spec.Action == policyv1alpha1.ActionKill {
		return allowed()
	}
	policies, err := d.own.PolicyV1alpha1().HealthCheckPolicies(request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing policies: %v", err)
	}
	taken := map[string]string{}
	for _, other := range policies.Items {
		if other.Name != now.Name {
			taken[other.Spec.PodLabel] = other.Name
		}
	}
	return fill(request, "podLabel", firstFree("health-check-missing", taken))
}

// fill sets a field of the spec. A JSON patch adds nothing to what is not there, and the schema,
// which would refuse an object without a spec, has not been asked yet.
func fill(request *admissionv1.AdmissionRequest, field, value string) (*admissionv1.AdmissionResponse, error) {
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
		return nil, fmt.Errorf("reading the object of the request: %w", err)
	}
	if object.Spec == nil {
		return allowed(operation{"add", "/spec", map[string]string{field: value}})
	}
	return allowed(operation{"add", "/spec/" + field, value})
}

// firstFree returns name, or name with the lowest number that nobody has.
func firstFree(name string, taken map[string]string) string {
	free := name
	for n := 2; ; n++ {
		if _, ok := taken[free]; !ok {
			return free
		}
		free = fmt.Sprintf("%s-%d", name, n)
	}
}

// fails reports whether a regular container of a pod lacks one of the probes.
func fails(pod *corev1.Pod, required []policyv1alpha1.Probe) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		declared := map[policyv1alpha1.Probe]*corev1.Probe{
			policyv1alpha1.ProbeLiveness: c.LivenessProbe, policyv1alpha1.ProbeReadiness: c.ReadinessProbe, policyv1alpha1.ProbeStartup: c.StartupProbe,
		}
		return slices.ContainsFunc(required, func(p policyv1alpha1.Probe) bool { return declared[p] == nil })
	})
}

// objects reads what a request is about: the object as it would be, and for an update the one
// that is there.
func objects[T any](request *admissionv1.AdmissionRequest) (now, old *T, err error) {
	now = new(T)
	if err := json.Unmarshal(request.Object.Raw, now); err != nil {
		return nil, nil, fmt.Errorf("reading the object of the request: %w", err)
	}
	if len(request.OldObject.Raw) == 0 {
		return now, nil, nil
	}
	old = new(T)
	if err := json.Unmarshal(request.OldObject.Raw, old); err != nil {
		return nil, nil, fmt.Errorf("reading the old object of the request: %w", err)
	}
	return now, old, nil
}

func resource(request *admissionv1.AdmissionRequest) schema.GroupResource {
	return schema.GroupResource{Group: request.Resource.Group, Resource: request.Resource.Resource}
}
