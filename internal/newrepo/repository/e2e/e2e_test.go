package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"example.org/widgets/api/v1alpha1"
	"example.org/widgets/internal/controller"
)

// assess makes a step of a feature of what can fail.
func assess(f func(ctx context.Context, t *testing.T, n namespace) error) features.Func {
	return func(ctx context.Context, t *testing.T, cfg *envconf.Config) context.Context {
		t.Helper()
		if err := f(ctx, t, namespace{cfg.Client().Resources(cfg.Namespace()), cfg.Namespace()}); err != nil {
			t.Fatal(err)
		}
		return ctx
	}
}

// A namespace is where the objects of these tests are.
type namespace struct {
	*resources.Resources
	name string
}

func (n namespace) get(ctx context.Context, name string, o k8s.Object) error {
	return n.Get(ctx, name, n.name, o)
}

func (n namespace) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: n.name, Name: name}
}

func (n namespace) newWidget(name, text string) *v1alpha1.Widget {
	return &v1alpha1.Widget{ObjectMeta: n.meta(name), Spec: v1alpha1.WidgetSpec{Text: text}}
}

// holds waits until the ConfigMap holds a text, and the status says so.
func (n namespace) holds(ctx context.Context, name, text string) error {
	return eventually(ctx, fmt.Sprintf("ConfigMap %s holds %q", name, text), func(ctx context.Context) error {
		var configMap corev1.ConfigMap
		if err := n.get(ctx, name, &configMap); err != nil {
			return err
		}
		if configMap.Data[controller.TextKey] != text {
			return fmt.Errorf("it holds %q", configMap.Data)
		}
		return n.ready(ctx, name, metav1.ConditionTrue, v1alpha1.ReasonWritten, "")
	})
}

// ready returns nil if the status is about the newest spec and has this condition.
func (n namespace) ready(ctx context.Context, name string, status metav1.ConditionStatus, reason, message string) error {
	var o v1alpha1.Widget
	if err := n.get(ctx, name, &o); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if o.Status.ObservedGeneration != o.Generation || ready == nil || ready.Status != status || ready.Reason != reason || !strings.Contains(ready.Message, message) {
		return fmt.Errorf("generation %d has the status %+v", o.Generation, o.Status)
	}
	return nil
}

func TestText(t *testing.T) {
	cluster.Test(t, features.New("a Widget").
		Assess("with an empty text is refused", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			if err := n.Create(ctx, n.newWidget("empty", "")); !apierrors.IsInvalid(err) {
				return fmt.Errorf("an empty text: %v", err)
			}
			return nil
		})).
		Assess("gets a ConfigMap with its text", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			if err := n.Create(ctx, n.newWidget("a", "hello")); err != nil {
				return err
			}
			return n.holds(ctx, "a", "hello")
		})).
		Assess("changes its text", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			var o v1alpha1.Widget
			if err := n.get(ctx, "a", &o); err != nil {
				return err
			}
			o.Spec.Text = "goodbye"
			if err := n.Update(ctx, &o); err != nil {
				return err
			}
			return n.holds(ctx, "a", "goodbye")
		})).
		Assess("gets a ConfigMap that was deleted again", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			if err := n.Delete(ctx, &corev1.ConfigMap{ObjectMeta: n.meta("a")}); err != nil {
				return err
			}
			return n.holds(ctx, "a", "goodbye")
		})).
		Assess("goes with its ConfigMap", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			if err := n.Delete(ctx, n.newWidget("a", "")); err != nil {
				return err
			}
			return eventually(ctx, "the ConfigMap is deleted with its owner", func(ctx context.Context) error {
				return gone(n.get(ctx, "a", &corev1.ConfigMap{}))
			})
		})).
		Feature())
}

func TestNameIsTaken(t *testing.T) {
	cluster.Test(t, features.New("a ConfigMap of somebody else").
		Setup(assess(func(ctx context.Context, t *testing.T, n namespace) error {
			return errors.Join(
				n.Create(ctx, &corev1.ConfigMap{ObjectMeta: n.meta("b"), Data: map[string]string{controller.TextKey: "mine"}}),
				n.Create(ctx, n.newWidget("b", "yours")))
		})).
		Assess("is reported", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			return eventually(ctx, "the status says that the name is taken", func(ctx context.Context) error {
				return n.ready(ctx, "b", metav1.ConditionFalse, v1alpha1.ReasonNotOwned, "")
			})
		})).
		Assess("stays as it is", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			var now corev1.ConfigMap
			if err := n.get(ctx, "b", &now); err != nil || now.Data[controller.TextKey] != "mine" {
				return fmt.Errorf("it is %+v, %v", now, err)
			}
			return nil
		})).
		Feature())
}

func TestQuota(t *testing.T) {
	cluster.Test(t, features.New("a quota without room for a ConfigMap").
		Setup(assess(func(ctx context.Context, t *testing.T, n namespace) error {
			quota := &corev1.ResourceQuota{ObjectMeta: n.meta("small"),
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}}
			if err := n.Create(ctx, quota); err != nil {
				return err
			}
			if err := eventually(ctx, "the quota works", func(ctx context.Context) error {
				if err := n.get(ctx, "small", quota); err != nil || len(quota.Status.Hard) == 0 {
					return fmt.Errorf("status %+v, %v", quota.Status, err)
				}
				return nil
			}); err != nil {
				return err
			}
			return n.Create(ctx, n.newWidget("c", "no room"))
		})).
		Assess("is in the status", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			return eventually(ctx, "the status says what the server refuses", func(ctx context.Context) error {
				return n.ready(ctx, "c", metav1.ConditionFalse, v1alpha1.ReasonRefused, "exceeded quota: small")
			})
		})).
		Assess("delays the ConfigMap until it is gone", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			if err := n.Delete(ctx, &corev1.ResourceQuota{ObjectMeta: n.meta("small")}); err != nil {
				return err
			}
			return n.holds(ctx, "c", "no room")
		})).
		Feature())
}

// The metrics are for those whom the API server allows to get them.
func TestMetrics(t *testing.T) {
	if deployed {
		t.Skip("the address of the metrics is that of a process of this machine")
	}
	address := regexp.MustCompile(`"Listening" for="metrics" address="([^"]+)"`)
	// ask returns the code of the answer to somebody with this token, if any.
	ask := func(ctx context.Context, token string) (int, error) {
		at := address.FindStringSubmatch(controllerLog())
		if at == nil {
			return 0, errors.New("the controller has not said where its metrics are")
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at[1]+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the certificate is its own
		answer, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	cluster.Test(t, features.New("the metrics").
		Assess("ask for a token", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			return eventually(ctx, "nobody gets the metrics", func(ctx context.Context) error {
				if code, err := ask(ctx, ""); err != nil || code != http.StatusUnauthorized {
					return fmt.Errorf("code %d, %v", code, err)
				}
				return nil
			})
		})).
		Assess("ask for the right to get them", assess(func(ctx context.Context, t *testing.T, n namespace) error {
			core, err := kubernetes.NewForConfig(n.GetConfig())
			if err != nil {
				return err
			}
			if err := n.Create(ctx, &corev1.ServiceAccount{ObjectMeta: n.meta("scraper")}); err != nil {
				return err
			}
			token, err := core.CoreV1().ServiceAccounts(n.name).CreateToken(ctx, "scraper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if code, err := ask(ctx, token.Status.Token); err != nil || code != http.StatusForbidden {
				return fmt.Errorf("code %d, %v", code, err)
			}
			return nil
		})).
		Feature())
}
