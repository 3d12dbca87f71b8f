// port-list keeps a list of the named ports of each Service that is labelled ports=listed:
// the ConfigMap "web-ports" belongs to the Service "web". The exercises 4 to 7 have you write it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const suffix = "-ports"

func main() {
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	defer stop()
	if err := run(ctx, *namespace); err != nil {
		klog.ErrorS(err, "port-list has ended")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func run(ctx context.Context, namespace string) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	services, lists := factory.Core().V1().Services(), factory.Core().V1().ConfigMaps()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, 10*time.Second))
	defer queue.ShutDown()
	ofServices, err := services.Informer().AddEventHandler(each(queue.Add))
	ofLists, failed := lists.Informer().AddEventHandler(each(func(list cache.ObjectName) {
		if name, ok := strings.CutSuffix(list.Name, suffix); ok {
			queue.Add(cache.NewObjectName(list.Namespace, name))
		}
	}))
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("adding the handlers: %w", err)
	}
	informing, stopInforming := context.WithCancel(context.WithoutCancel(ctx)) // until the worker has ended
	defer stopInforming()
	factory.StartWithContext(informing)
	if !cache.WaitFor(ctx, "", ofServices.HasSyncedChecker(), ofLists.HasSyncedChecker()) {
		return nil // it was told to stop; while the API server refuses connections, Shutdown may wait for a minute
	}
	var worker sync.WaitGroup
	worker.Go(func() {
		for key, shutdown := queue.Get(); !shutdown; key, shutdown = queue.Get() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			service, _ := services.Lister().Services(key.Namespace).Get(key.Name) // the only error is NotFound
			list, _ := lists.Lister().ConfigMaps(key.Namespace).Get(key.Name + suffix)
			if err := reconcile(ctx, client, service, list); err != nil {
				utilruntime.HandleErrorWithContext(ctx, err, "Will try again", "service", key)
				queue.AddRateLimited(key)
			} else {
				queue.Forget(key)
			}
			cancel()
			queue.Done(key)
		}
	})
	<-ctx.Done()
	queue.ShutDown()
	worker.Wait()
	stopInforming()
	factory.Shutdown()
	return nil
}

// each calls f with the name of each object that appears, changes or goes.
func each(f func(cache.ObjectName)) cache.ResourceEventHandler {
	handle := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			f(name)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, obj any) { handle(obj) }, DeleteFunc: handle}
}

// reconcile makes a Service's list what it should be. What is not there is nil.
func reconcile(ctx context.Context, client kubernetes.Interface, service *corev1.Service, list *corev1.ConfigMap) error {
	if service == nil || service.DeletionTimestamp != nil {
		return nil // the garbage collector deletes the list
	}
	lists := client.CoreV1().ConfigMaps(service.Namespace)
	wanted, data := service.Labels["ports"] == "listed", map[string]string{}
	for _, port := range service.Spec.Ports {
		if port.Name != "" {
			data[port.Name] = strconv.Itoa(int(port.Port))
		}
	}
	var err error
	switch owner := *metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service")); {
	case list == nil && wanted:
		meta := metav1.ObjectMeta{Name: service.Name + suffix, OwnerReferences: []metav1.OwnerReference{owner}}
		_, err = lists.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: data}, metav1.CreateOptions{})
	case list == nil || !metav1.IsControlledBy(list, service): // somebody else's
	case !wanted:
		err = lists.Delete(ctx, list.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &list.UID, ResourceVersion: &list.ResourceVersion}})
	case !equality.Semantic.DeepEqual(list.Data, data):
		list = list.DeepCopy()
		list.Data = data
		_, err = lists.Update(ctx, list, metav1.UpdateOptions{})
	}
	return err
}
