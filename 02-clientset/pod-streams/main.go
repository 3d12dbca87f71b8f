// Command pod-streams does what kubectl logs, kubectl exec and kubectl
// port-forward do. The API server passes these requests on to the kubelet of
// the pod's node, so they need a container that really runs.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	image = "workshop/pause:1"
	name  = "pod-streams"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pod-streams:", err)
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
	if err := startPod(ctx, client, *namespace); err != nil {
		return err
	}

	// Logs are one GET whose body goes on for as long as the container runs.
	logs, err := client.CoreV1().Pods(*namespace).GetLogs(name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("reading the logs: %w", err)
	}
	defer logs.Close()
	lines := bufio.NewScanner(logs)
	lines.Buffer(nil, 1<<20) // lines of logs may be longer than the 64 KiB that it takes by itself
	if err := printLine(lines); err != nil {
		return err
	}

	// Exec and port-forward are paths below the pod. They turn the request's
	// connection into several streams in both directions.
	path := func(subresource string) *rest.Request {
		return client.CoreV1().RESTClient().Post().Namespace(*namespace).Resource("pods").Name(name).SubResource(subresource)
	}
	for _, command := range [][]string{{"/pause", "echo", "hello"}, {"/pause", "dance"}} {
		request := path("exec").VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
		if err := execute(ctx, config, request.URL(), command); err != nil {
			return fmt.Errorf("executing %v: %w", command, err)
		}
	}
	if err := forward(ctx, config, path("portforward").URL()); err != nil {
		return fmt.Errorf("forwarding a port: %w", err)
	}
	if err := printLine(lines); err != nil { // what the container has logged about it
		return err
	}
	if err := client.CoreV1().Pods(*namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the pod: %w", err)
	}
	return nil
}

// startPod returns when the pod's container runs.
func startPod(ctx context.Context, client kubernetes.Interface, namespace string) error {
	pods := client.CoreV1().Pods(namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/pause", "serve", ":8080"},
			}},
		},
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the pod of an earlier run: %w", err)
	}
	// The one of an earlier run keeps its name until its container has ended.
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("creating the pod: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	if err != nil {
		return fmt.Errorf("waiting until the pod runs: %w", err)
	}
	return nil
}

func printLine(lines *bufio.Scanner) error {
	if !lines.Scan() {
		return fmt.Errorf("the logs have ended: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	fmt.Println("log:", lines.Text())
	return nil
}

// noWebSocket tells whether something on the way to the server knows no
// WebSocket. Then SPDY is tried, which came before it, as kubectl does.
func noWebSocket(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

func execute(ctx context.Context, config *rest.Config, url *url.URL, command []string) error {
	first, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	if err != nil {
		return err
	}
	second, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(first, second, noWebSocket)
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	// A command that fails is an error with its exit code; others are about the connection.
	var failed exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	code := 0
	if failed != nil {
		code = failed.ExitStatus()
	}
	fmt.Printf("exec %s: exit code %d, stdout %q, stderr %q\n", strings.Join(command, " "), code, stdout.String(), stderr.String())
	return nil
}

// forward opens a port of this machine, makes one request through it to the
// port 8080 of the pod, and closes it.
func forward(ctx context.Context, config *rest.Config, url *url.URL) error {
	first, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return err
	}
	second := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	dialer := portforward.NewFallbackDialerForStreaming(first, second, noWebSocket)

	stop, ready := make(chan struct{}), make(chan struct{})
	// Port 0: any that is free. It listens on localhost only.
	forwarder, err := portforward.NewForStreaming(dialer, []string{"0:8080"}, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return err
	case <-ctx.Done(): // the dial itself takes no context
		close(stop)
		return context.Cause(ctx)
	}
	err = get(ctx, forwarder)
	close(stop)
	return errors.Join(err, <-ended)
}

func get(ctx context.Context, forwarder *portforward.PortForwarder) error {
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://localhost:%d/menu", ports[0].Local), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	fmt.Printf("port-forward: GET /menu: %s, %s", response.Status, body)
	return nil
}
