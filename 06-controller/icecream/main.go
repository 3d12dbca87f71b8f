// icecream is a controller that owns: it creates a Deployment for each Icecream,
// keeps it as the Icecream asks, and reports what became of it.
//
// Read controller/controller.go; the rest stands beside it. desired.go computes
// what should be, caches.go keeps what is.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/06-controller/icecream/controller"
	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "icecream:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", metav1.NamespaceAll, "where to work (default: all namespaces)")
	image := flag.String("image", "workshop/pause:1", "the image of the Deployments")
	// Nothing depends on the resync, because everything that this controller reads reports
	// its changes. It queues every Icecream again, so a key that a bug here has not queued
	// waits 10 hours at most. A cache that has lost an event stays wrong all the same.
	resync := flag.Duration("resync", 10*time.Hour, "how often to look at everything, without an event")
	var options loop.Options
	flag.IntVar(&options.Workers, "workers", 8, "how many Icecreams to work on at the same time")
	flag.StringVar(&options.Listen, "listen", "127.0.0.1:0", "the address of /healthz, /readyz and /metrics; port 0 is any free one")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; -h lists the flags", flag.Arg(0))
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	// No limit of requests a second: the queue slows down what fails, and the
	// server's priority and fairness protects the server.
	config.QPS = -1
	loop.WaitForServer(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	sweets, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for Icecreams: %w", err)
	}
	recorder, stopRecording, err := loop.Recorder(ctx, client, controller.Manager)
	if err != nil {
		return err
	}
	defer stopRecording()
	options.Observer = loopreport.Observer() // for the X-ray of make web
	c, err := controller.New(controller.Connect(client, sweets), recorder, *namespace, *image, *resync, options)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
