package fake

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A reactor is called instead of the fake's own store, for a verb and a
// resource. That is how to test answers that a real server gives rarely.

func counter() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "counter"}, Data: map[string]string{"count": "1"}}
}

func count(t *testing.T, client *clientfake.Clientset) string {
	t.Helper()
	cm, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "counter", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data["count"]
}

// The fake never answers an update with Conflict by itself. The reactor does once, and makes
// the change that the conflict is about, or a loop without a read would pass.
func TestConflictIsRetried(t *testing.T) {
	client := clientfake.NewClientset(counter())
	updates := 0
	client.PrependReactor("update", "configmaps", func(clienttesting.Action) (handled bool, _ runtime.Object, err error) {
		if updates++; updates > 1 {
			return false, nil, nil // not handled: the next in the chain, here the store
		}
		theirs := counter()
		theirs.Data["count"] = "10"
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), theirs, "default"); err != nil {
			return true, nil, err
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("configmaps"), "counter", errors.New("somebody was faster"))
	})
	if err := AddOne(t.Context(), client, "default", "counter"); err != nil {
		t.Fatal(err)
	}
	if got := count(t, client); got != "11" || updates != 2 {
		t.Errorf("count %s after %d updates, want 11 after 2", got, updates)
	}
}

func TestForbiddenIsNotRetried(t *testing.T) {
	client := clientfake.NewClientset(counter())
	updates := 0
	client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		updates++
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "counter", errors.New("not yours"))
	})
	err := AddOne(t.Context(), client, "default", "counter")
	if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "writing the count: ") || updates != 1 {
		t.Errorf("%d updates and the error %v, want 1 and Forbidden", updates, err)
	}
}

// Of an attempt that a context has ended, client-go's loop makes nil, if it is the first.
func TestCanceledIsNoSuccess(t *testing.T) {
	client := clientfake.NewClientset(counter())
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, context.Canceled
	})
	if err := AddOne(t.Context(), client, "default", "counter"); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want that of the context", err)
	}
}

// The chain is asked in order, and the store answers everything: a reactor that
// is added behind it is never called, and its test proves nothing.
func TestReactorBehindTheStore(t *testing.T) {
	client := clientfake.NewClientset(counter())
	called := false
	client.AddReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		called = true
		return true, nil, errors.New("never")
	})
	if err := AddOne(t.Context(), client, "default", "counter"); err != nil {
		t.Fatal(err)
	}
	if called {
		t.Error("AddReactor now comes before the store: PrependReactor is no longer needed")
	}
	if got := count(t, client); got != "2" {
		t.Errorf("count %s, want 2", got)
	}
}
