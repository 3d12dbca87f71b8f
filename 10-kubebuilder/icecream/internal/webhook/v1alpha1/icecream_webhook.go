package v1alpha1

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// SetupIcecreamWebhookWithManager registers the webhook for Icecream in the manager.
func SetupIcecreamWebhookWithManager(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &controllerv1alpha1.Icecream{}).
		WithValidator(&IcecreamCustomValidator{Reader: mgr.GetAPIReader()}).
		WithDefaulter(&IcecreamCustomDefaulter{}).
		Complete()
}

// +kubebuilder:webhook:path=/mutate-controller-nicoleh-io-v1alpha1-icecream,mutating=true,failurePolicy=fail,sideEffects=None,groups=controller.nicoleh.io,resources=icecreams,verbs=create;update,versions=v1alpha1,name=micecream-v1alpha1.kb.io,admissionReviewVersions=v1

// IcecreamCustomDefaulter gives the Deployment the name of the Icecream. A default in the CRD
// is a constant, and could not do that.
type IcecreamCustomDefaulter struct{}

// Default changes the Icecream before the schema is looked at, so a required field may be missing here.
// One with generateName has no name yet, and has to name its Deployment itself.
func (d *IcecreamCustomDefaulter) Default(_ context.Context, icecream *controllerv1alpha1.Icecream) error {
	if icecream.Spec.DeploymentName == "" {
		icecream.Spec.DeploymentName = icecream.Name
	}
	return nil
}

// +kubebuilder:webhook:path=/validate-controller-nicoleh-io-v1alpha1-icecream,mutating=false,failurePolicy=fail,sideEffects=None,groups=controller.nicoleh.io,resources=icecreams,verbs=create;update,versions=v1alpha1,name=vicecream-v1alpha1.kb.io,admissionReviewVersions=v1

// IcecreamCustomValidator refuses an Icecream that wants the Deployment of another one. CEL sees
// one object only, and could not do that.
//
// Two Icecreams that are created at the same moment both pass: then the controller refuses the second.
type IcecreamCustomValidator struct {
	client.Reader // from the API server, because a cache would not have the Icecream of a moment ago
}

// ValidateCreate implements admission.Validator.
func (v *IcecreamCustomValidator) ValidateCreate(ctx context.Context, icecream *controllerv1alpha1.Icecream) (admission.Warnings, error) {
	var all controllerv1alpha1.IcecreamList
	if err := v.List(ctx, &all, client.InNamespace(icecream.Namespace)); err != nil {
		return nil, err
	}
	for _, other := range all.Items {
		if other.Name != icecream.Name && other.Spec.DeploymentName == icecream.Spec.DeploymentName {
			wrong := field.Invalid(field.NewPath("spec", "deploymentName"), icecream.Spec.DeploymentName, fmt.Sprintf("is the Deployment of the Icecream %s", other.Name))
			return nil, apierrors.NewInvalid(controllerv1alpha1.GroupVersion.WithKind("Icecream").GroupKind(), icecream.Name, field.ErrorList{wrong})
		}
	}
	return nil, nil
}

// ValidateUpdate refuses no change of anything else: an Icecream that was there before the webhook stays usable.
func (v *IcecreamCustomValidator) ValidateUpdate(ctx context.Context, old, icecream *controllerv1alpha1.Icecream) (admission.Warnings, error) {
	if old.Spec.DeploymentName == icecream.Spec.DeploymentName {
		return nil, nil
	}
	return v.ValidateCreate(ctx, icecream)
}

// ValidateDelete is never called: the marker above does not name the verb.
func (v *IcecreamCustomValidator) ValidateDelete(context.Context, *controllerv1alpha1.Icecream) (admission.Warnings, error) {
	return nil, nil
}
