package controller

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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
