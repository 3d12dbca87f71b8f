// status-baseline is what BenchmarkStatusWrites compares the controller of
// HealthCheckPolicies with. It runs the same informers and PUTs the same
// statuses with as many workers, and has nothing else of a controller: no
// queue, no retry, no guard against old caches.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "status-baseline:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", metav1.NamespaceAll, "where to work (default: all namespaces)")
	workers := flag.Int("workers", 8, "how many statuses to write at the same time")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // as in the controller
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	own, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for policies: %w", err)
	}

	podFactory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	policyFactory := externalversions.NewSharedInformerFactoryWithOptions(own, 0, externalversions.WithNamespace(*namespace))
	pods := podFactory.Core().V1().Pods()
	policies := policyFactory.Policy().V1alpha1().HealthCheckPolicies()

	todo := make(chan *v1alpha1.HealthCheckPolicy, 100_000)
	registration, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			was, ok := old.(*corev1.Pod)
			is, ok2 := now.(*corev1.Pod)
			if !ok || !ok2 || maps.Equal(was.Labels, is.Labels) {
				return
			}
			all, err := policies.Lister().List(labels.Everything())
			if err != nil {
				klog.FromContext(ctx).Error(err, "Reading the policies")
			}
			for _, policy := range all {
				todo <- policy
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding an event handler: %w", err)
	}
	// The lister's cache needs an informer that somebody has asked for.
	synced := []cache.DoneChecker{registration.HasSyncedChecker(), policies.Informer().HasSyncedChecker()}
	podFactory.StartWithContext(ctx)
	policyFactory.StartWithContext(ctx)
	defer podFactory.Shutdown()
	defer policyFactory.Shutdown()
	if !cache.WaitFor(ctx, "the caches", synced...) {
		return context.Cause(ctx)
	}
	klog.FromContext(ctx).Info("Working", "workers", *workers)

	put := func(policy *v1alpha1.HealthCheckPolicy) error {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.Selector)
		if err != nil {
			return fmt.Errorf("the selector of %s: %w", klog.KObj(policy), err)
		}
		selected, err := pods.Lister().Pods(policy.Namespace).List(selector)
		if err != nil {
			return err
		}
		now := metav1.Now()
		policy = policy.DeepCopy()
		policy.Status.LastChecked = &now
		policy.Status.Statistics = &v1alpha1.Statistics{Pods: v1alpha1.PodStatistics{Passed: int32(len(selected))}} // all pass
		_, err = own.PolicyV1alpha1().HealthCheckPolicies(policy.Namespace).UpdateStatus(ctx, policy, metav1.UpdateOptions{})
		return err
	}
	var group sync.WaitGroup
	for range *workers {
		group.Go(func() {
			for {
				select {
				case policy := <-todo:
					if err := put(policy); err != nil && !errors.Is(err, context.Canceled) {
						klog.FromContext(ctx).Error(err, "Writing a status", "policy", klog.KObj(policy))
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	group.Wait()
	return nil
}
