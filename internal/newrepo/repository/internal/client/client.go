// Package client holds a typed client and an informer. They stand on the generic
// client that client-gen uses, too. For many types, or for a fake in tests, let
// client-gen and informer-gen make both.
package client

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"example.org/widgets/api/v1alpha1"
)

// A Client makes requests to the group's part of the API.
type Client struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// New returns a client for the cluster of a configuration.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering the types: %w", err)
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned) // the server's error messages
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for %s: %w", v1alpha1.GroupVersion, err)
	}
	return &Client{client, runtime.NewParameterCodec(scheme)}, nil
}

// Through returns a client whose requests go through wrap.
func (c *Client) Through(wrap func(rest.Interface) rest.Interface) *Client {
	return &Client{wrap(c.rest), c.parameters}
}

// Widgets returns the client of a namespace, or of all of them.
func (c *Client) Widgets(namespace string) *gentype.ClientWithList[*v1alpha1.Widget, *v1alpha1.WidgetList] {
	return gentype.NewClientWithList("widgets", c.rest, c.parameters, namespace,
		func() *v1alpha1.Widget { return &v1alpha1.Widget{} },
		func() *v1alpha1.WidgetList { return &v1alpha1.WidgetList{} })
}

// Informer returns a function with which an informer factory makes an informer.
func (c *Client) Informer(namespace string) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
	return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return c.Widgets(namespace).List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return c.Widgets(namespace).Watch(ctx, options)
			},
		}, &v1alpha1.Widget{}, resync, cache.Indexers{})
	}
}
