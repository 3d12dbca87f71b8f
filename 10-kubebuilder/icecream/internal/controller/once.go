package controller

import (
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Once makes the clients of a config send each write once. client-go sends one that was answered
// with Retry-After up to ten more times, with the worker asleep in between. An error instead says
// how long to wait, and the next try looks anew. Reads stay as they are.
func Once(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
}

type once struct{ next http.RoundTripper }

func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := o.next.RoundTrip(r)
	if err != nil || r.Method == http.MethodGet {
		return answer, err
	}
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil {
		return answer, nil // it has none
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return nil, err
	}
	return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(answer.StatusCode), Reason: metav1.StatusReasonTooManyRequests,
		Message: string(said), Details: &metav1.StatusDetails{RetryAfterSeconds: int32(seconds)},
	}}
}
