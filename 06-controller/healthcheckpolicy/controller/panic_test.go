package controller

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/internal/fatal"
)

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("poison") }

// The marks of one policy are written by goroutines that the loop does not see.
func TestAPanicWhileMarkingIsAnError(t *testing.T) {
	clients, err := Connect(&rest.Config{Host: "http://127.0.0.1:1", Transport: panicking{}})
	fatal.If(t, err)
	clients.Recorder = &events.FakeRecorder{}
	c, err := New(clients, "n", 0, clock.RealClock{}, loop.Options{})
	fatal.If(t, err)
	policy := policyWith(metav1.LabelSelector{})
	policy.Spec.Action, policy.Spec.PodLabel = v1alpha1.ActionLabel, "lacks"
	p := aPass(policy, noon)
	c.mark(t.Context(), p, []change{{pod: reduce(aPod("web")), wish: wish{key: "lacks", value: "true"}}})
	if err := errors.Join(p.errs...); err == nil || !strings.Contains(err.Error(), "panic: poison") {
		t.Errorf("the error is %v", err)
	}
}
