// Command scheme shows what client-go's scheme does on this side of the wire,
// and what only the server can do: defaults and conversion.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"syscall"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
)

const manifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: scheme}
spec:
  selector: {matchLabels: {app: scheme}}
  template:
    metadata: {labels: {app: scheme}}
    spec: {containers: [{name: main, image: "example/main:1"}]}
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheme:", err)
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
	// From text to a Go type: apiVersion and kind choose it.
	object, gvk, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(manifest), nil, nil)
	if err != nil {
		return fmt.Errorf("decoding: %w", err)
	}
	d, ok := object.(*appsv1.Deployment)
	if !ok {
		return fmt.Errorf("decoding: got %T", object)
	}
	fmt.Printf("%s -> %s\n", gvk, reflect.TypeOf(object))
	kinds, _, err := scheme.Scheme.ObjectKinds(&appsv1.Deployment{})
	if err != nil {
		return fmt.Errorf("looking for the kind: %w", err)
	}
	fmt.Printf("%s -> %s\n", reflect.TypeOf(d), kinds[0])
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode([]byte(`{"apiVersion": "example.com/v1", "kind": "Unicorn"}`), nil, nil)
	fmt.Printf("unknown kind: %t\n", runtime.IsNotRegisteredError(err))

	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf} {
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
		// EncoderForVersion fills in apiVersion and kind, which objects from a typed client lack.
		data, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, appsv1.SchemeGroupVersion), d)
		if err != nil {
			return fmt.Errorf("encoding as %s: %w", mediaType, err)
		}
		back, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), data)
		if err != nil {
			return fmt.Errorf("decoding from %s: %w", mediaType, err)
		}
		fmt.Printf("%s: %d bytes, the same afterwards: %t\n", mediaType, len(data), equality.Semantic.DeepEqual(d, back))
	}

	// Defaults are the server's: here nil stays nil. A dry run fills them in.
	scheme.Scheme.Default(d)
	fmt.Printf("defaulted here: replicas set=%t\n", d.Spec.Replicas != nil)
	stored, err := client.AppsV1().Deployments(*namespace).Create(ctx, d, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	fmt.Printf("defaulted by the server: replicas=%d\n", *stored.Spec.Replicas)
	// What a typed client returns says neither kind nor version: the type does.
	fmt.Printf("apiVersion and kind of the answer: %q %q\n", stored.APIVersion, stored.Kind)

	clone := stored.DeepCopy() // an assignment would share containers, maps and pointers
	clone.Spec.Template.Spec.Containers[0].Image = "example/main:2"
	fmt.Printf("the original after a change to the copy: %s\n", stored.Spec.Template.Spec.Containers[0].Image)

	return convert(ctx, client, *namespace)
}

// convert writes an autoscaler as v1 and reads it as v2.
func convert(ctx context.Context, client kubernetes.Interface, namespace string) error {
	v1 := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "scheme"},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef:                 autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "scheme"},
			MaxReplicas:                    3,
			TargetCPUUtilizationPercentage: new(int32(80)),
		},
	}
	_, err := scheme.Scheme.ConvertToVersion(v1, autoscalingv2.SchemeGroupVersion)
	fmt.Printf("converted here: %t\n", err == nil)
	err = client.AutoscalingV1().HorizontalPodAutoscalers(namespace).Delete(ctx, v1.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the autoscaler of an earlier run: %w", err)
	}
	if _, err := client.AutoscalingV1().HorizontalPodAutoscalers(namespace).Create(ctx, v1, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the v1 autoscaler: %w", err)
	}
	v2, err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, "scheme", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading it as v2: %w", err)
	}
	metric := v2.Spec.Metrics[0].Resource
	fmt.Printf("converted by the server: %s %s=%d%%\n", metric.Name, metric.Target.Type, *metric.Target.AverageUtilization)
	if err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Delete(ctx, "scheme", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	return nil
}
