// solution is find-the-bugs without its bugs: a controller that gives each
// Icecream a Deployment, and nothing more. For a complete one see ../../icecream.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
	icecreamlisters "github.com/k8s-go/workshop/05-crd-go/pkg/generated/listers/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/xray/report"
)

func main() {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	resync := flag.Duration("resync", 10*time.Hour, "how often to look at everything, without an event")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	defer stop()
	if err := run(ctx, rules, *namespace, *resync); err != nil {
		fmt.Fprintln(os.Stderr, "find-the-bugs:", err)
		os.Exit(1)
	}
}

type controller struct {
	client      kubernetes.Interface
	sweets      versioned.Interface
	icecreams   icecreamlisters.IcecreamLister
	deployments cache.Indexer
	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// byOwner is the index of Deployments by the UID of their controller.
const byOwner = "owner"

func run(ctx context.Context, rules *clientcmd.ClientConfigLoadingRules, namespace string, resync time.Duration) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	sweets, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for Icecreams: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(namespace))
	sweetFactory := externalversions.NewSharedInformerFactoryWithOptions(sweets, resync, externalversions.WithNamespace(namespace))
	deployments, icecreams := factory.Apps().V1().Deployments().Informer(), sweetFactory.Icecream().V1alpha1().Icecreams()
	c := &controller{
		client: client, sweets: sweets, icecreams: icecreams.Lister(), deployments: deployments.GetIndexer(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	report.Loop(&c.queue, icecreams.Informer(), deployments) // for the X-ray of make web
	if err := deployments.AddIndexers(cache.Indexers{byOwner: func(obj any) ([]string, error) {
		if owner := metav1.GetControllerOfNoCopy(obj.(*appsv1.Deployment)); owner != nil {
			return []string{string(owner.UID)}, nil
		}
		return nil, nil
	}}); err != nil {
		return fmt.Errorf("adding an index: %w", err)
	}
	if _, err := icecreams.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.queue.Add(cache.MetaObjectToName(obj.(*v1alpha1.Icecream))) },
		UpdateFunc: func(_, obj any) { c.queue.Add(cache.MetaObjectToName(obj.(*v1alpha1.Icecream))) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				c.queue.Add(key)
			}
		},
	}); err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	if _, err := deployments.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.deploymentChanged,
		UpdateFunc: func(old, obj any) {
			c.deploymentChanged(old) // it may have belonged to another Icecream, or no longer belong to any
			c.deploymentChanged(obj)
		},
		DeleteFunc: c.deploymentChanged,
	}); err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}

	factory.StartWithContext(ctx)
	sweetFactory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), deployments.HasSynced, icecreams.Informer().HasSynced) {
		return nil // asked to stop
	}
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for c.next(context.WithoutCancel(ctx)) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	workers.Wait()
	return nil
}

// deploymentChanged queues the Icecream that a Deployment belongs to.
func (c *controller) deploymentChanged(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	d, ok := obj.(*appsv1.Deployment)
	if !ok {
		return
	}
	if owner := metav1.GetControllerOf(d); owner != nil && owner.Kind == v1alpha1.IcecreamKind.Kind {
		c.queue.Add(cache.NewObjectName(d.Namespace, owner.Name))
	}
}

// next works on one key, and returns false when there will be no more.
func (c *controller) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if err := c.sync(ctx, key); err != nil {
		klog.FromContext(ctx).Error(err, "Trying again", "icecream", key)
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	return true
}

// sync brings one Icecream's Deployment and status to what they should be.
func (c *controller) sync(ctx context.Context, key cache.ObjectName) error {
	cached, err := c.icecreams.Icecreams(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && cached.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	ice := cached.DeepCopy()

	owned, err := c.deployments.ByIndex(byOwner, string(ice.UID))
	if err != nil {
		return err
	}
	var d *appsv1.Deployment
	if len(owned) > 0 {
		d = owned[0].(*appsv1.Deployment)
	} else if d, err = c.client.AppsV1().Deployments(key.Namespace).Create(ctx, deploymentFor(ice), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the Deployment: %w", err)
	}

	if *d.Spec.Replicas != *ice.Spec.Replicas {
		d = d.DeepCopy()
		d.Spec.Replicas = ice.Spec.Replicas
		if d, err = c.client.AppsV1().Deployments(key.Namespace).Update(ctx, d, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("updating the Deployment: %w", err)
		}
	}

	status := *ice.Status.DeepCopy()
	status.ObservedGeneration, status.Replicas, status.AvailableReplicas = ice.Generation, &d.Status.Replicas, &d.Status.AvailableReplicas
	if equality.Semantic.DeepEqual(ice.Status, status) {
		return nil
	}
	ice.Status = status
	if _, err = c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).UpdateStatus(ctx, ice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

func deploymentFor(ice *v1alpha1.Icecream) *appsv1.Deployment {
	labels := map[string]string{v1alpha1.UIDLabel: string(ice.UID)}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:            ice.Spec.DeploymentName,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ice, v1alpha1.IcecreamKind)},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ice.Spec.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "icecream", Image: "workshop/pause:1"}}},
			},
		},
	}
}
