package controller

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// client-go repeats a 429 inside the call, with the caller asleep, unless the
// request says MaxRetries(0).
func TestClientGoRepeatsA429(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	proxy := e.Proxy()
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	fatal.If(t, err)
	client, err := kubernetes.NewForConfig(config)
	fatal.If(t, err)
	gets := faultproxy.Match{Verb: "get", Resource: "serviceaccounts", Name: "default"}
	answer := faultproxy.Rule{Match: gets, Fault: faultproxy.Answer, Code: 429, RetryAfter: time.Second}
	proxy.MustInject(answer)
	began := time.Now()
	if _, err := client.CoreV1().ServiceAccounts(e.Namespace).Get(e.Context(), "default", metav1.GetOptions{}); apierrors.IsTooManyRequests(err) {
		t.Errorf("the typed client has returned the 429: %v", err)
	}
	if slept := time.Since(began); slept < time.Second || proxy.Count(gets) != 2 {
		t.Errorf("the call took %s and %d requests, want at least a second and 2", slept, proxy.Count(gets))
	}

	proxy.MustInject(answer)
	err = client.CoreV1().RESTClient().Get().Namespace(e.Namespace).Resource("serviceaccounts").Name("default").MaxRetries(0).Do(e.Context()).Error()
	if !apierrors.IsTooManyRequests(err) || proxy.Count(gets) != 3 {
		t.Errorf("MaxRetries(0): %v after %d requests in all, want 429 after 3", err, proxy.Count(gets))
	}
}
