package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/k8s-go/workshop/06-controller/loop"
)

func TestAnswers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	with := func(code int32, cause metav1.StatusCause) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{cause}}}}
	}
	there := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1", ResourceVersion: "5"}}
	get := func(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) { return there, nil }
	code := func(code int32) error { return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}} }
	for _, c := range []struct {
		name string
		err  error
		want answer
	}{
		{"done", nil, accepted},
		{"another manager has the key", with(http.StatusConflict, metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict}), keyConflict},
		{"uid mismatch", apierrors.NewConflict(pods, "p", errors.New("uid mismatch")), podGone},
		{"not found", apierrors.NewNotFound(pods, "p"), podGone},
		{"not found, though it is there", loop.Confirm(t.Context(), apierrors.NewNotFound(pods, "p"), there, get), refused},
		{"replaced", with(http.StatusUnprocessableEntity, metav1.StatusCause{Field: "metadata.uid"}), podGone},
		{"another field is invalid", with(http.StatusUnprocessableEntity, metav1.StatusCause{Field: "metadata.labels"}), refused},
		{"bad request", code(http.StatusBadRequest), refused},
		{"too large", code(http.StatusRequestEntityTooLarge), refused},
		{"forbidden", apierrors.NewForbidden(pods, "p", nil), forbidden},
		{"a budget", with(http.StatusTooManyRequests, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause}), budgetAnswer},
		{"a list that took too long", apierrors.NewResourceExpired("continue"), tryAgain},
		{"busy", apierrors.NewTooManyRequests("", 3), tryAgain},
		{"internal", code(http.StatusInternalServerError), tryAgain},
		{"gateway timeout", code(http.StatusGatewayTimeout), tryAgain},
		{"no answer", errors.New("connection reset"), tryAgain},
	} {
		if got := answerOf(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if c.err != nil && answerOf(fmt.Errorf("doing this: %w", c.err)) != c.want {
			t.Errorf("%s: not recognized when it is wrapped", c.name)
		}
	}
}
