// Command rest makes the request that a typed List makes, one layer deeper and
// in JSON: typed clients of built-in kinds ask for protobuf.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	var accept string // of the last request
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			accept = r.Header.Get("Accept")
			return next.RoundTrip(r)
		})
	})
	// A RESTClient speaks to one group and version. A clientset is a set of
	// them with methods on top; each gives its own away with RESTClient().
	core := rest.CopyConfig(config)
	core.APIPath = "/api" // "/apis" for all groups but the core one
	core.GroupVersion = &corev1.SchemeGroupVersion
	core.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(core)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	earlier := client.Delete().Namespace(*namespace).Resource("configmaps").Name("rest").Do(ctx).Error()
	if earlier != nil && !apierrors.IsNotFound(earlier) {
		return fmt.Errorf("deleting the ConfigMap of an earlier run: %w", earlier)
	}
	var created corev1.ConfigMap
	err = client.Post().Namespace(*namespace).Resource("configmaps").
		Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "rest", Labels: map[string]string{"lesson": "rest"}}}).
		Do(ctx).Into(&created)
	if err != nil {
		return fmt.Errorf("creating: %w", err)
	}

	options := metav1.ListOptions{LabelSelector: "lesson=rest", Limit: 10}
	request := client.Get().
		Namespace(*namespace).
		Resource("configmaps").
		// Options become query parameters by the scheme's rules.
		VersionedParams(&options, scheme.ParameterCodec)
	fmt.Println("GET", strings.TrimPrefix(request.URL().String(), config.Host))
	var list corev1.ConfigMapList
	var code int
	if err := request.Do(ctx).StatusCode(&code).Into(&list); err != nil {
		return fmt.Errorf("listing with the RESTClient: %w", err)
	}
	fmt.Println("Accept:", accept)
	fmt.Printf("%d, %d object\n", code, len(list.Items))

	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a clientset: %w", err)
	}
	typed, err := clientset.CoreV1().ConfigMaps(*namespace).List(ctx, options)
	if err != nil {
		return fmt.Errorf("listing with the clientset: %w", err)
	}
	// Both are decoded into the same Go types. Protobuf is smaller and faster;
	// custom resources, which have no protobuf, are always JSON (or CBOR).
	fmt.Println("Accept of the clientset:", accept)
	fmt.Printf("the clientset's List gives the same: %t\n", equality.Semantic.DeepEqual(typed.Items, list.Items))

	// Any path, any bytes.
	body, err := client.Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("reading /readyz: %w", err)
	}
	fmt.Printf("GET /readyz\n%s\n", body)

	if err := client.Delete().Namespace(*namespace).Resource("configmaps").Name("rest").Do(ctx).Error(); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
