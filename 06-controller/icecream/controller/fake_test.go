package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	icecreamfake "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/fake"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Layer 2: fake clients. The whole controller runs, without a server. A fake has
// no admission, no defaults, no garbage collection, and no subresource: it stores
// a status wherever it is written to. ../../layers_test.go shows such a bug.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWithFakes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, sweets, recorder := fake.NewClientset(), icecreamfake.NewClientset(), events.NewFakeRecorder(100)
	c, err := New(Clients{client, sweets, client.AppsV1(), sweets.IcecreamV1alpha1()}, recorder, metav1.NamespaceAll, "pause:1", 0, loop.Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	working := make(chan error)
	go func() { working <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-working; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, done func(ctx context.Context) error) {
		t.Helper()
		last := error(nil)
		if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
			last = done(ctx)
			return last == nil, nil
		}); err != nil {
			t.Fatalf("%s: %v (%v)", what, last, err)
		}
	}
	// A fake loses events between a list and the watch that follows it, so nothing
	// is created before the watches are open.
	until("watching", func(context.Context) error {
		watches := 0
		for _, action := range append(client.Actions(), sweets.Actions()...) {
			if action.GetVerb() == "watch" {
				watches++
			}
		}
		if watches < 3 {
			return fmt.Errorf("%d watches", watches)
		}
		return nil
	})

	icecreams, deployments := sweets.IcecreamV1alpha1().Icecreams("shop"), client.AppsV1().Deployments("shop")
	ice := vanilla()
	if _, err := icecreams.Create(ctx, ice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var d *appsv1.Deployment
	until("creating the Deployment", func(ctx context.Context) (err error) {
		d, err = deployments.Get(ctx, "cone", metav1.GetOptions{})
		return err
	})
	if !metav1.IsControlledBy(d, ice) || *d.Spec.Replicas != 3 {
		t.Errorf("Deployment %+v", d)
	}
	// Nobody rolls anything out here, so the test says that it is done.
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
	if _, err := deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("reporting", func(ctx context.Context) error {
		now, err := icecreams.Get(ctx, "vanilla", metav1.GetOptions{})
		if err == nil && ptr.Deref(now.Status.AvailableReplicas, 0) != 3 {
			err = fmt.Errorf("status %+v", now.Status)
		}
		return err
	})
	until("recording an Event", func(context.Context) error {
		select {
		case event := <-recorder.Events:
			if strings.HasPrefix(event, "Normal Synced ") {
				return nil
			}
			return fmt.Errorf("event %q", event)
		default:
			return fmt.Errorf("no event")
		}
	})

	// A new name: the old Deployment goes when the new one can take over.
	now, err := icecreams.Get(ctx, "vanilla", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Spec.DeploymentName = "cup"
	if _, err := icecreams.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("creating the new Deployment", func(ctx context.Context) (err error) {
		d, err = deployments.Get(ctx, "cup", metav1.GetOptions{})
		return err
	})
	if _, err := deployments.Get(ctx, "cone", metav1.GetOptions{}); err != nil {
		t.Errorf("the old Deployment: %v", err)
	}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
	if _, err := deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("deleting the old Deployment", func(ctx context.Context) error {
		if _, err := deployments.Get(ctx, "cone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there (%v)", err)
		}
		return nil
	})
}
