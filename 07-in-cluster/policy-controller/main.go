// Command policy-controller runs both controllers of step 06 as a workload of the
// cluster. Read the files in this order:
//
//	main.go     the flags, what is started, and the order in which everything ends
//	connect.go  where the connection to the API server comes from
//	lease.go    leader election
//	serve.go    health, metrics and profiles; listen.go the servers themselves
//	auth.go     who may read the metrics
//	log.go      the format of the log
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	healthcheckpolicy "github.com/k8s-go/workshop/06-controller/healthcheckpolicy/controller"
	icecream "github.com/k8s-go/workshop/06-controller/icecream/controller"
	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
	"github.com/k8s-go/workshop/internal/xray/report"
)

type options struct {
	kubeconfig string
	namespace  string
	workers    int
	resync     time.Duration
	image      string

	lease lease

	health, metrics, profiles, xray string

	reporter *report.Reporter // nil without xray

	logFormat string
	verbosity int
	version   bool
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("policy-controller", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; without it the pod's service account is used, and outside of a pod KUBECONFIG, then ~/.kube/config")
	flags.StringVar(&o.namespace, "namespace", metav1.NamespaceAll, "the `namespace` to work in (default: all)")
	flags.IntVar(&o.workers, "workers", 8, "how many objects each controller works on at the same time")
	flags.DurationVar(&o.resync, "resync", 10*time.Hour, "how often every object is looked at without an event")
	flags.StringVar(&o.image, "image", "workshop/pause:1", "the `image` of the Deployments of Icecreams")
	o.lease.addFlags(flags, flags.Name())
	flags.StringVar(&o.health, "health-listen", "127.0.0.1:0", "the `address` of /healthz and /readyz")
	flags.StringVar(&o.metrics, "metrics-listen", "127.0.0.1:0", "the `address` of /metrics, over HTTPS, for users whom the API server allows to get it")
	flags.StringVar(&o.profiles, "pprof-listen", "", "a loopback `address` for /debug/pprof/ (default: no profiles)")
	flags.StringVar(&o.xray, "xray-listen", "", "a loopback `address` where the X-ray of make web reads what the controllers do (default: none)")
	flags.StringVar(&o.logFormat, "log-format", "text", "text or json")
	flags.IntVar(&o.verbosity, "v", 0, "the `level` of the log; 4 for debugging")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; -h lists the flags", flags.Arg(0))
	}
	if o.xray != "" {
		o.reporter = report.New()
	}
	return o, errors.Join(o.lease.validate(), loopback("pprof-listen", o.profiles), loopback("xray-listen", o.xray))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:])
	stop()
	klog.Flush()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "policy-controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.version {
		printVersion(os.Stdout)
		return nil
	}
	if err := setUpLog(o.logFormat, o.verbosity); err != nil {
		return err
	}
	config, source, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Connecting", "server", config.Host, "from", source)
	config.Dial = dial
	config.QPS = -1 // the queues limit the tries of each key, and the API server limits clients
	loop.WaitForServer(config)
	return work(ctx, config, o)
}

// work runs the controllers until ctx ends or the lease is lost.
//
// The end has an order: the workers finish what is in flight, the lease is released,
// and then the servers stop. A lost lease knows no order: another process may already
// be the leader, so this one ends at once, in the middle of whatever it does.
// client-go sends Events in the background and cannot wait for them, so the last
// ones before an end can be lost.
func work(ctx context.Context, config *rest.Config, o options) error {
	clients, err := healthcheckpolicy.Connect(config)
	if err != nil {
		return err
	}
	election, err := o.lease.election(config)
	if err != nil {
		return err
	}
	controllers, stopEvents, err := newControllers(ctx, clients, o, election.won)
	if err != nil {
		return err
	}
	servers, err := o.serve(ctx, config, controllers, election)
	if err != nil {
		return err
	}
	err = controllers.run(ctx, election)
	if errors.Is(err, errLeaseLost) {
		return err
	}
	stopEvents()
	servers.stop()
	return err
}

// run runs the controllers while the process leads, until ctx ends or the lease is lost.
func (c controllers) run(ctx context.Context, e *election) error {
	// Leading ends after the work, so it does not end with ctx.
	lead, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	working, stopWorking := context.WithCancel(ctx)
	defer stopWorking()
	ended := make(chan error, len(c.all))
	for _, controller := range c.all {
		go func() { ended <- controller.Run(working) }()
	}
	go e.run(lead)

	var errs []error
	for range c.all {
		select {
		case err := <-ended:
			stopWorking() // one without the other is not what was asked for
			errs = append(errs, err)
		case <-e.over:
			return errLeaseLost
		}
	}
	release()
	<-e.over
	return errors.Join(errs...)
}

// A controller is one of step 06.
type controller interface {
	Run(ctx context.Context) error
	Ready() bool
}

type controllers struct {
	all     []controller
	metrics *prometheus.Registry
}

// newControllers makes both controllers, on one registry of metrics. Their workers
// begin when the channel is closed. The returned function ends their Events.
func newControllers(ctx context.Context, clients healthcheckpolicy.Clients, o options, begin <-chan struct{}) (_ controllers, stop func(), err error) {
	options := loop.Options{Workers: o.workers, Begin: begin, Registry: prometheus.NewRegistry(), Observer: loopreport.Observer()}
	if o.reporter != nil {
		options.Observer = loopreport.For(o.reporter)
	}

	recorder, stopPolicies, err := loop.Recorder(ctx, clients.Core, "healthcheckpolicy")
	if err != nil {
		return controllers{}, nil, err
	}
	clients.Recorder = recorder
	policies, err := healthcheckpolicy.New(clients, o.namespace, o.resync, clock.RealClock{}, options)
	if err != nil {
		return controllers{}, nil, err
	}
	recorder, stopIcecreams, err := loop.Recorder(ctx, clients.Core, icecream.Manager)
	if err != nil {
		return controllers{}, nil, err
	}
	icecreams, err := icecream.New(icecream.Connect(clients.Core, clients.Policies), recorder, o.namespace, o.image, o.resync, options)
	if err != nil {
		return controllers{}, nil, err
	}
	return controllers{[]controller{policies, icecreams}, options.Registry}, func() { stopPolicies(); stopIcecreams() }, nil
}

// printVersion prints what go build has put into the binary.
func printVersion(w io.Writer) {
	version, clientGo := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, m := range info.Deps {
			if m.Path == "k8s.io/client-go" {
				clientGo = m.Version
			}
		}
	}
	fmt.Fprintf(w, "policy-controller %s, client-go %s, %s, %s/%s\n", version, clientGo, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
