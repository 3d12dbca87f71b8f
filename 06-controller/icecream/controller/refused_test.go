package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	icecreamfake "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/fake"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// A webhook says other words each time, so each report of a refusal is a change, and its event comes back to
// the controller. It waits all the same. Another number alone, such as that of the request, is no other word.
func TestARefusalThatSoundsDifferentEachTimeIsNoHotLoop(t *testing.T) {
	words := func(n int64) error { return errors.New("denied again" + strings.Repeat(" and again", int(n))) }
	numbers := func(n int64) error { return fmt.Errorf("denied request %d", n) }
	t.Run("words", func(t *testing.T) { refusedEachTime(t, words, func(n int64) (int64, error) { return n, words(n) }) })
	t.Run("numbers", func(t *testing.T) { refusedEachTime(t, numbers, func(int64) (int64, error) { return 1, numbers(1) }) })
}

// refusedEachTime refuses each try in its own words. wanted are the number of reports after so many tries, and what the last one says.
func refusedEachTime(t *testing.T, says func(try int64) error, wanted func(tries int64) (int64, error)) {
	synctest.Test(t, func(t *testing.T) {
		client, sweets := fake.NewClientset(), icecreamfake.NewClientset()
		var tries, reports atomic.Int64
		client.PrependReactor("create", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			n := tries.Add(1)
			if n > 1000 {
				return true, nil, fmt.Errorf("it would never end")
			}
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "cone", says(n))
		})
		// The fake's resourceVersions say nothing about order, so this one gives its own.
		sweets.PrependReactor("update", "icecreams", func(action clienttesting.Action) (bool, runtime.Object, error) {
			ice := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.Icecream).DeepCopy()
			ice.ResourceVersion = fmt.Sprint(100 + reports.Add(1))
			return true, ice, sweets.Tracker().Update(v1alpha1.IcecreamResource, ice, ice.Namespace)
		})
		c, err := New(Clients{client, sweets, client.AppsV1(), sweets.IcecreamV1alpha1()}, events.NewFakeRecorder(100), metav1.NamespaceAll, "pause:1", 0, loop.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		working := make(chan error)
		go func() { working <- c.Run(ctx) }()
		synctest.Wait()
		ice := vanilla()
		ice.ResourceVersion = "100"
		if _, err := sweets.IcecreamV1alpha1().Icecreams("shop").Create(ctx, ice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		// 10, 20, 40 ms ... and then once a minute.
		if n := tries.Load(); n < 60 || n > 90 {
			t.Errorf("%d tries in an hour", n)
		}
		now, err := sweets.IcecreamV1alpha1().Icecreams("shop").Get(ctx, "vanilla", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantReports, said := wanted(tries.Load())
		if n := reports.Load(); n != wantReports {
			t.Errorf("%d reports of %d tries, want %d", n, tries.Load(), wantReports)
		}
		want := said.Error()
		if got := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionAvailable); got == nil || got.Reason != v1alpha1.ReasonRefused || got.Message != `deployments.apps "cone" is forbidden: `+want {
			t.Errorf("condition %+v, want %q", got, want)
		}
		cancel()
		if err := <-working; err != nil {
			t.Error(err)
		}
	})
}
