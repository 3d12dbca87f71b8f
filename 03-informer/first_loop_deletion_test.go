package informer

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/fatal"
)

// With --cascade=foreground a source outlives its copy; here a finalizer keeps it even
// longer. With --cascade=orphan the copy stays.
func TestFirstLoopLeavesDeletionsToTheGarbageCollector(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	sources := l.Client.CoreV1().ConfigMaps(l.Namespace)
	held := map[string]metav1.DeletionPropagation{"foreground": metav1.DeletePropagationForeground, "orphan": metav1.DeletePropagationOrphan}
	for name := range held {
		l.source(name, "1")
	}
	l.becomes(map[string]string{"foreground": "1", "foreground-copy": "1", "orphan": "1", "orphan-copy": "1"})
	finalizers := func(name, list string) {
		t.Helper()
		if _, err := sources.Patch(l.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	for name, policy := range held {
		finalizers(name, `["test.k8s-go.openshift.org/hold"]`)
		fatal.If(t, sources.Delete(l.Context(), name, metav1.DeleteOptions{PropagationPolicy: ptr.To(policy)}))
	}
	left := map[string]string{"foreground": "1", "orphan": "1", "orphan-copy": "1"}
	l.becomes(left)
	l.source("witness", "1") // when this one is copied, the deletions were looked at, too
	left["witness"], left["witness-copy"] = "1", "1"
	l.becomes(left)
	l.writes(3, "deletions that the garbage collector carries out")
	l.becomes(left)
	for name := range held {
		finalizers(name, "null")
	}
	l.becomes(map[string]string{"orphan-copy": "1", "witness": "1", "witness-copy": "1"})
}
