// first-loop is the smallest correct controller: an informer, a queue and a
// worker. It keeps a copy of each ConfigMap that is labelled mirror=true. The
// copy of "a" is "a-copy", and "a" is its owner.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/internal/xray/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "first-loop:", err)
		os.Exit(1)
	}
}

const suffix = "-copy"

type controller struct {
	client kubernetes.Interface
	lister corev1listers.ConfigMapLister
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the queue slows retries down, and the API server has limits of its own
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	configMaps := factory.Core().V1().ConfigMaps()
	c := &controller{client: client, lister: configMaps.Lister(), queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())}
	report.Loop(&c.queue, configMaps.Informer()) // for the X-ray of make web
	enqueue := func(obj any) { c.enqueue(ctx, obj) }
	registration, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	})
	if err != nil {
		return fmt.Errorf("adding the handler: %w", err)
	}

	// The cache stays up to date until the workers have ended.
	informing, stopInforming := context.WithCancel(context.WithoutCancel(ctx))
	defer factory.Shutdown()
	defer stopInforming()
	defer c.queue.ShutDown()
	factory.StartWithContext(informing)
	// If a worker began earlier, it would take objects that the cache lacks for deleted.
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}
	klog.FromContext(ctx).Info("Working", "namespace", *namespace)
	var workers sync.WaitGroup
	for range 2 {
		// An interrupt does not cut off a write, because the worker finishes it.
		workers.Go(func() { c.work(context.WithoutCancel(ctx)) })
	}
	<-ctx.Done()
	c.queue.ShutDown() // Get still hands out the queued keys, and then ends the workers
	workers.Wait()
	return nil
}

// enqueue puts the name of the source into the queue: what has happened does
// not matter, and a copy that was changed makes its source due.
func (c *controller) enqueue(ctx context.Context, obj any) {
	key, err := cache.DeletionHandlingObjectToName(obj) // a tombstone has a name, too
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Ignoring an event")
		return
	}
	c.queue.Add(key)
	if source, isCopy := strings.CutSuffix(key.Name, suffix); isCopy {
		c.queue.Add(cache.NewObjectName(key.Namespace, source))
	}
}

func (c *controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // a server that does not answer must not keep the worker
		if err := c.reconcile(ctx, key); err != nil {
			if !apierrors.IsConflict(err) { // the cache was behind, which is no news
				utilruntime.HandleErrorWithContext(ctx, err, "Will try again", "configMap", key)
			}
			c.queue.AddRateLimited(key) // later each time, so that an error does not become a hot loop
		} else {
			c.queue.Forget(key)
		}
		cancel()
		c.queue.Done(key)
	}
}

// reconcile compares what there is with what there should be, and does what is
// missing. It may be called at any time and any number of times.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) error {
	client := c.client.CoreV1().ConfigMaps(key.Namespace)
	source, err := c.lister.ConfigMaps(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading %s from the cache: %w", key, err)
	}
	found, err := c.lister.ConfigMaps(key.Namespace).Get(key.Name + suffix)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the copy of %s from the cache: %w", key, err)
	}
	if found != nil && !isCopyOf(found, key.Name) {
		return nil // somebody else's; when it goes, an event brings us back
	}
	wanted := func() bool {
		return source != nil && source.Labels["mirror"] == "true" && !isCopyOf(source, strings.TrimSuffix(key.Name, suffix)) // no copies of copies
	}
	logger := klog.FromContext(ctx).WithValues("configMap", key)

	switch {
	case !wanted() && found == nil:
		return nil
	case !wanted():
		logger.Info("Deleting the copy")
		err := client.Delete(ctx, found.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))})
		if apierrors.IsNotFound(err) {
			return nil // the garbage collector was quicker
		}
		return err
	case found == nil:
		// The cache may still hold a source that is gone. Its copy would be
		// collected and made again in turns, so the server is asked first.
		if source, err = client.Get(ctx, key.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading %s: %w", key, err)
		}
		if !wanted() {
			return nil
		}
		logger.Info("Creating the copy")
		_, err := client.Create(ctx, copyOf(source, &corev1.ConfigMap{}), metav1.CreateOptions{})
		return err
	default:
		copied := copyOf(source, found.DeepCopy()) // never change what the cache holds
		if equality.Semantic.DeepEqual(found, copied) {
			return nil
		}
		logger.Info("Updating the copy")
		_, err := client.Update(ctx, copied, metav1.UpdateOptions{}) // 409 Conflict if the cache was behind
		return err
	}
}

func isCopyOf(cm *corev1.ConfigMap, name string) bool {
	owner := metav1.GetControllerOf(cm)
	return owner != nil && owner.Kind == "ConfigMap" && owner.Name == name
}

// copyOf gives a copy what it has from its source, and leaves the rest alone.
func copyOf(source, copied *corev1.ConfigMap) *corev1.ConfigMap {
	copied.Namespace, copied.Name = source.Namespace, source.Name+suffix
	copied.Data, copied.BinaryData = source.Data, source.BinaryData
	if metav1.IsControlledBy(copied, source) {
		return copied
	}
	// The garbage collector deletes the copy with its owner.
	copied.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(source, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	return copied
}
