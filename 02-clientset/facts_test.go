package clientset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientfake "k8s.io/client-go/kubernetes/fake"

	"github.com/k8s-go/workshop/internal/fatal"
)

// The fake's watch begins at the resourceVersion that a list has returned,
// although its update accepts an outdated one.
func TestTheFakesWatchComparesVersions(t *testing.T) {
	t.Parallel()
	configMaps := clientfake.NewClientset().CoreV1().ConfigMaps("default")
	create := func(name string) {
		t.Helper()
		if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("before")
	list, err := configMaps.List(t.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	create("between")
	w, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	fatal.If(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	if name := event.Object.(*corev1.ConfigMap).Name; event.Type != watch.Added || name != "between" {
		t.Errorf("the watch begins with %s %s, want ADDED between", event.Type, name)
	}
}
