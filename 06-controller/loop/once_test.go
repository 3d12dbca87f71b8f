package loop

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// answers handles requests without a network.
type answers func(*http.Request) (*http.Response, error)

func (s answers) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

// workersClient is a typed client as workers use it.
func workersClient(t *testing.T, s answers) typedcorev1.ConfigMapInterface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server.test", QPS: -1, Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return typedcorev1.New(Once(client.CoreV1().RESTClient())).ConfigMaps("n")
}

// The requests that a worker makes through a typed client.
var requests = map[string]func(context.Context, typedcorev1.ConfigMapInterface) error{
	"create": func(ctx context.Context, c typedcorev1.ConfigMapInterface) error {
		_, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		return err
	},
	"update": func(ctx context.Context, c typedcorev1.ConfigMapInterface) error {
		_, err := c.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.UpdateOptions{})
		return err
	},
	"patch": func(ctx context.Context, c typedcorev1.ConfigMapInterface) error {
		_, err := c.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		return err
	},
	"get": func(ctx context.Context, c typedcorev1.ConfigMapInterface) error {
		_, err := c.Get(ctx, "a", metav1.GetOptions{})
		return err
	},
	"delete": func(ctx context.Context, c typedcorev1.ConfigMapInterface) error {
		return c.Delete(ctx, "a", metav1.DeleteOptions{})
	},
}

func TestARetryAfterFreesTheWorker(t *testing.T) {
	for verb, request := range requests {
		for name, body := range map[string]string{
			"text, as of priority and fairness": "Too many requests, please try again later.",
			"a Status":                          `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`,
		} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sent, begun := 0, time.Now()
					err := request(t.Context(), workersClient(t, func(r *http.Request) (*http.Response, error) {
						sent++
						kind := "text/plain"
						if strings.HasPrefix(body, "{") {
							kind = "application/json"
						}
						return &http.Response{StatusCode: http.StatusTooManyRequests, Request: r, Body: io.NopCloser(strings.NewReader(body)),
							Header: http.Header{"Retry-After": {"7"}, "Content-Type": {kind}}}, nil
					}))
					if sent != 1 || time.Since(begun) > 0 || RetryAfter(err) != 7*time.Second {
						t.Errorf("sent %d times in %s; to wait: %s (%v)", sent, time.Since(begun), RetryAfter(err), err)
					}
				})
			})
		}
	}
}

func TestARequestHasADeadline(t *testing.T) {
	for verb, request := range requests {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := request(t.Context(), workersClient(t, func(r *http.Request) (*http.Response, error) {
					select {
					case <-r.Context().Done():
						return nil, r.Context().Err()
					case <-time.After(time.Hour):
						return nil, errors.New("nobody has cut it off")
					}
				}))
				if took := time.Since(begun); took != Deadline || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it took %s (%v)", took, err)
				}
			})
		})
	}
}
