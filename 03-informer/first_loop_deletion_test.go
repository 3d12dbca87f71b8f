package informer

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/fatal"
)

// With --cascade=foreground a source outlives its copy; here a finalizer keeps it even
// longer. With --cascade=orphan the copy stays. The copy of gone outlives its source.
func TestFirstLoopLeavesDeletionsToTheGarbageCollector(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	sources := l.Client.CoreV1().ConfigMaps(l.Namespace)
	held := map[string]metav1.DeletionPropagation{"foreground": metav1.DeletePropagationForeground, "orphan": metav1.DeletePropagationOrphan}
	for name := range held {
		l.source(name, "1")
	}
	l.source("gone", "1")
	l.becomes(map[string]string{"foreground": "1", "foreground-copy": "1", "orphan": "1", "orphan-copy": "1", "gone": "1", "gone-copy": "1"})
	for name, policy := range held {
		l.hold(name)
		fatal.If(t, sources.Delete(l.Context(), name, metav1.DeleteOptions{PropagationPolicy: ptr.To(policy)}))
	}
	l.hold("gone-copy")
	l.remove("gone")
	left := map[string]string{"foreground": "1", "orphan": "1", "orphan-copy": "1", "gone-copy": "1"}
	l.becomes(left)
	l.source("witness", "1") // when this one is copied, the deletions were looked at, too
	left["witness"], left["witness-copy"] = "1", "1"
	l.becomes(left)
	l.writes(4, "deletions that the garbage collector carries out")
	l.becomes(left)
	for name := range held {
		l.release(name)
	}
	l.release("gone-copy")
	l.becomes(map[string]string{"orphan-copy": "1", "witness": "1", "witness-copy": "1"})
}
