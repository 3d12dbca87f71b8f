package lesson

import (
	"context"
	"fmt"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/conflict"
)

// Other reports whether the cluster has another definition of the same name than
// the one in a file. It reports false if the cluster has none of that name.
func Other(ctx context.Context, config *rest.Config, path string) (bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	ours := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, ours); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return false, err
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	other := false
	// Conflicts happen while the API server's own controllers write the status of a new definition.
	err = conflict.Retry(retry.DefaultBackoff, func() error {
		theirs, err := definitions.Get(ctx, ours.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if theirs.DeletionTimestamp != nil {
			other = true
			return nil
		}
		// The API server fills in defaults before it compares. A new generation would
		// mean that our spec differs.
		changed := theirs.DeepCopy()
		changed.Spec = ours.Spec
		changed, err = definitions.Update(ctx, changed, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) { // such as another scope, which cannot change
			other = true
			return nil
		}
		if err == nil {
			other = changed.Generation != theirs.Generation
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("comparing the definition %s with ours: %w", ours.Name, err)
	}
	return other, nil
}
