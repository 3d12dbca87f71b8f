// Command apply lets two field managers own parts of one object: a manager that
// applies a field owns it, and gives it up when it applies without the field.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	apply := func(what, manager string, force bool, wanted *corev1ac.ConfigMapApplyConfiguration) error {
		cm, err := configMaps.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: manager, Force: force})
		if err != nil {
			return err
		}
		fmt.Printf("%-24s %s\n", what+":", ownedData(cm))
		return nil
	}
	// A field of an apply configuration that is not set is not sent: it is a
	// pointer, a map or a slice, and nil. The structs of package corev1 cannot
	// leave everything out, and what is sent is owned, zero values too.
	ours := func(data map[string]string) *corev1ac.ConfigMapApplyConfiguration {
		return corev1ac.ConfigMap("apply", *namespace).WithData(data)
	}

	// Apply creates what is not there, so there is no Get before it.
	if err := apply("anna applies", "anna", false, ours(map[string]string{"color": "blue", "size": "L"})); err != nil {
		return fmt.Errorf("applying as anna: %w", err)
	}
	if err := apply("bert agrees on a size", "bert", false, ours(map[string]string{"size": "L"})); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}

	red := ours(map[string]string{"color": "red", "size": "L"})
	err = apply("bert wants red", "bert", false, red)
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) {
		return fmt.Errorf("wanted a conflict about the color, got %w", err)
	}
	for _, cause := range status.Status().Details.Causes {
		fmt.Printf("%-24s %s: %s\n", "409 for bert:", cause.Field, cause.Message)
	}
	if err := apply("bert forces red", "bert", true, red); err != nil {
		return fmt.Errorf("forcing: %w", err)
	}

	// Giving up: apply without it. A program that can say all it wants needs no
	// read for that, as above. Bert changes one field of what he once applied, so
	// he has to read which fields those are. What somebody else owns too stays;
	// what nobody owns any more is removed.
	cm, err := configMaps.Get(ctx, "apply", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	rest, err := corev1ac.ExtractConfigMap(cm, "bert")
	if err != nil {
		return fmt.Errorf("extracting what bert owns: %w", err)
	}
	delete(rest.Data, "size")
	if err := apply("bert gives up the size", "bert", false, rest); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	delete(rest.Data, "color")
	if err := apply("bert gives up the color", "bert", false, rest); err != nil {
		return fmt.Errorf("applying as bert: %w", err)
	}
	return nil
}

// ownedData returns the data with the managers that own each key.
func ownedData(cm *corev1.ConfigMap) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		var owners []string
		for _, entry := range cm.ManagedFields {
			if strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+key+`"`) {
				owners = append(owners, entry.Manager)
			}
		}
		slices.Sort(owners)
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", key, cm.Data[key], strings.Join(owners, ", ")))
	}
	return strings.Join(parts, ", ")
}
