package controller

import (
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// written knows how new a cache must be to show what this process has written.
// A write is answered before its event arrives; a controller that looks at the
// cache in between does the same again.
type written struct {
	mu     sync.Mutex
	writes map[cache.ObjectName]map[cache.Store]string // resourceVersions
}

// at remembers a write to the objects of a cache, on behalf of a key.
func (w *written) at(key cache.ObjectName, store cache.Store, resourceVersion string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes == nil {
		w.writes = map[cache.ObjectName]map[cache.Store]string{}
	}
	if w.writes[key] == nil {
		w.writes[key] = map[cache.Store]string{}
	}
	w.writes[key][store] = resourceVersion // of a key's writes to one store, the last one is the newest
}

// ahead says whether a cache does not show the writes of a key yet.
func (w *written) ahead(key cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for store, wrote := range w.writes[key] {
		// A store that does not know its version cannot be compared: without the
		// feature AtomicFIFO, on by default, it returns "".
		if order, err := resourceversion.CompareResourceVersion(store.LastStoreSyncResourceVersion(), wrote); err == nil && order < 0 {
			return true
		}
	}
	delete(w.writes, key)
	return false
}

func (w *written) forget(key cache.ObjectName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.writes, key)
}

// onChange makes one function of the three that an informer calls. The
// function gets what has happened, what the object was, and what it is; one of
// the last two is nil when the object is added or deleted.
func (c *Controller) onChange(kind string, changed func(what string, old, now metav1.Object)) cache.ResourceEventHandler {
	tell := func(what string, old, now metav1.Object) {
		c.loop.Event(kind+" "+what, cache.MetaObjectToName(newest(old, now)))
		changed(what, old, now)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { tell("added", nil, now.(metav1.Object)) },
		UpdateFunc: func(old, now any) { tell("updated", old.(metav1.Object), now.(metav1.Object)) }, // also a resync
		DeleteFunc: func(old any) {
			if tombstone, ok := old.(cache.DeletedFinalStateUnknown); ok { // the deletion was missed, see 03-informer/tombstones
				old = tombstone.Obj
			}
			if old, ok := old.(metav1.Object); ok {
				tell("deleted", old, nil)
			}
		},
	}
}

func newest(old, now metav1.Object) metav1.Object {
	if now == nil {
		return old
	}
	return now
}

// trim drops what this controller never reads, before the cache keeps it.
func trim(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	if pod, ok := o.(*corev1.Pod); ok {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
	}
	return o, nil
}

// The functions of the indexes: under which values to find an object.

func uidOf(o any) ([]string, error) { return []string{string(o.(*v1alpha1.Icecream).UID)}, nil }

func wantedDeployment(o any) ([]string, error) {
	ice := o.(*v1alpha1.Icecream)
	return []string{cache.NewObjectName(ice.Namespace, ice.Spec.DeploymentName).String()}, nil
}

func controllerOf(o any) ([]string, error) {
	if controller := metav1.GetControllerOfNoCopy(o.(*appsv1.Deployment)); controller != nil {
		return []string{string(controller.UID)}, nil
	}
	return nil, nil
}

func labelOf(o any) ([]string, error) {
	pod := o.(*corev1.Pod)
	return []string{pod.Namespace + "/" + uidLabel(pod)}, nil
}

func uidLabel(pod metav1.Object) string { return pod.GetLabels()[v1alpha1.UIDLabel] }
