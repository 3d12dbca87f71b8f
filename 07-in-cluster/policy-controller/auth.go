package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// A guard lets a request through if the API server knows its token and allows that
// user to get the path. So the rights to the metrics are RBAC like all others, and
// this program keeps no list of users. k8s.io/apiserver has the same with much more
// around it.
type guard struct {
	client kubernetes.Interface
	// known holds for a moment who has passed, by a hash of token and path, so that
	// a scrape does not cost two requests. Refusals are not kept, because guessed
	// tokens could fill the memory.
	known *cache.Expiring
}

const remember = 10 * time.Second

func newGuard(config *rest.Config) (*guard, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 10, 20 // wrong tokens cause no more requests than these
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the reviews of tokens: %w", err)
	}
	return &guard{client: client, known: cache.NewExpiring()}, nil
}

func (g *guard) protect(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		code, err := g.check(r.Context(), token, r.URL.Path)
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "Checking who asks for the metrics")
		}
		if code != http.StatusOK {
			http.Error(w, http.StatusText(code), code)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// check returns 401 if the token is nobody's, and 403 if its user may not get the path.
func (g *guard) check(ctx context.Context, token, path string) (code int, err error) {
	key := sha256.Sum256([]byte(path + "\n" + token))
	if _, ok := g.known.Get(key); ok {
		return http.StatusOK, nil
	}
	review, err := g.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("asking whose token it is: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("asking what %s may do: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	g.known.Set(key, struct{}{}, remember)
	return http.StatusOK, nil
}
