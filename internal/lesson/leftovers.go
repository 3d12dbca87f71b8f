package lesson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/workspace"
)

// StepLabel is what the cluster-scoped objects of a lesson carry, with the
// number of the step that they come from: "04". The definitions of lessons
// that several people can do on one cluster carry their namespace: "anna-workshop-02".
// No lesson changes or deletes a cluster-scoped object without it, whoever made that.
const StepLabel = "workshop.k8s-go.dev/step"

var owns = regexp.MustCompile(`(?m)^<!-- cluster-scoped objects: (\d\d(?:, \d\d)*) -->$`)

// Owns returns the values of StepLabel that a lesson declares as its own, in a
// line of its README:
//
//	<!-- cluster-scoped objects: 04, 05 -->
//
// Objects with these values are removed before the lesson runs, and after it
// has failed. A lesson names an earlier step if it uses that step's objects, or
// makes objects of the same names.
func Owns(s workspace.Step) ([]string, error) {
	data, err := os.ReadFile(s.README())
	if err != nil {
		return nil, err
	}
	if m := owns.FindSubmatch(data); m != nil {
		return strings.Split(string(m[1]), ", "), nil
	}
	return nil, nil
}

// removeClusterScoped deletes the cluster-scoped objects that carry one of the
// values of StepLabel, of whatever kind, and the definitions that carry the lesson's
// namespace. It waits until they are gone. The objects of a definition go with it.
func removeClusterScoped(ctx context.Context, config *rest.Config, values []string, namespace string) error {
	selector := fmt.Sprintf("%s in (%s)", StepLabel, strings.Join(append(values, namespace), ","))
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	kinds := []schema.GroupVersionResource{apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")}
	if len(values) > 0 {
		if kinds, err = clusterScopedKinds(config); err != nil {
			return err
		}
	}
	for _, kind := range kinds {
		objects := client.Resource(kind)
		err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
			list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: selector})
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				return nil // nothing of ours can be there
			}
			if err != nil {
				return err
			}
			var left []error
			for _, o := range list.Items {
				left = append(left, fmt.Errorf("%s is still there", o.Name))
				if o.DeletionTimestamp != nil {
					if kind.Resource == "customresourcedefinitions" {
						left = append(left, Release(ctx, config, o.Name))
					}
					continue
				}
				// Only as it was listed: with its label, and not another one of its name.
				err := objects.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}})
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					return poll.Stop(err)
				}
			}
			return errors.Join(left...)
		})
		if err != nil {
			return fmt.Errorf("removing the %s labelled %s: %w", kind.GroupResource(), selector, err)
		}
	}
	return nil
}

// Release removes the finalizers of all objects of a definition that is being
// deleted, named as in "widgets.example.org". The controller that would have done
// so has ended. A definition that is gone already is no error.
func Release(ctx context.Context, config *rest.Config, definition string) error {
	if err := unblock(ctx, config, definition); err != nil {
		return err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	plural, group, _ := strings.Cut(definition, ".")
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	lists, err := discover.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return fmt.Errorf("asking for the version of %s: %w", definition, err)
	}
	var errs []error
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != group || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }) {
			continue
		}
		objects := client.Resource(gv.WithResource(plural))
		found, err := objects.List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing the objects of %s: %w", definition, err)
		}
		for _, o := range found.Items {
			if len(o.Finalizers) == 0 {
				continue
			}
			_, err := objects.Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("removing the finalizers of %s: %w", o.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// unblock mends what keeps the API server from deleting the objects of a definition.
func unblock(ctx context.Context, config *rest.Config, definition string) error {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	found, err := definitions.Get(ctx, definition, metav1.GetOptions{})
	if err == nil {
		for _, patch := range []string{stopConverting(found), cleanAgain(found)} {
			if patch != "" && err == nil {
				_, err = definitions.Patch(ctx, definition, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			}
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// stopConverting takes a definition's conversion webhook away, whose server has ended, too:
// the objects that it would be asked about could not even be deleted.
func stopConverting(crd *apiextensionsv1.CustomResourceDefinition) (patch string) {
	if crd.Spec.Conversion == nil || crd.Spec.Conversion.Strategy != apiextensionsv1.WebhookConverter {
		return ""
	}
	return `{"spec": {"conversion": {"strategy": "None", "webhook": null}}}`
}

// cleanAgain changes a definition whose objects the API server could not list. It tries again
// at once, usually. But if its cache is behind its own write of that condition, it meets a
// conflict and relies on the event, which it then ignores, because only that condition differs
// (crd_finalizer.go, updateCustomResourceDefinition); the next look is up to five minutes away.
// A definition that nobody has used is concerned most: its storage begins with that list.
func cleanAgain(crd *apiextensionsv1.CustomResourceDefinition) (patch string) {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Terminating && c.Reason == "InstanceDeletionFailed" {
			return fmt.Sprintf(`{"metadata": {"annotations": {"workshop.k8s-go.dev/clean-again": %q}}}`, crd.ResourceVersion)
		}
	}
	return ""
}

// clusterScopedKinds asks the server which kinds are cluster-scoped and can be
// listed and deleted, in the order in which they are to be deleted.
func clusterScopedKinds(config *rest.Config) ([]schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	// An aggregated API server that is down answers for none of ours.
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, fmt.Errorf("asking which kinds there are: %w", err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists)
	var kinds []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !r.Namespaced {
				kinds = append(kinds, gv.WithResource(r.Name))
			}
		}
	}
	// What refuses requests goes first, bindings before their policies; what
	// deletes other objects goes last.
	order := func(kind schema.GroupVersionResource) int {
		switch {
		case kind.Group == "admissionregistration.k8s.io" && strings.HasSuffix(kind.Resource, "bindings"):
			return 0
		case kind.Group == "admissionregistration.k8s.io":
			return 1
		case kind.Resource == "customresourcedefinitions", kind.Resource == "namespaces":
			return 3
		default:
			return 2
		}
	}
	slices.SortStableFunc(kinds, func(a, b schema.GroupVersionResource) int { return cmp.Compare(order(a), order(b)) })
	return kinds, nil
}
