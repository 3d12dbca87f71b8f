// simple is the controller that step 06 has you write; icecream, beside it, is the same one hardened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/signal"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsv1listers "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
	icecreamlisters "github.com/k8s-go/workshop/05-crd-go/pkg/generated/listers/icecream/v1alpha1"
)

func main() {
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	defer stop()
	if err := run(ctx, *namespace); err != nil {
		klog.ErrorS(err, "simple has ended")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

type controller struct {
	kube        kubernetes.Interface
	sweets      versioned.Interface
	icecreams   icecreamlisters.IcecreamLister
	deployments appsv1listers.DeploymentLister
	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func run(ctx context.Context, namespace string) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the queue slows retries down, and the API server has limits of its own
	kube, err := kubernetes.NewForConfig(config)
	sweets, failed := versioned.NewForConfig(config)
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("creating the clients: %w", err)
	}
	kubeFactory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	sweetFactory := externalversions.NewSharedInformerFactoryWithOptions(sweets, 0, externalversions.WithNamespace(namespace))
	deployments, icecreams := kubeFactory.Apps().V1().Deployments(), sweetFactory.Icecream().V1alpha1().Icecreams()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, 10*time.Second))
	c := &controller{kube: kube, sweets: sweets, icecreams: icecreams.Lister(), deployments: deployments.Lister(), queue: queue}
	ofIcecreams, err := icecreams.Informer().AddEventHandler(each(queue.Add))
	ofDeployments, failed := deployments.Informer().AddEventHandler(each(c.enqueueFor))
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("adding the handlers: %w", err)
	}

	// The caches stay up to date until the workers have ended. Nobody waits for the informers (Shutdown), because
	// one may sleep for a minute between two tries, whatever its context says.
	informing, stopInforming := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInforming()
	kubeFactory.StartWithContext(informing)
	sweetFactory.StartWithContext(informing)
	if !cache.WaitFor(ctx, "", ofIcecreams.HasSyncedChecker(), ofDeployments.HasSyncedChecker()) {
		return nil // it was told to stop
	}
	klog.FromContext(ctx).Info("Working", "namespace", namespace)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { c.work(ctx) })
	}
	<-ctx.Done()
	c.queue.ShutDown() // which ends a worker that waits for a key
	workers.Wait()
	return nil
}

// each calls f with the name of the object of each event: what has happened to it does not matter.
func each(f func(cache.ObjectName)) cache.ResourceEventHandler {
	handle := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil { // a tombstone has a name, too
			f(name)
		} else {
			utilruntime.HandleError(err)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, obj any) { handle(obj) }, DeleteFunc: handle}
}

// enqueueFor queues the Icecreams that name a Deployment, be it theirs or in their way.
func (c *controller) enqueueFor(d cache.ObjectName) {
	all, _ := c.icecreams.Icecreams(d.Namespace).List(labels.Everything()) // a list of the cache does not fail
	for _, ice := range all {
		if ice.Spec.DeploymentName == d.Name {
			c.queue.Add(cache.MetaObjectToName(ice))
		}
	}
}

func (c *controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown || ctx.Err() != nil { // what is queued, the next process finds again
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // an interrupt cuts off no write, a silent server keeps no worker
		if err := c.reconcile(ctx, key); err == nil {
			c.queue.Forget(key)
		} else {
			klog.FromContext(ctx).Error(err, "Trying again later", "icecream", key)
			c.queue.AddRateLimited(key) // later each time
		}
		cancel()
		c.queue.Done(key)
	}
}

// errForeign says that the Deployment belongs to somebody else. Trying again would not help.
var errForeign = errors.New("exists and does not belong to this Icecream")

// reconcile brings an Icecream's Deployment and status to what they should be.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) error {
	ice, err := c.icecreams.Icecreams(key.Namespace).Get(key.Name)
	if err != nil || ice.DeletionTimestamp != nil { // a cache's only error is NotFound
		return nil // the garbage collector deletes the Deployment
	}
	d, err := c.deployment(ctx, ice)
	_, unknown := c.deployments.Deployments(ice.Namespace).Get(ice.Spec.DeploymentName) // no event tells of the end of what it has never known
	if reported := c.report(ctx, ice, d, err); reported != nil || unknown == nil && errors.Is(err, errForeign) {
		return reported
	}
	return err
}

// deployment returns the Icecream's Deployment as it should be, or nil if it has none.
func (c *controller) deployment(ctx context.Context, ice *v1alpha1.Icecream) (*appsv1.Deployment, error) {
	client := c.kube.AppsV1().Deployments(ice.Namespace)
	d, err := c.deployments.Deployments(ice.Namespace).Get(ice.Spec.DeploymentName)
	if apierrors.IsNotFound(err) {
		if d, err = client.Create(ctx, deploymentFor(ice), metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			d, err = client.Get(ctx, ice.Spec.DeploymentName, metav1.GetOptions{}) // the cache was behind
		}
	}
	switch {
	case err != nil:
		return nil, err
	case !metav1.IsControlledBy(d, ice):
		return nil, fmt.Errorf("the Deployment %s %w", d.Name, errForeign)
	case d.DeletionTimestamp != nil || equality.Semantic.DeepEqual(d.Spec.Replicas, ice.Spec.Replicas):
		return d, nil
	}
	d = d.DeepCopy() // others read what the cache holds
	d.Spec.Replicas = ice.Spec.Replicas
	_, err = client.Update(ctx, d, metav1.UpdateOptions{}) // 409 Conflict if the cache was behind
	return d, err
}

func deploymentFor(ice *v1alpha1.Icecream) *appsv1.Deployment {
	labels := metav1.ObjectMeta{Labels: map[string]string{v1alpha1.UIDLabel: string(ice.UID)}}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "icecream", Image: "workshop/pause:1"}}}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:            ice.Spec.DeploymentName,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ice, v1alpha1.IcecreamKind)},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ice.Spec.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: labels, Spec: pod},
		},
	}
}

// report writes the status, if it differs: what the Deployment says, or why there is none.
func (c *controller) report(ctx context.Context, ice *v1alpha1.Icecream, d *appsv1.Deployment, failed error) error {
	available := metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProgressing, ObservedGeneration: ice.Generation}
	status := ice.Status.DeepCopy()
	status.ObservedGeneration = ice.Generation
	status.Replicas, status.AvailableReplicas = nil, nil
	if d != nil {
		status.Replicas, status.AvailableReplicas = &d.Status.Replicas, &d.Status.AvailableReplicas
	}
	switch {
	case failed == nil && d.Status.AvailableReplicas >= *ice.Spec.Replicas:
		available.Status, available.Reason = metav1.ConditionTrue, v1alpha1.ReasonAvailable
	case errors.Is(failed, errForeign):
		available.Reason, available.Message = v1alpha1.ReasonErrResourceExists, failed.Error()
	case apierrors.IsBadRequest(failed), apierrors.IsForbidden(failed), apierrors.IsInvalid(failed): // this may stay so
		available.Reason, available.Message = v1alpha1.ReasonRefused, failed.Error()
		if is := meta.FindStatusCondition(status.Conditions, available.Type); is != nil && is.Reason == available.Reason && is.ObservedGeneration == available.ObservedGeneration {
			available.Message = is.Message // other words each time would bring it back at once each time
		}
	case failed != nil:
		return nil // this will pass
	}
	meta.SetStatusCondition(&status.Conditions, available)
	if equality.Semantic.DeepEqual(&ice.Status, status) {
		return nil
	}
	ice = ice.DeepCopy()
	ice.Status = *status
	_, err := c.sweets.IcecreamV1alpha1().Icecreams(ice.Namespace).UpdateStatus(ctx, ice, metav1.UpdateOptions{})
	return err
}
