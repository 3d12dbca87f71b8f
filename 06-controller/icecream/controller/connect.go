package controller

import (
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Clients are the connections of a controller to the API server.
type Clients struct {
	// Of the informers, whose watches have no deadline.
	Core   kubernetes.Interface
	Sweets versioned.Interface
	// Of the workers, who send each request once.
	Deployments typedappsv1.DeploymentsGetter
	Icecreams   typedicecream.IcecreamsGetter
}

// Connect makes the clients of the workers from those of the informers.
func Connect(core kubernetes.Interface, sweets versioned.Interface) Clients {
	return Clients{
		Core: core, Sweets: sweets,
		Deployments: typedappsv1.New(loop.Once(core.AppsV1().RESTClient())),
		Icecreams:   typedicecream.New(loop.Once(sweets.IcecreamV1alpha1().RESTClient())),
	}
}
