// naive rents a room in the cold store for each ColdRoom, as many controllers of cloud resources
// once did: it looks whether there is a room, rents one if not, and writes down its ID.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
	"github.com/k8s-go/workshop/09-outside/client"
	"github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned"
	typed "github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned/typed/outside/v1alpha1"
	"github.com/k8s-go/workshop/09-outside/pkg/generated/informers/externalversions"
	listers "github.com/k8s-go/workshop/09-outside/pkg/generated/listers/outside/v1alpha1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "naive:", err)
		os.Exit(1)
	}
}

type controller struct {
	client typed.ColdRoomsGetter
	cached listers.ColdRoomLister
	store  *client.ClientWithResponses
}

// reconcile rents a room, if there is none.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	cr, err := c.cached.ColdRooms(key.Namespace).Get(key.Name)
	if err != nil || cr.Status.RoomID != "" {
		return 0, nil
	}
	answer, err := c.store.RentRoomWithResponse(ctx, nil, client.RoomRequest{
		Name: key.String(), Pallets: int(cr.Spec.Pallets), Celsius: int(*cr.Spec.Celsius)})
	if err != nil {
		return 0, err
	}
	if answer.JSON201 == nil {
		return 0, fmt.Errorf("renting a room: %s: %s", answer.Status(), answer.Body)
	}
	cr = cr.DeepCopy()
	cr.Status.RoomID = answer.JSON201.Id
	_, err = c.client.ColdRooms(key.Namespace).UpdateStatus(ctx, cr, metav1.UpdateOptions{})
	return 0, err
}

func run(ctx context.Context) error {
	namespace := flag.String("namespace", "default", "where to work")
	address := flag.String("store", "", "the address of the store, such as http://127.0.0.1:8080 (required)")
	flag.Parse()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	loop.WaitForServer(config)
	rooms, err := versioned.NewForConfig(config)
	store, failed := client.NewClientWithResponses(*address)
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	factory := externalversions.NewSharedInformerFactoryWithOptions(rooms, 0, externalversions.WithNamespace(*namespace))
	coldRooms := factory.Outside().V1alpha1().ColdRooms()
	c := &controller{client: rooms.OutsideV1alpha1(), cached: coldRooms.Lister(), store: store}
	l := loop.New("naive", c.reconcile, loop.Options{Workers: 4, Observer: loopreport.Observer()})
	if err := l.Watch(coldRooms.Informer(), loop.Each(func(name cache.ObjectName) { l.Add(name, "ColdRoom changed") })); err != nil {
		return err
	}
	return l.Run(ctx, factory)
}
