// coldroom rents a room in the cold store for each ColdRoom, and gives it up with it. Nothing in
// the cluster knows what the store does, so it asks there from time to time.
//
//	coldroom -namespace default -store http://127.0.0.1:8080 -secret cold-store
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
	"github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned"
	typed "github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned/typed/outside/v1alpha1"
	"github.com/k8s-go/workshop/09-outside/pkg/generated/informers/externalversions"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "coldroom:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	var o options
	flag.StringVar(&o.namespace, "namespace", "default", "where to work")
	flag.DurationVar(&o.poll, "poll", 30*time.Second, "how often to look at a room of which the cluster says nothing new")
	flag.DurationVar(&o.retry, "retry", 10*time.Minute, "how long after a refusal to ask again, if the ColdRoom does not change")
	// The store remembers a key for a day. Half of that leaves room for clocks that differ.
	flag.DurationVar(&o.remembered, "remembered", 12*time.Hour, "for how long the store certainly knows an Idempotency-Key")
	flag.DurationVar(&o.late, "late", time.Minute, "by how much the lists of the store are late at most")
	address := flag.String("store", "", "the address of the store, such as http://127.0.0.1:8080 (required)")
	perSecond := flag.Float64("rate", 20, "how many calls to make to the store in a second, for all ColdRooms together")
	secret := flag.String("secret", "", "the Secret of the namespace whose key token holds what the store wants to see; none if empty")
	work := loop.Options{Workers: 4, Observer: loopreport.Observer()}
	flag.StringVar(&work.Listen, "listen", "127.0.0.1:0", "the address of /healthz, /readyz and /metrics; port 0 is any free one")
	flag.Parse()
	if *address == "" || *perSecond <= 0 || o.poll <= 0 || flag.NArg() > 0 {
		return errors.New("want -store and its address, a -rate and a -poll above 0, and no arguments beside the flags")
	}
	if err := loop.CheckFlags(o.namespace, 0); err != nil {
		return err
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the queue slows down what fails
	loop.WaitForServer(config)
	kube, err := kubernetes.NewForConfig(config)
	rooms, failed := versioned.NewForConfig(config)
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("creating the clients: %w", err)
	}
	recorder, stopRecording, err := loop.Recorder(ctx, kube, "coldroom")
	if err != nil {
		return err
	}
	defer stopRecording()
	c := &controller{client: typed.New(loop.Once(rooms.OutsideV1alpha1().RESTClient())), events: recorder, options: o}
	c.loop = loop.New("coldroom", c.reconcile, work)

	roomFactory := externalversions.NewSharedInformerFactoryWithOptions(rooms, 0, externalversions.WithNamespace(o.namespace))
	coldRooms := roomFactory.Outside().V1alpha1().ColdRooms()
	c.cached, c.cache = coldRooms.Lister(), coldRooms.Informer().GetStore()
	err = c.loop.Watch(coldRooms.Informer(), calm{loop.Each(func(name cache.ObjectName) { c.loop.Add(name, "ColdRoom changed") })})
	run, token := []loop.Informers{roomFactory}, func() (string, error) { return "", nil }
	if *secret != "" {
		one := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(o.namespace), informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, *secret).String()
		}))
		secrets := one.Core().V1().Secrets()
		err = errors.Join(err, c.loop.Watch(secrets.Informer(), loop.Each(func(cache.ObjectName) {
			all, _ := c.cached.ColdRooms(o.namespace).List(labels.Everything()) // a list of the cache does not fail
			for _, cr := range all {
				c.loop.Add(cache.MetaObjectToName(cr), "credentials changed")
			}
		})))
		// Read for each call: a token that is replaced is used at once. When a namespace is deleted, the Secret may go
		// before the ColdRooms, whose rooms can be given up all the same.
		var last atomic.Pointer[corev1.Secret]
		last.Store(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: *secret}})
		token = func() (string, error) {
			if s, err := secrets.Lister().Secrets(o.namespace).Get(*secret); err == nil {
				last.Store(s)
			}
			return tokenOf(last.Load())
		}
		run = append(run, one)
	}
	if c.store, failed = newStore(*address, *perSecond, token); errors.Join(err, failed) != nil {
		return errors.Join(err, failed)
	}
	return c.loop.Run(ctx, run...)
}
