// Package webhook refuses what may be right and is usually a mistake. Its tests are an exercise.
package webhook

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// SetupWithManager serves the validator of Deployments.
func SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &appsv1.Deployment{}).WithValidator(Careful{}).Complete()
}

// Careful lets a Deployment at most double its replicas at once, and lets nobody delete one with
// the label keep=true.
type Careful struct{}

// ValidateCreate accepts everything.
func (Careful) ValidateCreate(context.Context, *appsv1.Deployment) (admission.Warnings, error) {
	return nil, nil
}

// ValidateUpdate compares the replicas. The API server has set them, to 1 where nobody has.
func (Careful) ValidateUpdate(_ context.Context, old, now *appsv1.Deployment) (admission.Warnings, error) {
	if most := 2 * max(1, *old.Spec.Replicas); *now.Spec.Replicas > most {
		return nil, fmt.Errorf("%d replicas are more than twice as many; take at most %d first", *now.Spec.Replicas, most)
	}
	return nil, nil
}

// ValidateDelete looks at the label.
func (Careful) ValidateDelete(_ context.Context, d *appsv1.Deployment) (admission.Warnings, error) {
	if d.Labels["keep"] == "true" {
		return nil, errors.New("it has the label keep=true: remove that first")
	}
	return nil, nil
}
