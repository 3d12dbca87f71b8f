package main

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const suffix = "-copy"

type controller struct {
	client kubernetes.Interface
	lister corev1listers.ConfigMapLister
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// listen has enqueue called with each ConfigMap that appears, changes or goes.
func (c *controller) listen(ctx context.Context, informer cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	enqueue := func(obj any) { c.enqueue(ctx, obj) }
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: enqueue,
	})
}

// enqueue queues a ConfigMap's key and, if it has the name of a copy, that of its source.
func (c *controller) enqueue(ctx context.Context, obj any) {
	key, err := cache.DeletionHandlingObjectToName(obj) // a tombstone has a name, too
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Ignoring an event")
		return
	}
	c.queue.Add(key)
	if source, ok := strings.CutSuffix(key.Name, suffix); ok {
		c.queue.Add(cache.NewObjectName(key.Namespace, source))
	}
}

// work reconciles one key after the other, until the queue is shut down and empty.
func (c *controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // a server that does not answer must not keep the worker
		if err := c.reconcile(ctx, key); err != nil {
			if !apierrors.IsConflict(err) { // expected: the cache was behind
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

// reconcile compares a source with its copy, and writes the difference. It may be called at any time.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) error {
	client := c.client.CoreV1().ConfigMaps(key.Namespace)
	source, _ := c.lister.ConfigMaps(key.Namespace).Get(key.Name) // the only error of a cache is NotFound: then it is nil
	found, _ := c.lister.ConfigMaps(key.Namespace).Get(key.Name + suffix)
	switch {
	case source == nil || source.DeletionTimestamp != nil:
		return nil // the garbage collector deletes the copy, which must not come back
	case found != nil && !metav1.IsControlledBy(found, source):
		return nil // somebody else's, or an earlier source's; when it goes, an event brings us back
	case !wanted(source) && found == nil:
		return nil
	case !wanted(source):
		klog.FromContext(ctx).Info("Deleting the copy", "configMap", key)
		onlyThis := &metav1.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion} // neither a later one of its name, nor what it has become
		if err := client.Delete(ctx, found.Name, metav1.DeleteOptions{Preconditions: onlyThis}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil // somebody was quicker
	case found == nil:
		source, err := client.Get(ctx, key.Name, metav1.GetOptions{}) // the cache may still hold what is gone
		if apierrors.IsNotFound(err) || err == nil && !wanted(source) {
			return nil
		} else if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Creating the copy", "configMap", key)
		_, err = client.Create(ctx, copyOf(source, &corev1.ConfigMap{}), metav1.CreateOptions{})
		return err
	}
	copied := copyOf(source, found.DeepCopy()) // never change what the cache holds
	if equality.Semantic.DeepEqual(found, copied) {
		return nil
	}
	klog.FromContext(ctx).Info("Updating the copy", "configMap", key)
	_, err := client.Update(ctx, copied, metav1.UpdateOptions{}) // 409 Conflict if the cache was behind
	return err
}

// isCopy reports whether a ConfigMap is the copy of some source, which may be gone.
func isCopy(cm *corev1.ConfigMap) bool {
	owner := metav1.GetControllerOf(cm)
	return owner != nil && owner.Kind == "ConfigMap" && owner.Name+suffix == cm.Name
}

// wanted reports whether a ConfigMap is to have a copy. A copy of a copy is never wanted.
func wanted(source *corev1.ConfigMap) bool {
	return source.Labels["mirror"] == "true" && source.DeletionTimestamp == nil && !isCopy(source)
}

// copyOf gives a copy what it has from its source, and leaves the rest alone.
func copyOf(source, copied *corev1.ConfigMap) *corev1.ConfigMap {
	copied.Namespace, copied.Name = source.Namespace, source.Name+suffix
	copied.Data, copied.BinaryData = source.Data, source.BinaryData
	if copied.UID == "" { // a new one: the garbage collector deletes it with its owner
		copied.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(source, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	}
	return copied
}
