package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

// Connect makes the clients. Their Recorder is the program's to set.
func Connect(config *rest.Config) (Clients, error) {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Clients{}, fmt.Errorf("making a client: %w", err)
	}
	policies, err := versioned.NewForConfig(config)
	if err != nil {
		return Clients{}, fmt.Errorf("making a client for policies: %w", err)
	}
	return Clients{Core: core, Policies: policies}, nil
}

// EventSink writes Events. In a namespace that is being deleted the API server
// refuses new ones, which is no error.
type EventSink struct{ events.EventSink }

func (s EventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	created, err := s.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return event, nil
	}
	return created, err
}
