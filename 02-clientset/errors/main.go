// Command errors provokes the errors of the API server one by one and tells
// them apart with apierrors, never by their text.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "errors:", err)
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
	// The same server as somebody who may do nothing, and as somebody unknown.
	nobody := rest.CopyConfig(config)
	nobody.Impersonate.UserName = "system:serviceaccount:" + *namespace + ":nobody"
	asNobody, err := kubernetes.NewForConfig(nobody)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	unknown := rest.AnonymousClientConfig(config)
	unknown.BearerToken = "not-a-token"
	asUnknown, err := kubernetes.NewForConfig(unknown)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	configMaps := client.CoreV1().ConfigMaps(*namespace)
	for _, err := range []error{ // left by an earlier run
		configMaps.Delete(ctx, "errors", metav1.DeleteOptions{}),
		client.CoreV1().Services(*namespace).Delete(ctx, "errors", metav1.DeleteOptions{}),
		client.CoreV1().Pods(*namespace).Delete(ctx, "errors", metav1.DeleteOptions{}),
		client.PolicyV1().PodDisruptionBudgets(*namespace).Delete(ctx, "errors", metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting what an earlier run has left: %w", err)
		}
	}
	stale, err := configMaps.Create(ctx, configMap("errors"), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	if _, err := configMaps.Patch(ctx, "errors", types.MergePatchType, []byte(`{"data":{"a":"1"}}`), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patching it: %w", err)
	}
	if err := guardedPod(ctx, client, *namespace); err != nil {
		return err
	}
	path := client.CoreV1().RESTClient()

	for _, c := range []struct {
		name     string
		is       func(error) bool
		provoked func() error
	}{
		{"NotFound", apierrors.IsNotFound, func() error {
			_, err := configMaps.Get(ctx, "missing", metav1.GetOptions{})
			return err
		}},
		{"AlreadyExists", apierrors.IsAlreadyExists, func() error {
			_, err := configMaps.Create(ctx, configMap("errors"), metav1.CreateOptions{})
			return err
		}},
		{"Conflict", apierrors.IsConflict, func() error {
			_, err := configMaps.Update(ctx, stale, metav1.UpdateOptions{})
			return err
		}},
		{"Invalid", apierrors.IsInvalid, func() error {
			_, err := configMaps.Create(ctx, configMap("Not_A_Name"), metav1.CreateOptions{})
			return err
		}},
		{"BadRequest", apierrors.IsBadRequest, func() error {
			_, err := configMaps.Patch(ctx, "errors", types.MergePatchType, []byte(`{"data":`), metav1.PatchOptions{})
			return err
		}},
		{"Forbidden", apierrors.IsForbidden, func() error {
			_, err := asNobody.CoreV1().ConfigMaps(*namespace).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"Unauthorized", apierrors.IsUnauthorized, func() error {
			_, err := asUnknown.CoreV1().ConfigMaps(*namespace).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"MethodNotAllowed", apierrors.IsMethodNotSupported, func() error {
			return path.Put().Namespace(*namespace).Resource("configmaps").Do(ctx).Error()
		}},
		{"NotAcceptable", apierrors.IsNotAcceptable, func() error {
			return path.Get().Namespace(*namespace).Resource("configmaps").SetHeader("Accept", "text/html").Do(ctx).Error()
		}},
		{"UnsupportedMediaType", apierrors.IsUnsupportedMediaType, func() error {
			_, err := configMaps.Patch(ctx, "errors", "text/plain", []byte("a=2"), metav1.PatchOptions{})
			return err
		}},
		{"RequestEntityTooLarge", apierrors.IsRequestEntityTooLargeError, func() error {
			big := configMap("big")
			big.Data = map[string]string{"a": strings.Repeat("x", 4<<20)}
			_, err := configMaps.Create(ctx, big, metav1.CreateOptions{})
			return err
		}},
		{"TooManyRequests", apierrors.IsTooManyRequests, func() error {
			// A 429 that says when to come back is retried by the client itself; not here.
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "errors"}}
			return path.Post().Namespace(*namespace).Resource("pods").Name("errors").SubResource("eviction").
				MaxRetries(0).Body(eviction).Do(ctx).Error()
		}},
		{"ServiceUnavailable", apierrors.IsServiceUnavailable, func() error {
			_, err := client.CoreV1().Services(*namespace).ProxyGet("http", "errors", "80", "/", nil).DoRaw(ctx)
			return err
		}},
		{"Timeout", apierrors.IsTimeout, func() error {
			var err error
			for range 10 { // a server that has begun its answer by then breaks it off, with no status
				if err = path.Get().Namespace(*namespace).Resource("configmaps").Param("timeout", "1us").Do(ctx).Error(); apierrors.IsTimeout(err) {
					break
				}
			}
			return err
		}},
	} {
		err := c.provoked()
		if !c.is(err) {
			return fmt.Errorf("wanted %s, got %w", c.name, err)
		}
		var status apierrors.APIStatus // an interface: errors.As finds it below any wrapping
		errors.As(err, &status)
		text, _, _ := strings.Cut(err.Error(), "\n")
		fmt.Printf("%d %s: %.90s\n", status.Status().Code, c.name, text)
	}

	// Not every error is the server's: without an answer there is no status.
	down := rest.AnonymousClientConfig(config)
	down.Host = "https://127.0.0.1:1"
	client, err = kubernetes.NewForConfig(down)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	_, err = client.CoreV1().ConfigMaps(*namespace).List(ctx, metav1.ListOptions{})
	fmt.Printf("no status: refused=%t, reason=%q\n", errors.Is(err, syscall.ECONNREFUSED), apierrors.ReasonForError(err))
	return nil
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// guardedPod makes a pod that a disruption budget does not let go, and a
// Service without endpoints.
func guardedPod(ctx context.Context, client kubernetes.Interface, namespace string) error {
	meta := metav1.ObjectMeta{Name: "errors", Labels: map[string]string{"lesson": "errors"}}
	_, err := client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: meta,
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"lesson": "no-such-pod"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a Service: %w", err)
	}
	_, err = client.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: meta,
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{MatchLabels: meta.Labels},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a disruption budget: %w", err)
	}
	// The gate keeps it from any node. Only a pod that runs is guarded, so we
	// play the kubelet and say that it does.
	pod, err := client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "k8s-go.openshift.org/never"}},
			Containers:      []corev1.Container{{Name: "main", Image: "workshop/pause:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a pod: %w", err)
	}
	pod.ResourceVersion, pod.Status.Phase = "", corev1.PodRunning
	if _, err := client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("setting the status of the pod: %w", err)
	}
	return nil
}
