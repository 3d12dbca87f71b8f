// quota is a validating webhook: the Icecreams in all namespaces of one team, those with the same
// value of the label team, have at most -limit replicas together.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

// team is the label of a namespace that says whose it is.
const team = "team"

// A quota answers whether a team may have so many replicas.
type quota struct {
	core  kubernetes.Interface
	own   versioned.Interface
	limit int64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quota:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	listen := flag.String("listen", "127.0.0.1:8443", "the address for the API server's requests, with TLS")
	directory := flag.String("cert-dir", "", "the folder with tls.crt and tls.key")
	limit := flag.Int64("limit", 10, "how many replicas a team may have")
	flag.Parse()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the API server is waiting for us
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	own, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for Icecreams: %w", err)
	}

	mux := http.NewServeMux()
	mux.Handle("POST /validate", quota{core, own, *limit})
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.WithoutCancel(ctx)) })
	// The files are read once: where a certificate is replaced, use GetCertificate, as webhook does.
	if err := server.ListenAndServeTLS(filepath.Join(*directory, "tls.crt"), filepath.Join(*directory, "tls.key")); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answering the API server: %w", err)
	}
	return <-stopped
}

// ServeHTTP speaks the protocol of admission.k8s.io/v1.
func (q quota) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 7<<20))
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Request == nil {
		http.Error(w, "want an AdmissionReview with a request", http.StatusBadRequest)
		return
	}
	refusal, err := q.refusal(r.Context(), review.Request)
	if err != nil { // no answer: what happens then is in the failurePolicy
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: refusal == ""}
	if refusal != "" {
		review.Response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: refusal}
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server has gone if that fails
}

// refusal says why a request is refused, or "".
func (q quota) refusal(ctx context.Context, request *admissionv1.AdmissionRequest) (string, error) {
	wanted, err := replicas(request, request.Object.Raw)
	if err != nil {
		return "", err
	}
	if len(request.OldObject.Raw) > 0 {
		had, err := replicas(request, request.OldObject.Raw)
		if err != nil {
			return "", err
		}
		if wanted <= had { // what was accepted stays, even above the limit
			return "", nil
		}
	}
	namespace, err := q.core.CoreV1().Namespaces().Get(ctx, request.Namespace, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	name, ok := namespace.Labels[team]
	if !ok {
		return "", nil
	}
	used, err := q.used(ctx, name, request)
	if err != nil {
		return "", err
	}
	if used+wanted > q.limit {
		return fmt.Sprintf("the team %s has %d replicas without this one, and may have %d", name, used, q.limit), nil
	}
	return "", nil
}

// used counts the replicas of a team, without those of the object that the request is about.
func (q quota) used(ctx context.Context, name string, request *admissionv1.AdmissionRequest) (int64, error) {
	namespaces, err := q.core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: team + "=" + name})
	if err != nil {
		return 0, err
	}
	var used int64
	for _, namespace := range namespaces.Items {
		icecreams, err := q.own.IcecreamV1alpha1().Icecreams(namespace.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		for _, o := range icecreams.Items {
			if o.Namespace != request.Namespace || o.Name != request.Name {
				used += count(o.Spec.Replicas)
			}
		}
	}
	return used, nil
}

// replicas reads how many are asked for: by an Icecream, or by its scale, as kubectl scale writes it.
func replicas(request *admissionv1.AdmissionRequest, raw []byte) (int64, error) {
	if request.SubResource == "scale" {
		var scale autoscalingv1.Scale
		err := json.Unmarshal(raw, &scale)
		return int64(scale.Spec.Replicas), err
	}
	var icecream icecreamv1alpha1.Icecream
	err := json.Unmarshal(raw, &icecream)
	return count(icecream.Spec.Replicas), err
}

// count is 1 for nothing, the default of the schema.
func count(replicas *int32) int64 {
	if replicas == nil {
		return 1
	}
	return int64(*replicas)
}
