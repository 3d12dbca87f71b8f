// Command widget-controller keeps a ConfigMap for each Widget. Read the files in
// this order:
//
//	main.go     the flags, what is started, and the order in which it ends
//	connect.go  where the connection to the API server comes from
//	lease.go    leader election
//	serve.go    health and metrics; listen.go the servers themselves
//	auth.go     who may read the metrics
//	log.go      the format of the log; steps.go what -v=4 adds to it
//
// The controller itself is in internal/controller.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"example.org/widgets/internal/controller"
	"example.org/widgets/internal/loop"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:])
	stop()
	klog.Flush()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, controller.Manager+":", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(controller.Manager, flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file`; without it the pod's service account is used, and outside of a pod KUBECONFIG, then ~/.kube/config")
	namespace := flags.String("namespace", metav1.NamespaceAll, "the `namespace` to work in (default: all)")
	options := loop.Options{Registry: newRegistry(), Observer: logObserver{}}
	flags.IntVar(&options.Workers, "workers", 4, "how many objects to work on at the same time")
	health := flags.String("health-listen", "127.0.0.1:0", "the `address` of /healthz and /readyz; port 0 is any free one")
	metrics := flags.String("metrics-listen", "127.0.0.1:0", "the `address` of /metrics, over HTTPS, for users whom the API server allows to get it")
	logFormat := flags.String("log-format", "text", "text or json")
	verbosity := flags.Int("v", 0, "the `level` of the log; 4 shows every step, 6 every request")
	var lease lease
	lease.addFlags(flags, controller.Manager)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; -h lists the flags", flags.Arg(0))
	}
	if err := lease.validate(); err != nil {
		return err
	}
	if err := setUpLog(*logFormat, *verbosity); err != nil {
		return err
	}
	config, source, err := connect(*kubeconfig)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Connecting", "server", config.Host, "from", source)
	config.Dial = dial
	config.QPS = -1 // the queue limits the tries of each key, and the API server limits clients
	loop.WaitForServer(config)

	election, err := lease.election(config)
	if err != nil {
		return err
	}
	options.Begin = election.won
	c, stopEvents, err := controller.New(ctx, config, *namespace, options)
	if err != nil {
		return err
	}
	servers, err := serve(ctx, config, *health, *metrics, options.Registry, c, election)
	if err != nil {
		return err
	}

	// Leading ends after the work, so it does not end with ctx.
	lead, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	go election.run(lead)
	select {
	case err = <-ended:
	case <-election.over:
		return errLeaseLost // another process may be the leader: no more orderly end
	}
	release()
	<-election.over
	stopEvents()
	servers.stop()
	return err
}
