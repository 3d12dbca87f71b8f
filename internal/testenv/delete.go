package testenv

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pageSize is how many objects one request of DeleteAll deletes. The API server deletes
// one after the other, and ends a request after a minute.
const pageSize = 1000

// DeleteAll deletes all objects of a resource in the test's namespace, however many
// there are. It does not wait for those that something holds back, such as a finalizer.
func (e *Env) DeleteAll(ctx context.Context, resource schema.GroupVersionResource, options metav1.DeleteOptions) error {
	objects := e.Dynamic.Resource(resource).Namespace(e.Namespace)
	page := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := objects.List(ctx, page)
		if err != nil {
			return fmt.Errorf("listing %s to delete: %w", resource.Resource, err)
		}
		if err := objects.DeleteCollection(ctx, options, page); err != nil {
			return fmt.Errorf("deleting %s: %w", resource.Resource, err)
		}
		if page.Continue = list.GetContinue(); page.Continue == "" {
			return nil
		}
	}
}
