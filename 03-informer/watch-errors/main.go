// watch-errors decides what to do when an informer may not list or watch. Left
// alone, an informer logs the error and tries again for ever, which is wrong when
// the ServiceAccount is not allowed to read it: the program would wait for its
// cache for ever.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watch-errors:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	until := flag.String("until", "", "stop when a ConfigMap of this name appears (default: run until interrupted)")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" }))
	informer := factory.Core().V1().ConfigMaps().Informer()

	ctx, cancel := context.WithCancelCause(ctx)
	// It gets the error of a list or watch that could not begin. It does not get a watch
	// that broke off, nor the ERROR event with 410 by which the server says that history
	// is gone: the informer resumes, or lists again, and has nothing to report. Nor does
	// it hear of refused connections and of 429: after these the informer tries the watch
	// again by itself, and logs that only with -v=2 or -v=4.
	err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			cancel(err)
		default:
			fmt.Printf("will try again: %s\n", apierrors.ReasonForError(err))
		}
	})
	if err != nil {
		cancel(nil)
		return fmt.Errorf("setting the error handler: %w", err)
	}
	seen, found := context.WithCancel(ctx) // ends too when found is called, which never blocks
	defer found()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			cm := obj.(*corev1.ConfigMap)
			fmt.Println("ADDED", cm.Name)
			if cm.Name == *until {
				found()
			}
		},
	})
	if err != nil {
		cancel(nil)
		return fmt.Errorf("adding a handler: %w", err)
	}
	factory.StartWithContext(ctx)
	defer cancel(nil)
	if cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		fmt.Println("watching")
		<-seen.Done()
		cancel(nil)
		factory.Shutdown()
	}
	if cause := context.Cause(ctx); errors.As(cause, new(apierrors.APIStatus)) { // and no signal
		return fmt.Errorf("giving up: %w", cause)
	}
	return nil
}
