// Command discovery asks the server what it serves, and maps between what
// people type, resources (in the path) and kinds (in the object).
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "discovery:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: discovery [flags] [RESOURCE...]   as kubectl takes them: deploy, pods, hpa")
		flag.PrintDefaults()
	}
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = []string{"deploy", "nodes", "events.events.k8s.io"}
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	// Discovery takes no context; the transport can: Ctrl-C ends its requests
	// too, and here they are counted.
	var requests atomic.Int64
	config.Wrap(transport.WrapperFunc(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			requests.Add(1)
			return next.RoundTrip(r.WithContext(ctx))
		})
	}))
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	version, err := client.ServerVersion()
	if err != nil {
		return fmt.Errorf("asking for the version: %w", err)
	}
	groups, resources, err := client.ServerGroupsAndResources()
	// One aggregated API server that does not answer is an error, and the groups
	// of all others are in the result all the same.
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return fmt.Errorf("discovery: %w", err)
	}
	for _, gv := range slices.SortedFunc(maps.Keys(failed), func(a, b schema.GroupVersion) int { return cmp.Compare(a.String(), b.String()) }) {
		fmt.Printf("unavailable: %s: %v\n", gv, failed[gv])
	}
	served := 0
	for _, list := range resources {
		served += len(list.APIResources)
	}
	fmt.Printf("server %s: %d groups, %d resources and subresources\n", version.GitVersion, len(groups), served)

	// Deferred: nothing is fetched before the first question, and nothing twice.
	// Both share one cache: with a cache each, both would fetch everything, and
	// Reset, which reaches the mapper's only, would leave the other one stale.
	requests.Store(0)
	cache := memory.NewMemCacheClient(client)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cache)
	expand := restmapper.NewShortcutExpander(mapper, cache, func(string) {})
	fmt.Printf("requests of the mapper so far: %d\n", requests.Load())
	for _, name := range names {
		// pods, deployments.apps or deployments.v1.apps: what a user may type.
		full, part := schema.ParseResourceArg(name)
		if full == nil {
			full = new(part.WithVersion(""))
		}
		resource, err := expand.ResourceFor(*full)
		if meta.IsNoMatchError(err) {
			resource, err = expand.ResourceFor(part.WithVersion(""))
		}
		if err != nil {
			return fmt.Errorf("looking for %q: %w", name, err)
		}
		kind, err := mapper.KindFor(resource)
		if err != nil {
			return fmt.Errorf("looking for the kind of %s: %w", resource, err)
		}
		// And back: this is what a program needs that has a manifest in hand.
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("looking for the resource of %s: %w", kind, err)
		}
		fmt.Printf("%s -> resource %s -> kind %s -> resource %s, %s\n",
			name, dotted(resource), kind.Kind, dotted(mapping.Resource), mapping.Scope.Name())
	}

	fmt.Printf("requests of the mapper for all of these: %d\n", requests.Swap(0))
	unicorn := schema.GroupKind{Group: "example.com", Kind: "Unicorn"}
	_, err = mapper.RESTMapping(unicorn)
	fmt.Printf("Unicorn: no match=%t, requests: %d\n", meta.IsNoMatchError(err), requests.Swap(0))
	// A resource that was defined since is found only after this.
	mapper.Reset()
	_, err = mapper.RESTMapping(unicorn)
	fmt.Printf("Unicorn after Reset: no match=%t, requests: %d\n", meta.IsNoMatchError(err), requests.Swap(0))
	return nil
}

func dotted(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return r.Resource + "." + r.Version
	}
	return r.Resource + "." + r.Version + "." + r.Group
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
