// Command apply uses the generated apply configurations: several managers write
// parts of one HealthCheckPolicy, and lists are merged as the types say.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	policyac "github.com/k8s-go/workshop/05-crd-go/pkg/generated/applyconfiguration/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	policyclient "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "workshop-05", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	policies := client.PolicyV1alpha1().HealthCheckPolicies(*namespace)
	as := func(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }

	p, err := anna(ctx, policies, *namespace)
	if err != nil {
		return fmt.Errorf("applying as anna: %w", err)
	}
	fmt.Printf("anna applies: %v\n", p.Spec.RequiredProbes)

	if p, err = bert(ctx, policies, *namespace); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	fmt.Printf("bert applies: %s, %v\n", p.Spec.Action, p.Spec.RequiredProbes)

	// requiredProbes is atomic (listType=atomic): the list has one owner as a whole.
	_, err = policies.Apply(ctx, policyac.HealthCheckPolicy("apply", *namespace).WithSpec(policyac.HealthCheckPolicySpec().
		WithAction(v1alpha1.ActionAnnotate).WithRequiredProbes(v1alpha1.ProbeStartup)), as("bert"))
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) {
		return fmt.Errorf("wanted a conflict about requiredProbes, got %w", err)
	}
	for _, cause := range status.Status().Details.Causes {
		fmt.Printf("409 for bert: %s: %s\n", cause.Field, cause.Message)
	}

	// Extract returns what a manager owns: the way to change one's own part.
	// It reads managedFields with the generated schema of the types.
	mine, err := policyac.ExtractHealthCheckPolicy(p, "bert")
	if err != nil {
		return fmt.Errorf("extracting what bert owns: %w", err)
	}
	fmt.Printf("bert owns: %s, podLabel %t\n", *mine.Spec.Action, mine.Spec.PodLabel != nil)

	// What bert no longer applies, he gives up.
	mine.Spec.Action = nil
	if p, err = policies.Apply(ctx, mine, as("bert")); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	fmt.Printf("bert gives up: %s\n", p.Spec.Action)

	// conditions is a map (listType=map, listMapKey=type): two controllers
	// report one condition each, and the server keeps both.
	report := func(manager, conditionType string) error {
		condition := metav1ac.Condition().WithType(conditionType).WithStatus(metav1.ConditionTrue).
			WithReason("Shown").WithMessage("by " + manager).WithLastTransitionTime(metav1.Now())
		// The time moves only with the status, as in meta.SetStatusCondition. With
		// a new time each report would be a change, and a controller that watches
		// what it writes would never come to rest.
		if old := meta.FindStatusCondition(p.Status.Conditions, conditionType); old != nil && old.Status == *condition.Status {
			condition.WithLastTransitionTime(old.LastTransitionTime)
		}
		p, err = policies.ApplyStatus(ctx, policyac.HealthCheckPolicy("apply", *namespace).
			WithStatus(policyac.HealthCheckPolicyStatus().WithConditions(condition)), as(manager))
		if err != nil {
			return fmt.Errorf("applying the status as %s: %w", manager, err)
		}
		return nil
	}
	if err := report("checker", v1alpha1.ConditionCompliant); err != nil {
		return err
	}
	if err := report("auditor", "Audited"); err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		fmt.Printf("condition %s: %s\n", c.Type, c.Message)
	}
	before := p.ResourceVersion
	if err := report("checker", v1alpha1.ConditionCompliant); err != nil {
		return err
	}
	fmt.Printf("checker reports the same: written %t\n", p.ResourceVersion != before)
	return nil
}

// anna applies her part of the policy: podLabel, and readiness as its one probe.
func anna(ctx context.Context, policies policyclient.HealthCheckPolicyInterface, namespace string) (*v1alpha1.HealthCheckPolicy, error) {
	spec := policyac.HealthCheckPolicySpec().WithPodLabel("health-check-missing").WithRequiredProbes(v1alpha1.ProbeReadiness)
	return policies.Apply(ctx, policyac.HealthCheckPolicy("apply", namespace).WithSpec(spec), metav1.ApplyOptions{FieldManager: "anna"})
}

// bert applies his part of the same policy: the action annotate. Only fields that
// are set are sent, so anna's are left alone.
func bert(ctx context.Context, policies policyclient.HealthCheckPolicyInterface, namespace string) (*v1alpha1.HealthCheckPolicy, error) {
	spec := policyac.HealthCheckPolicySpec().WithAction(v1alpha1.ActionAnnotate)
	return policies.Apply(ctx, policyac.HealthCheckPolicy("apply", namespace).WithSpec(spec), metav1.ApplyOptions{FieldManager: "bert"})
}
