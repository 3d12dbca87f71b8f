package lesson

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/workspace"
)

// stepLabel is what a lesson's cluster-scoped objects carry, with the number of
// the step: "04". Without it they are left alone, whoever made them.
const stepLabel = "workshop.k8s-go.dev/step"

// clusterScoped are the kinds of which lessons make objects, in the order in
// which they are removed: what refuses requests goes first.
var clusterScoped = []schema.GroupVersionResource{
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
}

// removeClusterScoped deletes the cluster-scoped objects that a run of the step
// has left behind, and waits until they are gone.
func removeClusterScoped(ctx context.Context, c *cluster.Cluster, s workspace.Step) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	selector := metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%02d", stepLabel, s.Number)}
	for _, gvr := range clusterScoped {
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			list, err := client.Resource(gvr).List(ctx, selector)
			if apierrors.IsNotFound(err) { // an older cluster does not have the kind
				return true, nil
			}
			if err != nil || len(list.Items) == 0 {
				return err == nil, err
			}
			for _, o := range list.Items {
				if o.GetDeletionTimestamp() != nil {
					continue
				}
				if err := client.Resource(gvr).Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return false, err
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("removing %s of step %d: %w", gvr.Resource, s.Number, err)
		}
	}
	return nil
}
