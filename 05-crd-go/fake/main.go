// Command fake does the same things with the generated fake clientset and with
// the real API, and prints where they differ. What it prints is how far a unit
// test on a fake can be trusted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	policyac "github.com/k8s-go/workshop/05-crd-go/pkg/generated/applyconfiguration/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	fakeversioned "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/fake"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
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
	server, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	// NewClientset knows field managers; the older NewSimpleClientset does not.
	ofFake, err := try(ctx, fakeversioned.NewClientset(), *namespace)
	if err != nil {
		return fmt.Errorf("on the fake: %w", err)
	}
	ofServer, err := try(ctx, server, *namespace)
	if err != nil {
		return fmt.Errorf("on the server: %w", err)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tFAKE\tSERVER")
	for i := range ofFake {
		fmt.Fprintf(table, "%s\t%s\t%s\n", ofFake[i].what, ofFake[i].result, ofServer[i].result)
	}
	return table.Flush()
}

type observation struct{ what, result string }

// try needs no more than the interface that both clientsets implement.
func try(ctx context.Context, client versioned.Interface, namespace string) ([]observation, error) {
	policies := client.PolicyV1alpha1().HealthCheckPolicies(namespace)
	var seen []observation
	see := func(what, format string, args ...any) {
		seen = append(seen, observation{what, fmt.Sprintf(format, args...)})
	}
	policy := func(name string, action v1alpha1.Action) *v1alpha1.HealthCheckPolicy {
		return &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.HealthCheckPolicySpec{Action: action, PodLabel: "health-check-missing"}}
	}

	for _, name := range []string{"fake", "fake-applied"} {
		if err := policies.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("deleting the policies of an earlier run: %w", err)
		}
	}
	p, err := policies.Create(ctx, policy("fake", ""), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating: %w", err)
	}
	see("default action", "%q", p.Spec.Action)
	see("has a uid", "%t", p.UID != "")

	_, err = policies.Create(ctx, policy("fake-invalid", "delete"), metav1.CreateOptions{})
	see("action delete", "%s", answer(err))
	_, err = policies.Create(ctx, policy("fake", ""), metav1.CreateOptions{})
	see("create again", "%s", answer(err))

	stale := p.DeepCopy()
	p.Spec.Action, p.Status.Statistics = v1alpha1.ActionKill, &v1alpha1.Statistics{}
	if p, err = policies.Update(ctx, p, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("updating: %w", err)
	}
	see("generation after update", "%d", p.Generation)
	see("Update writes the status", "%t", p.Status.Statistics != nil)
	_, err = policies.Update(ctx, stale, metav1.UpdateOptions{})
	see("update from an old copy", "%s", answer(err))

	list, err := policies.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=fake,spec.action=annotate"})
	if err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	see("list with action annotate", "%d", len(list.Items))

	// Two managers of one list, and a conflict: this the fake can do.
	fields := func() *policyac.HealthCheckPolicyApplyConfiguration {
		return policyac.HealthCheckPolicy("fake-applied", namespace)
	}
	as := func(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }
	if _, err := policies.Apply(ctx, fields().WithSpec(policyac.HealthCheckPolicySpec().WithPodLabel("a")), as("anna")); err != nil {
		return nil, fmt.Errorf("applying as anna: %w", err)
	}
	_, err = policies.Apply(ctx, fields().WithSpec(policyac.HealthCheckPolicySpec().WithPodLabel("b")), as("bert"))
	see("applied against another", "%s", answer(err))
	for _, manager := range []string{"anna", "bert"} {
		condition := metav1ac.Condition().WithType("By" + manager).WithStatus(metav1.ConditionTrue).
			WithReason("Shown").WithMessage("").WithLastTransitionTime(metav1.Now())
		if p, err = policies.ApplyStatus(ctx, fields().WithStatus(policyac.HealthCheckPolicyStatus().WithConditions(condition)), as(manager)); err != nil {
			return nil, fmt.Errorf("applying the status as %s: %w", manager, err)
		}
	}
	see("conditions of two", "%d", len(p.Status.Conditions))

	for _, name := range []string{"fake", "fake-applied"} {
		if err := policies.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return nil, fmt.Errorf("deleting %s: %w", name, err)
		}
	}
	return seen, nil
}

func answer(err error) string {
	if err == nil {
		return "accepted"
	}
	return string(apierrors.ReasonForError(err))
}
