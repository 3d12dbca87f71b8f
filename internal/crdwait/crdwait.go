// Package crdwait waits until custom resources can be used.
//
// Creating a CustomResourceDefinition starts three things: the server accepts
// the names and sets the condition Established, discovery lists the resource,
// and the handler behind its path begins to answer. A client that goes on after
// the first of them still meets 404, 429 "storage is (re)initializing" or "no
// matches for kind"; one that sleeps meets them on a slow day.
package crdwait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/poll"
)

// timeout is how long each definition is waited for if the context has no deadline.
const timeout = 30 * time.Second

// interval is short: a definition is usable after a fraction of a second.
const interval = 50 * time.Millisecond

// Established waits until every served version of the named definitions can be
// used: the condition Established is true, discovery lists the resource in both
// its forms, and a list of it is answered. A definition may be created after
// the call; it waits for that too. Without a deadline in ctx it waits 30
// seconds for each. The error says which definition was missing what.
func Established(ctx context.Context, config *rest.Config, crdNames ...string) error {
	config = unlimited(config)
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	return until(ctx, crdNames, func(ctx context.Context, name string) error {
		crd, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := established(crd); err != nil {
			return err
		}
		for _, version := range crd.Spec.Versions {
			if !version.Served {
				continue
			}
			gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}
			if err := discovered(ctx, definitions.Discovery(), gvr); err != nil {
				return err
			}
			// Without a limit: a list with one is answered although the storage is still initializing.
			if _, err := objects.Resource(gvr).List(ctx, metav1.ListOptions{}); err != nil {
				return fmt.Errorf("listing %s: %w", gvr.GroupVersion().WithResource(gvr.Resource), err)
			}
		}
		return nil
	})
}

// Gone waits until the named definitions no longer exist and discovery no
// longer lists their resources. Until then a definition of the same name cannot
// be created. Without a deadline in ctx it waits 30 seconds for each.
func Gone(ctx context.Context, config *rest.Config, crdNames ...string) error {
	definitions, err := clientset.NewForConfig(unlimited(config))
	if err != nil {
		return err
	}
	return until(ctx, crdNames, func(ctx context.Context, name string) error {
		_, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return errors.New("it still exists")
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		resource := schema.ParseGroupResource(name)
		_, all, err := definitions.Discovery().ServerGroupsAndResources()
		if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
			return err
		}
		for _, list := range all {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			if err == nil && gv.Group == resource.Group && lists(list, resource.Resource) {
				return fmt.Errorf("discovery still lists %s", gv.WithResource(resource.Resource))
			}
		}
		return nil
	})
}

// unlimited lifts client-go's own limit of 5 requests a second, at which a poll
// waits for itself and not for the server.
func unlimited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS = -1
	return config
}

// until calls ready for one name after the other until it returns nil.
func until(ctx context.Context, names []string, ready func(ctx context.Context, name string) error) error {
	limit := timeout
	if _, limited := ctx.Deadline(); limited {
		limit = 0
	}
	for _, name := range names {
		if err := poll.Until(ctx, interval, limit, func(ctx context.Context) error { return ready(ctx, name) }); err != nil {
			return fmt.Errorf("waiting for CustomResourceDefinition %s: %w", name, err)
		}
	}
	return nil
}

func established(crd *apiextensionsv1.CustomResourceDefinition) error {
	missing := errors.New("it is not established yet")
	for _, c := range crd.Status.Conditions {
		switch {
		case c.Type == apiextensionsv1.Terminating && c.Status == apiextensionsv1.ConditionTrue:
			return errors.New("it is being deleted")
		case c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue:
			missing = nil
		case c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse:
			return fmt.Errorf("its names are not accepted: %s: %s", c.Reason, c.Message)
		}
	}
	return missing
}

// discovered asks twice: the document of the version is what a client with the
// path at hand reads, the aggregated one is what kubectl and RESTMappers read,
// and they are not updated at the same moment.
func discovered(ctx context.Context, client discovery.DiscoveryInterface, gvr schema.GroupVersionResource) error {
	list, err := client.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil {
		return fmt.Errorf("discovery of %s: %w", gvr.GroupVersion(), err)
	}
	if !lists(list, gvr.Resource) {
		return fmt.Errorf("discovery of %s does not list %s yet", gvr.GroupVersion(), gvr.Resource)
	}
	_, all, err := client.ServerGroupsAndResources()
	// Another group's API server may be down; that is not our question.
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return fmt.Errorf("discovery: %w", err)
	}
	if !slices.ContainsFunc(all, func(list *metav1.APIResourceList) bool {
		return list.GroupVersion == gvr.GroupVersion().String() && lists(list, gvr.Resource)
	}) {
		return fmt.Errorf("aggregated discovery does not list %s yet", gvr.GroupVersion().WithResource(gvr.Resource))
	}
	return ctx.Err()
}

func lists(list *metav1.APIResourceList, resource string) bool {
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource })
}
