// Command dynamic lists objects of any resource and annotates them, without
// knowing their Go types: the same lines for pods and for kinds that were
// defined after this program was compiled.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dynamic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	field := flag.String("field", "metadata.uid", "the field to show, as a path")
	annotate := flag.String("annotate", "", "KEY=VALUE to write to each object")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: dynamic [flags] RESOURCE.VERSION.GROUP   such as pods.v1. or deployments.v1.apps")
		flag.PrintDefaults()
	}
	flag.Parse()
	key, value, ok := strings.Cut(*annotate, "=")
	if *annotate != "" && !ok {
		return fmt.Errorf("-annotate %s: want KEY=VALUE", *annotate)
	}
	// The mapper of folder discovery would also take deploy or pods.
	resource, _ := schema.ParseResourceArg(flag.Arg(0))
	if resource == nil {
		return errors.New("want one argument, RESOURCE.VERSION.GROUP, such as pods.v1. or deployments.v1.apps")
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	// One client for all groups and versions.
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	objects := client.Resource(*resource).Namespace(*namespace)

	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing %s: %w", flag.Arg(0), err)
	}
	for _, o := range list.Items {
		// The object is a map. There is no compiler here: a wrong path is
		// "not found", a wrong type is an error.
		shown, found, err := unstructured.NestedFieldNoCopy(o.Object, strings.Split(*field, ".")...)
		if err != nil {
			return fmt.Errorf("reading %s of %s: %w", *field, o.GetName(), err)
		}
		if !found {
			shown = "(not set)"
		}
		fmt.Printf("%s %s: %s = %v\n", o.GroupVersionKind().Kind, o.GetName(), *field, shown)
		if *annotate == "" {
			continue
		}
		// Whatever it is, a controller may write it too: DefaultBackoff.
		// If ctx ends the first attempt, RetryOnConflict returns nil: err is that of the last one.
		_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			var fresh *unstructured.Unstructured
			if fresh, err = objects.Get(ctx, o.GetName(), metav1.GetOptions{}); err != nil {
				return err
			}
			annotations := fresh.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[key] = value
			fresh.SetAnnotations(annotations)
			// The map still holds every field, also those no Go type here has: a
			// struct would have dropped them, and this update would delete them.
			_, err = objects.Update(ctx, fresh, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return fmt.Errorf("annotating %s: %w", o.GetName(), err)
		}
		fmt.Printf("%s %s: annotated\n", o.GroupVersionKind().Kind, o.GetName())
	}
	if len(list.Items) == 0 { // also for a namespace that does not exist
		clientset, err := kubernetes.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		if _, err := clientset.CoreV1().Namespaces().Get(ctx, *namespace, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("no %s: %w", flag.Arg(0), err)
		}
		fmt.Println("none")
	}
	return nil
}
