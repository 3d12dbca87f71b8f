// Command crud writes a HealthCheckPolicy in every way that the generated client
// has, and shows who decides about spec and who about status.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	policyclient "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crud:", err)
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

	if err := policies.Delete(ctx, "crud", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the policy of an earlier run: %w", err)
	}
	// Nothing in Go has filled in the defaults; the server did, and Create
	// returns what it has stored.
	policy := &policyv1alpha1.HealthCheckPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "crud"},
		Spec:       policyv1alpha1.HealthCheckPolicySpec{PodLabel: "health-check-missing"},
	}
	policy, err = policies.Create(ctx, policy, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating: %w", err)
	}
	fmt.Printf("created: action %s, probes %v, generation %d\n", policy.Spec.Action, policy.Spec.RequiredProbes, policy.Generation)

	// Nothing in Go has validated either. The causes name the fields.
	invalid := &policyv1alpha1.HealthCheckPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "invalid"},
		Spec:       policyv1alpha1.HealthCheckPolicySpec{Action: policyv1alpha1.ActionAnnotate},
	}
	_, err = policies.Create(ctx, invalid, metav1.CreateOptions{})
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return fmt.Errorf("wanted the error Invalid for a policy without podLabel, got %w", err)
	}
	for _, cause := range status.Status().Details.Causes {
		fmt.Printf("refused: %s: %s\n", cause.Field, cause.Message)
	}

	// Update writes the spec and counts a generation; the status in it is ignored.
	policy.Spec.RequiredProbes = []policyv1alpha1.Probe{policyv1alpha1.ProbeReadiness}
	policy.Status.Statistics = &policyv1alpha1.Statistics{Pods: policyv1alpha1.PodStatistics{Failed: 99}}
	policy, err = policies.Update(ctx, policy, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating: %w", err)
	}
	fmt.Printf("updated: probes %v, generation %d, counted %t\n", policy.Spec.RequiredProbes, policy.Generation, policy.Status.Statistics != nil)

	// What a controller does: it writes the status, twice.
	for _, pods := range []policyv1alpha1.PodStatistics{{Failed: 5, Passed: 42}, {Failed: 4, Passed: 43}} {
		if policy, err = report(ctx, policies, "crud", pods); err != nil {
			return fmt.Errorf("updating the status: %w", err)
		}
		fmt.Printf("status updated: failed %d, action %s, generation %d\n", policy.Status.Statistics.Pods.Failed, policy.Spec.Action, policy.Generation)
	}

	// The type's own selectable field works like metadata.name.
	for _, action := range []policyv1alpha1.Action{policyv1alpha1.ActionLabel, policyv1alpha1.ActionKill} {
		list, err := policies.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=crud,spec.action=" + string(action)})
		if err != nil {
			return fmt.Errorf("listing: %w", err)
		}
		fmt.Printf("with action %s: %d\n", action, len(list.Items))
	}

	// Of this object, and not of one that somebody has since made in its place.
	if err := policies.Delete(ctx, "crud", *metav1.NewPreconditionDeleteOptions(string(policy.UID))); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	fmt.Println("deleted")
	return nil
}

// report writes into a policy's status what a check has counted: that some pods
// failed. What others have written there stays.
func report(ctx context.Context, policies policyclient.HealthCheckPolicyInterface, name string, pods policyv1alpha1.PodStatistics) (policy *policyv1alpha1.HealthCheckPolicy, err error) {
	// DefaultBackoff, because others write this object, too. If ctx ends the first
	// attempt, RetryOnConflict returns nil: err is that of the last one.
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if policy, err = policies.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		before := policy.Status.DeepCopy()
		policy.Status.ObservedGeneration = policy.Generation
		policy.Status.Statistics = &policyv1alpha1.Statistics{Pods: pods}
		meta.SetStatusCondition(&policy.Status.Conditions, metav1.Condition{
			Type: policyv1alpha1.ConditionCompliant, Status: metav1.ConditionFalse, ObservedGeneration: policy.Generation,
			Reason: policyv1alpha1.ReasonProbesMissing, Message: fmt.Sprintf("%d pods lack a probe", pods.Failed),
		})
		// Another time alone is no news: a controller that writes it would wake itself for ever.
		if equality.Semantic.DeepEqual(before, &policy.Status) {
			return nil
		}
		policy.Status.LastChecked = ptr.To(metav1.Now())
		// UpdateStatus is a request to /status, where it is the spec that is
		// ignored. That way a user and a controller do not undo each other's work.
		policy.Spec.Action = policyv1alpha1.ActionKill
		policy, err = policies.UpdateStatus(ctx, policy, metav1.UpdateOptions{})
		return err
	})
	return policy, err
}
