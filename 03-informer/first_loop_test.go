package informer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A loopTest has first-loop running behind a proxy.
type loopTest struct {
	*testenv.Env
	t       *testing.T
	proxy   *testenv.Proxy
	process *testenv.Process
}

func newLoopTest(t *testing.T) *loopTest {
	t.Helper()
	e := testenv.New(t)
	l := &loopTest{Env: e, t: t, proxy: e.Proxy()}
	l.restart()
	return l
}

func (l *loopTest) restart() {
	l.t.Helper()
	l.process = start(l.t, l.Env, "first-loop", l.proxy.Kubeconfig)
}

// source makes or changes a ConfigMap that is to be copied.
func (l *loopTest) source(name, v string) {
	l.t.Helper()
	_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Apply(l.Context(), applycorev1.ConfigMap(name, l.Namespace).
		WithLabels(map[string]string{"mirror": "true"}).WithData(map[string]string{"v": v}).WithBinaryData(map[string][]byte{"b": {0xff}}),
		metav1.ApplyOptions{FieldManager: "test", Force: true})
	fatal.If(l.t, err)
}

// becomes waits until the namespace holds exactly these ConfigMaps, as name to v.
func (l *loopTest) becomes(want map[string]string) {
	l.t.Helper()
	l.Eventually(time.Minute, func(ctx context.Context) error {
		list, err := l.Client.CoreV1().ConfigMaps(l.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, cm := range list.Items {
			got[cm.Name] = cm.Data["v"]
		}
		if !maps.Equal(want, got) {
			return fmt.Errorf("there is %v, want %v", got, want)
		}
		return nil
	})
}

// acceptedWrites leaves out conflicts: they change nothing.
var acceptedWrites = faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Code/100 == 2 }}

// openWrites have no answer yet.
var openWrites = faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Code == 0 }}

// settled waits until all writes are answered and the program has written nothing for
// half a second, and returns how many writes the server has accepted in all.
func (l *loopTest) settled() int {
	l.t.Helper()
	quiet, last := 0, -1
	l.Eventually(time.Minute, func(context.Context) error {
		n := l.proxy.Count(faultproxy.Writes)
		if quiet++; n != last || l.proxy.Count(openWrites) > 0 {
			quiet, last = 0, n
		}
		if quiet < 5 {
			return fmt.Errorf("%d writes so far", n)
		}
		return nil
	})
	return l.proxy.Count(acceptedWrites)
}

func (l *loopTest) writes(want int, what string) {
	l.t.Helper()
	if n := l.settled(); n != want {
		l.t.Errorf("%d writes after %s, want %d", n, what, want)
	}
}

func (l *loopTest) remove(name string) { l.t.Helper(); remove(l.t, l.Env, name) }

func (l *loopTest) get(name string) *corev1.ConfigMap {
	l.t.Helper()
	cm, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Get(l.Context(), name, metav1.GetOptions{})
	fatal.If(l.t, err)
	return cm
}

// patch changes a ConfigMap as somebody else does.
func (l *loopTest) patch(name, patch string) {
	l.t.Helper()
	_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(l.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	fatal.If(l.t, err)
}

// hold keeps a ConfigMap in its namespace after it was deleted, until release.
func (l *loopTest) hold(name string) {
	l.t.Helper()
	l.patch(name, `{"metadata":{"finalizers":["test.k8s-go.openshift.org/hold"]}}`)
	l.AtEnd(func(ctx context.Context) error { return l.free(ctx, name) })
}

func (l *loopTest) release(name string) { l.t.Helper(); fatal.If(l.t, l.free(l.Context(), name)) }

func (l *loopTest) free(ctx context.Context, name string) error {
	_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	return err
}

func TestFirstLoopKeepsCopies(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.source("b", "1")
	set(t, l.Env, "plain", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "1", "b-copy": "1", "plain": "1"})
	l.writes(2, "two sources")
	if made := l.get("a-copy"); string(made.BinaryData["b"]) != "\xff" || made.Labels["mirror"] != "" || metav1.GetControllerOf(made) == nil {
		t.Errorf("copy %+v", made)
	}

	l.source("a", "2")
	l.becomes(map[string]string{"a": "2", "a-copy": "2", "b": "1", "b-copy": "1", "plain": "1"})
	l.patch("b-copy", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"b","uid":%q,"controller":true},
		{"apiVersion":"v1","kind":"ConfigMap","name":"plain","uid":%q}]},"data":{"v":"forged"}}`, l.get("b").UID, l.get("plain").UID))
	l.remove("a-copy")
	l.becomes(map[string]string{"a": "2", "a-copy": "2", "b": "1", "b-copy": "1", "plain": "1"})
	l.writes(5, "a change, a forgery and a deletion")
	if owners := l.get("b-copy").OwnerReferences; len(owners) != 2 {
		t.Errorf("owners %v, want also the one that somebody else has added", owners)
	}

	// No copies of copies, and no write for what does not matter.
	label := func(name, key, value string) {
		t.Helper()
		_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Apply(l.Context(), applycorev1.ConfigMap(name, l.Namespace).WithLabels(map[string]string{key: value}),
			metav1.ApplyOptions{FieldManager: "labels", Force: true})
		fatal.If(t, err)
	}
	label("a-copy", "mirror", "true")
	label("a", "color", "blue")
	l.becomes(map[string]string{"a": "2", "a-copy": "2", "b": "1", "b-copy": "1", "plain": "1"})
	l.writes(5, "labels")

	l.remove("a")
	label("b", "mirror", "false")
	l.becomes(map[string]string{"b": "1", "plain": "1"})
	l.writes(6, "a source has gone, whose copy is the garbage collector's, and one has lost its label")
	interrupt(t, l.process)
}

// A ConfigMap that happens to have a copy's name is never written to.
func TestFirstLoopKeepsOffForeignObjects(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	set(t, l.Env, "a-copy", "foreign")
	l.source("a", "1")
	l.source("b", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "foreign", "b": "1", "b-copy": "1"})
	l.writes(1, "a source whose copy's name is taken")
	l.remove("a-copy")
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "1", "b-copy": "1"})
	l.remove("a")
	l.becomes(map[string]string{"b": "1", "b-copy": "1"})
}

func TestFirstLoopRestarts(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.source("b", "1")
	l.source("c", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "1", "b-copy": "1", "c": "1", "c-copy": "1"})
	l.writes(3, "three sources")
	interrupt(t, l.process)
	l.source("a", "2")
	l.remove("b-copy")
	l.remove("c")
	l.restart()
	l.becomes(map[string]string{"a": "2", "a-copy": "2", "b": "1", "b-copy": "1"})
	l.writes(5, "a restart")
	interrupt(t, l.process)
	before := l.settled()
	l.restart()
	l.Eventually(time.Minute, func(context.Context) error {
		if l.proxy.Open(faultproxy.Watches) != 1 {
			return errors.New("no watch")
		}
		return nil
	})
	l.writes(before, "a restart with nothing to do")
}

// Events that never come: while the watch is cut, and one that is lost until
// history is gone and the informer lists again.
func TestFirstLoopUnderFaults(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.source("b", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "1", "b-copy": "1"})

	stall := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Stall, Times: -1})
	if n := l.proxy.Cut(faultproxy.Watches); n != 1 {
		t.Fatalf("%d watches cut", n)
	}
	l.remove("a-copy")
	l.source("b", "2")
	l.struck(stall)
	stall.Remove()
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "2", "b-copy": "2"})
	l.writes(4, "a cut")

	// The program does not hear that a copy is gone, and cannot know.
	lost := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Event: "DELETED", Object: "a-copy", Fault: faultproxy.Drop})
	l.remove("a-copy")
	l.struck(lost)
	l.expire()
	l.becomes(map[string]string{"a": "1", "a-copy": "1", "b": "2", "b-copy": "2"})
	l.writes(5, "a lost event and a list")

	// Nor that a source is gone; its copy is collected, and must not be made again.
	lost = l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Event: "DELETED", Object: "a", Fault: faultproxy.Drop})
	l.remove("a")
	l.struck(lost)
	l.becomes(map[string]string{"b": "2", "b-copy": "2"})
	l.writes(5, "a source that only the cache still holds")
	l.expire()
	l.source("b", "3")
	l.becomes(map[string]string{"b": "3", "b-copy": "3"})
	l.writes(6, "a list without that source")
}

func (l *loopTest) struck(i *faultproxy.Injection) {
	l.t.Helper()
	l.Eventually(time.Minute, func(context.Context) error {
		if i.Struck() == 0 {
			return errors.New("the fault has not happened")
		}
		return nil
	})
}

// expire makes the informer list again, because history is gone.
func (l *loopTest) expire() {
	l.t.Helper()
	gone := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: 410})
	l.proxy.Cut(faultproxy.Watches)
	l.struck(gone)
}

// Two writes at the same time, and one that is answered by 409: the queue
// brings the key back, and the loser writes again with what it then reads.
func TestFirstLoopConflicts(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1"})
	stall := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Writes, Fault: faultproxy.Stall})
	l.source("a", "2")
	l.struck(stall)
	set(t, l.Env, "a-copy", "forged") // what the program is about to write is now based on the past
	stall.Remove()
	l.becomes(map[string]string{"a": "2", "a-copy": "2"})
	l.settled()
	if n := l.proxy.Count(faultproxy.Match{Verb: "update", If: func(r faultproxy.Request) bool { return r.Code == 409 }}); n == 0 {
		t.Error("no conflict: this run has proved nothing")
	}
	l.writes(2, "a conflict")
}

// A server that refuses is asked ever less often, and a server that has
// recovered gets the write.
func TestFirstLoopIsNoHotLoop(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1"})
	failing := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update"}, Fault: faultproxy.Answer, Code: 500, Times: -1})
	l.source("a", "2")
	l.struck(failing)
	l.Eventually(time.Minute, func(context.Context) error {
		if failing.Struck() < 8 {
			return fmt.Errorf("%d tries", failing.Struck())
		}
		return nil
	})
	// 5, 10, 20, ... ms: the eighth try is not before 635 ms have passed.
	tries := l.proxy.Requests(faultproxy.Match{Verb: "update"})
	if took := tries[7].Started.Sub(tries[0].Started); took < 500*time.Millisecond {
		t.Errorf("8 tries in %s", took)
	}
	failing.Remove()
	l.becomes(map[string]string{"a": "2", "a-copy": "2"})
	l.writes(2, "errors")
}

// An interrupt in the middle of a write: the write is finished, and the program ends well.
func TestFirstLoopStopsGracefully(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	stall := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create"}, Fault: faultproxy.Stall})
	l.source("a", "1")
	l.struck(stall)
	fatal.If(t, l.process.Signal(os.Interrupt))
	select {
	case <-l.process.Done():
		t.Fatal("the program has not waited for its worker")
	case <-time.After(2 * time.Second): // longer than the leak check at the end is patient
	}
	stall.Remove()
	if r := l.process.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	cm, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Get(l.Context(), "a-copy", metav1.GetOptions{})
	if err != nil || cm.Data["v"] != "1" {
		t.Errorf("%v: the write was not finished", err)
	}
}

// A source that was deleted and made again is another object. The copy of the earlier one is left to the
// garbage collector, also while a finalizer holds it, and then the new source gets a copy of its own.
func TestFirstLoopFollowsANewOwner(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1"})
	l.hold("a-copy")
	l.remove("a")
	l.source("a", "2")
	l.source("witness", "1") // when this one is copied, a was looked at, too
	l.becomes(map[string]string{"a": "2", "a-copy": "1", "witness": "1", "witness-copy": "1"})
	l.writes(2, "the copy belongs to an earlier source")
	l.release("a-copy")
	l.becomes(map[string]string{"a": "2", "a-copy": "2", "witness": "1", "witness-copy": "1"})
	if made := l.get("a-copy"); !metav1.IsControlledBy(made, l.get("a")) {
		t.Errorf("owners %v", made.OwnerReferences)
	}
}

// Between the program's look and its DELETE, somebody takes the copy over. The UID is the same then.
func TestFirstLoopDeletesWhatItHasSeen(t *testing.T) {
	t.Parallel()
	l := newLoopTest(t)
	l.source("a", "1")
	l.becomes(map[string]string{"a": "1", "a-copy": "1"})
	taken := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete"}, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(ctx, "a-copy", types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{})
		return err
	}})
	l.patch("a", `{"metadata":{"labels":{"mirror":"false"}}}`)
	l.struck(taken)
	l.writes(1, "somebody has taken the copy over")
	l.becomes(map[string]string{"a": "1", "a-copy": "1"})
}

// Twenty failures in a row keep a key away for a quarter of an hour with the limiter that
// client-go gives by default, and for ten seconds with that of first-loop.
func TestBackoffHasALimit(t *testing.T) {
	t.Parallel()
	after := func(limiter workqueue.TypedRateLimiter[string]) (wait time.Duration) {
		for range 20 {
			wait = limiter.When("key")
		}
		return wait
	}
	if wait := after(workqueue.DefaultTypedControllerRateLimiter[string]()); wait < 15*time.Minute {
		t.Errorf("by default a key waits for %s", wait)
	}
	if wait := after(workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 10*time.Second)); wait != 10*time.Second {
		t.Errorf("with a limit a key waits for %s", wait)
	}
}
