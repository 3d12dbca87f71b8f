package controller

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/k8s-go/workshop/06-controller/loop"
)

// Each pass has one Event for all of its pods, and a policy has 25 at once. None is lost silently.
func TestEventsAreLimitedAndCounted(t *testing.T) {
	const passes, podsEach = 40, 3
	recorder := events.NewFakeRecorder(passes)
	c, p := &Controller{recorder: recorder}, aPass(policyWith(metav1.LabelSelector{}), noon)
	record := func() {
		c.event(p, []*pod{reduce(aPod("a")), reduce(aPod("b")), reduce(aPod("c"))}, corev1.EventTypeNormal, "Marked", "Mark", strings.Repeat("x", 2000))
	}
	for range passes {
		record()
	}
	if n := len(recorder.Events); n != eventBurst {
		t.Fatalf("%d Events, want %d", n, eventBurst)
	}
	for range eventBurst {
		if e := <-recorder.Events; !strings.HasSuffix(e, " (and 2 more)") || len(e) > loop.MaxNote+len("Normal Marked ") {
			t.Errorf("the Event %q does not count the others, or is too long", e)
		}
	}
	p.memory.events = newMemory("u").events // five minutes for each of them have passed
	record()
	if e, want := <-recorder.Events, fmt.Sprintf(" (and %d more)", (passes-eventBurst)*podsEach+2); !strings.HasSuffix(e, want) {
		t.Errorf("the Event %q does not end with%s", e, want)
	}
}
