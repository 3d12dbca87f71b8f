// Command review adds a reviewer to an annotation of an object. It knows neither
// the object's type nor its fields, and so it cannot lose one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

// reviewers is the annotation: names, with commas between them.
const reviewers = "policy.k8s-go.openshift.org/reviewers"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "review:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "workshop-05", "where to work")
	resource := flag.String("resource", "healthcheckpolicies.v1alpha1.policy.k8s-go.openshift.org", "of the object, as plural.version.group")
	reviewer := flag.String("reviewer", "anna", "the name to add")
	flag.Parse()
	if *reviewer == "" || strings.Contains(*reviewer, ",") {
		return fmt.Errorf("-reviewer %q: want one name, without a comma", *reviewer)
	}
	gvr, _ := schema.ParseResourceArg(*resource)
	if gvr == nil {
		return fmt.Errorf("-resource %s is not plural.version.group", *resource)
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if flag.NArg() != 1 {
		return errors.New("name one object, behind the flags")
	}
	o, err := review(ctx, client.Resource(*gvr).Namespace(*namespace), flag.Arg(0), *reviewer)
	if err != nil {
		return fmt.Errorf("reviewing %s: %w", flag.Arg(0), err)
	}
	fmt.Printf("%s: reviewed by %s\n", o.GetName(), o.GetAnnotations()[reviewers])
	return nil
}

// review adds a name at the end of the list of reviewers, unless it is there, and
// returns the object as it is stored then.
func review(ctx context.Context, objects dynamic.ResourceInterface, name, reviewer string) (o *unstructured.Unstructured, err error) {
	// If ctx ends the first attempt, RetryOnConflict returns nil: err is that of the last one.
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if o, err = objects.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		annotations := o.GetAnnotations() // a copy; nil if there is none
		if annotations == nil {
			annotations = map[string]string{}
		}
		names := strings.FieldsFunc(annotations[reviewers], func(r rune) bool { return r == ',' })
		if slices.Contains(names, reviewer) {
			return nil
		}
		annotations[reviewers] = strings.Join(append(names, reviewer), ",")
		o.SetAnnotations(annotations)
		// The map still holds every field that the server has sent.
		o, err = objects.Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	return o, err
}
