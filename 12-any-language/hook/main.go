// hook is a controller whose decision is a program of yours, in any language. It does what
// client-go is good at: it watches, caches, queues, tries again and stops in good order. The
// program reads a parent and the children that it has as JSON, and answers with the status and
// the children that it should have.
//
//	hook -namespace default -parent icecreams.v1alpha1.controller.nicoleh.io -child deployments.v1.apps -- jq -c -f icecream.jq
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	parent := flag.String("parent", "", "the resource to decide about, such as icecreams.v1alpha1.controller.nicoleh.io")
	child := flag.String("child", "", "the resource that each of them has, such as deployments.v1.apps")
	options := loop.Options{Workers: 4, Observer: loopreport.Observer()}
	flag.StringVar(&options.Listen, "listen", "127.0.0.1:0", "the address of /healthz, /readyz and /metrics; port 0 is any free one")
	flag.Parse()
	parents, err := resource("-parent", *parent)
	children, other := resource("-child", *child)
	if err := errors.Join(err, other, loop.CheckFlags(*namespace, 0)); err != nil {
		return err
	}
	if *namespace == "" {
		return errors.New("-namespace is empty: hook works in one namespace")
	}
	if flag.NArg() == 0 {
		return errors.New("no program to ask: put it last, as in -- jq -c -f icecream.jq")
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the queue slows down what fails
	loop.WaitForServer(config)
	client, err := dynamic.NewForConfig(config)
	once, other := sendsOnce(config)
	if err := errors.Join(err, other); err != nil {
		return fmt.Errorf("creating the clients: %w", err)
	}
	c, err := newController(client, once, *namespace, parents, children, flag.Args(), options)
	if err != nil {
		return err
	}
	return c.loop.Run(ctx, c.informers)
}

// sendsOnce returns the client of the workers, see loop.Once. It is made as dynamic.NewForConfig
// makes one: group, version and path are those of each request.
func sendsOnce(config *rest.Config) (dynamic.Interface, error) {
	config = dynamic.ConfigFor(config)
	config.GroupVersion, config.APIPath = &schema.GroupVersion{}, "/"
	client, err := rest.RESTClientFor(config)
	return dynamic.New(loop.Once(client)), err
}

// resource reads RESOURCE.VERSION.GROUP, as kubectl takes it, too.
func resource(option, value string) (schema.GroupVersionResource, error) {
	full, _ := schema.ParseResourceArg(value)
	if full == nil {
		return schema.GroupVersionResource{}, fmt.Errorf("%s %q: want RESOURCE.VERSION.GROUP, such as deployments.v1.apps", option, value)
	}
	return *full, nil
}
