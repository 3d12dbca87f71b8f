// Command kubeconfig says which configuration a program would use, where it
// comes from and who the server thinks we are. It never prints a secret.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubeconfig:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	flag.Parse()

	config, err := load(*kubeconfig, *kubeContext)
	if err != nil {
		return err
	}
	fmt.Println("server:", config.Host)
	fmt.Println("credentials:", credentials(config))

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	// Only the server knows who a certificate or a token stands for.
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking the server who we are: %w", err)
	}
	fmt.Println("user:", review.Status.UserInfo.Username)
	return nil
}

// load looks where every Kubernetes tool looks: the flag, the files in
// KUBECONFIG (several are merged), ~/.kube/config, and if there is none of
// these, the files that a pod finds mounted.
func load(file, contextName string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	raw, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("no usable kubeconfig: %w", err)
	}
	if len(raw.Clusters) == 0 && file == "" && contextName == "" {
		// ClientConfig() would do this too, but silently.
		fmt.Println("source: in-cluster")
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config), and not in a pod: %w", err)
		}
		return config, nil
	}

	switch {
	case file != "":
		fmt.Println("source: -kubeconfig")
	case os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "":
		fmt.Println("source: KUBECONFIG")
	default:
		fmt.Println("source: home directory")
	}
	use := raw.CurrentContext
	if contextName != "" {
		use = contextName
	}
	for _, name := range slices.Sorted(maps.Keys(raw.Contexts)) {
		mark := "          "
		if name == use {
			mark = " (in use) "
		}
		fmt.Println("context:" + mark + name)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, use, &clientcmd.ConfigOverrides{CurrentContext: contextName}, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	return config, nil
}

// credentials says what kind of credentials there are. Formatting config with
// %v or %#v hides them too, because *rest.Config has String and GoString. The
// struct *config has neither: formatting it shows the password and the token.
func credentials(config *rest.Config) string {
	var kinds []string
	if config.CertFile != "" || len(config.CertData) > 0 {
		kinds = append(kinds, "client certificate")
	}
	if config.BearerToken != "" || config.BearerTokenFile != "" {
		kinds = append(kinds, "token")
	}
	if config.ExecProvider != nil {
		kinds = append(kinds, "plugin "+config.ExecProvider.Command)
	}
	if config.Username != "" {
		kinds = append(kinds, "password")
	}
	if len(kinds) == 0 {
		return "none"
	}
	return strings.Join(kinds, ", ")
}
