// Command healthcheckpolicy is the controller of HealthCheckPolicies. It marks or
// evicts pods that lack probes, and reports in the status of each policy.
// Start reading at controller/controller.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/k8s-go/workshop/06-controller/healthcheckpolicy/controller"
	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "healthcheckpolicy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("healthcheckpolicy", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flags.String("namespace", metav1.NamespaceAll, "the namespace to work in (default: all)")
	workers := flags.Int("workers", 8, "how many policies are worked on at the same time")
	resync := flags.Duration("resync", 10*time.Hour, "how often every policy is looked at without a reason")
	listen := flags.String("listen", "127.0.0.1:0", "the address for /healthz, /readyz and /metrics")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; -h lists the flags", flags.Arg(0))
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	config.QPS = -1 // the queue limits the tries of each key, and the API server limits clients
	loop.WaitForServer(config)
	clients, err := controller.Connect(config)
	if err != nil {
		return err
	}

	recorder, stopRecording, err := loop.Recorder(ctx, clients.Core, "healthcheckpolicy")
	if err != nil {
		return err
	}
	defer stopRecording()
	clients.Recorder = recorder

	c, err := controller.New(clients, *namespace, *resync, clock.RealClock{}, loop.Options{Workers: *workers, Listen: *listen, Observer: loopreport.Observer()})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
