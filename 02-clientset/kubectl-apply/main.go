// Command kubectl-apply does what "kubectl apply --server-side -f" does: it
// reads the documents of a file, asks discovery for the resource of each kind,
// and applies them with the dynamic client. It knows no Go type of any of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubectl-apply:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	a := &applier{}
	flag.StringVar(&a.namespace, "namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "for objects that name none")
	flag.BoolVar(&a.force, "force-conflicts", false, "take fields that others own")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: kubectl-apply [flags] FILE...   YAML or JSON; - is standard input")
		flag.PrintDefaults()
	}
	flag.Parse()

	// Everything is read before anything is applied: a file that ends in a
	// syntax error changes nothing.
	var objects []*unstructured.Unstructured
	for _, name := range flag.Args() {
		found, err := readFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, found...)
	}
	if len(objects) == 0 {
		return errors.New("nothing to apply: want files with at least one object")
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	if a.client, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	// Discovery takes no context; the transport can: Ctrl-C ends its requests, too.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return next.RoundTrip(r.WithContext(ctx)) })
	})
	if a.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := a.discover(); err != nil {
		return err
	}
	// One object that is refused does not keep the others back.
	var errs []error
	for _, o := range objects {
		if err := a.apply(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

func readFile(name string) ([]*unstructured.Unstructured, error) {
	if name == "-" {
		return read(os.Stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return read(file)
}

// read returns the objects of a stream of YAML or JSON documents, and those
// inside its Lists.
func read(r io.Reader) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for n := 1; ; n++ {
		var document runtime.RawExtension
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(document.Raw) == 0 { // nothing but comments between two ---
			continue
		}
		// This decoder keeps integers. A plain json.Unmarshal into a map would
		// make each a float64.
		object, err := runtime.Decode(unstructured.UnstructuredJSONScheme, document.Raw)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		switch object := object.(type) {
		case *unstructured.Unstructured:
			objects = append(objects, object)
		case *unstructured.UnstructuredList:
			for i := range object.Items {
				objects = append(objects, &object.Items[i])
			}
		}
	}
}

type applier struct {
	discovery discovery.DiscoveryInterface
	mapper    meta.RESTMapper
	client    dynamic.Interface
	namespace string
	force     bool
	defined   bool // a CustomResourceDefinition has been applied
}

var definition = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

func (a *applier) discover() error {
	groups, err := restmapper.GetAPIGroupResources(a.discovery)
	if err != nil {
		return fmt.Errorf("asking the server for its resources: %w", err)
	}
	a.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return nil
}

// apply applies one object. If it is of a kind that was defined a moment ago,
// the server needs some time until it serves it. (kubectl gives up instead.)
func (a *applier) apply(ctx context.Context, o *unstructured.Unstructured) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		last = a.try(ctx, o)
		if a.defined && (meta.IsNoMatchError(last) || apierrors.IsNotFound(last)) {
			return false, a.discover()
		}
		return true, last
	})
	if wait.Interrupted(err) && last != nil {
		err = last
	}
	if err == nil && o.GroupVersionKind().GroupKind() == definition {
		a.defined = true
	}
	return err
}

func (a *applier) try(ctx context.Context, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	// The object names its kind, and the URL needs the resource.
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace := o.GetNamespace()
		if namespace == "" {
			namespace = a.namespace
		}
		target = a.client.Resource(mapping.Resource).Namespace(namespace)
	}
	// The server merges: it creates what is missing, changes what differs, and
	// removes what this manager applied the last time and applies no more.
	if _, err := target.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "kubectl-apply", Force: a.force}); err != nil {
		return err
	}
	fmt.Printf("%s/%s applied\n", mapping.Resource.GroupResource(), o.GetName())
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
