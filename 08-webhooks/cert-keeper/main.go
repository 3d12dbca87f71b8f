// cert-keeper is a controller that keeps the certificates of webhooks: it issues them for
// Services that ask for one, tells the API server which CA to trust, and replaces both before
// they end, in an order in which no request is refused.
//
// Read keeper.go; authority.go is the CA, and the phases of its rotation.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
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
		fmt.Fprintln(os.Stderr, "cert-keeper:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", metav1.NamespaceAll, "whose Services to look at (default: those of all namespaces)")
	ca := flag.String("ca", "", "the Secret of the CA, as NAMESPACE/NAME (default: cert-keeper-ca in -namespace, or in the namespace cert-keeper)")
	hosts := flag.String("allow-hosts", "", "names and addresses, separated by commas, that a Service may ask for beside its own")
	var settings settings
	flag.DurationVar(&settings.caLifetime, "ca-lifetime", 365*24*time.Hour, "how long a CA is valid; it is replaced when a third is left")
	flag.DurationVar(&settings.leafLifetime, "leaf-lifetime", 90*24*time.Hour, "how long a serving certificate is valid; it is replaced when a third is left")
	flag.DurationVar(&settings.settle, "settle", 3*time.Minute, "how long to wait in a rotation until everybody has noticed; the kubelet can take over a minute to bring a Secret into a pod")
	resync := flag.Duration("resync", 10*time.Hour, "how often to look at everything, without an event")
	var options loop.Options
	flag.StringVar(&options.Listen, "listen", "127.0.0.1:0", "the address of /healthz, /readyz and /metrics; port 0 is any free one")
	flag.Parse()
	if settings.leafLifetime < 10*time.Second || settings.caLifetime < settings.leafLifetime {
		return errors.New("-leaf-lifetime has to be at least 10s, and -ca-lifetime at least as long as that")
	}
	if settings.settle < 0 || settings.settle >= settings.caLifetime/3 {
		return fmt.Errorf("-settle %s: want at least 0, and less than a third of -ca-lifetime, or the old CA ends before the new one has taken over", settings.settle)
	}
	if *ca == "" {
		*ca = cmp.Or(*namespace, "cert-keeper") + "/cert-keeper-ca"
	}
	caNamespace, caName, ok := strings.Cut(*ca, "/")
	if !ok || caNamespace == "" || caName == "" {
		return fmt.Errorf("-ca %s: want NAMESPACE/NAME", *ca)
	}
	if *namespace != metav1.NamespaceAll && *namespace != caNamespace {
		return fmt.Errorf("-ca %s has to be in the namespace %s, which is the only one that -namespace lets cert-keeper see", *ca, *namespace)
	}
	settings.ca = cache.NewObjectName(caNamespace, caName)
	if *hosts != "" {
		for host := range strings.SplitSeq(*hosts, ",") {
			host = strings.TrimSpace(host)
			if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(strings.ToLower(host), "*."))) > 0 {
				return fmt.Errorf("-allow-hosts %q: want names and addresses as a certificate can hold them; an international name begins with xn--", host)
			}
			settings.allowed = append(settings.allowed, host)
		}
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	loop.WaitForServer(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for CRDs: %w", err)
	}
	recorder, stopRecording, err := loop.Recorder(ctx, client, manager)
	if err != nil {
		return err
	}
	defer stopRecording()
	options.Observer = loopreport.Observer() // for the X-ray of make web
	k, err := newKeeper(client, definitions, recorder, *namespace, *resync, settings, options)
	if err != nil {
		return err
	}
	return k.loop.Run(ctx, k.factories...)
}
