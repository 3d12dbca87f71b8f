// read-only-cache changes an object that it got from a lister. Listers return
// pointers into the cache, so everybody else now reads what no server has.
// With -copy it works on a DeepCopy, which is the cure.
//
// With KUBE_CACHE_MUTATION_DETECTOR=true client-go keeps a copy of every cached
// object, compares once a second and ends the process when one was changed. Tests run with that.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "read-only-cache:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	deepCopy := flag.Bool("copy", false, "copy the object before changing it")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	_, err = configMaps.Apply(ctx, applycorev1.ConfigMap("shared", *namespace).WithData(map[string]string{"owner": "nobody"}),
		metav1.ApplyOptions{FieldManager: "read-only-cache", Force: true})
	if err != nil {
		return fmt.Errorf("writing a ConfigMap: %w", err)
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(*namespace)
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return err
	}

	mine, err := lister.Get("shared")
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	if *deepCopy {
		mine = mine.DeepCopy()
	}
	mine.Data["owner"] = "me" // meant to be written to the server later

	others, err := lister.Get("shared")
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	live, err := configMaps.Get(ctx, "shared", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading from the server: %w", err)
	}
	fmt.Println("I have:         ", mine.Data["owner"])
	fmt.Println("others read:    ", others.Data["owner"])
	fmt.Println("the server has: ", live.Data["owner"])

	if on, _ := strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR")); on {
		select { // stay for the detector's next two comparisons
		case <-time.After(2500 * time.Millisecond):
			fmt.Println("the mutation detector has found nothing")
		case <-ctx.Done():
		}
	}
	return nil
}
