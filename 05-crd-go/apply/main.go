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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	policyac "github.com/k8s-go/workshop/05-crd-go/pkg/generated/applyconfiguration/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
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
	ours := func(spec *policyac.HealthCheckPolicySpecApplyConfiguration) *policyac.HealthCheckPolicyApplyConfiguration {
		return policyac.HealthCheckPolicy("apply", *namespace).WithSpec(spec)
	}

	p, err := policies.Apply(ctx, ours(policyac.HealthCheckPolicySpec().
		WithPodLabel("health-check-missing").WithRequiredProbes(v1alpha1.ProbeReadiness)), as("anna"))
	if err != nil {
		return fmt.Errorf("applying as anna: %w", err)
	}
	fmt.Printf("anna applies: %v\n", p.Spec.RequiredProbes)

	// requiredProbes is a set (listType=set), so bert's item joins anna's.
	if p, err = policies.Apply(ctx, ours(policyac.HealthCheckPolicySpec().
		WithRequiredProbes(v1alpha1.ProbeStartup)), as("bert")); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	fmt.Printf("bert applies: %v\n", p.Spec.RequiredProbes)

	// A field with one value has one owner.
	_, err = policies.Apply(ctx, ours(policyac.HealthCheckPolicySpec().
		WithRequiredProbes(v1alpha1.ProbeStartup).WithPodLabel("other")), as("bert"))
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) {
		return fmt.Errorf("wanted a conflict about podLabel, got %w", err)
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
	fmt.Printf("bert owns: %v, podLabel %t\n", mine.Spec.RequiredProbes, mine.Spec.PodLabel != nil)

	// What is no longer applied is given up, and goes if nobody else owns it.
	mine.Spec.RequiredProbes = nil
	if p, err = policies.Apply(ctx, mine, as("bert")); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	fmt.Printf("bert gives up: %v\n", p.Spec.RequiredProbes)

	// conditions is a map (listType=map, listMapKey=type): two controllers
	// report one condition each, without reading first.
	for _, c := range []struct{ manager, condition string }{{"checker", v1alpha1.ConditionCompliant}, {"auditor", "Audited"}} {
		condition := metav1ac.Condition().WithType(c.condition).WithStatus(metav1.ConditionTrue).
			WithReason("Shown").WithMessage("by " + c.manager).WithLastTransitionTime(metav1.Now())
		if p, err = policies.ApplyStatus(ctx, policyac.HealthCheckPolicy("apply", *namespace).
			WithStatus(policyac.HealthCheckPolicyStatus().WithConditions(condition)), as(c.manager)); err != nil {
			return fmt.Errorf("applying the status as %s: %w", c.manager, err)
		}
	}
	for _, c := range p.Status.Conditions {
		fmt.Printf("condition %s: %s\n", c.Type, c.Message)
	}
	return nil
}
