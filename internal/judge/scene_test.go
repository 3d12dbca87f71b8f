package judge

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A command that ends by itself ends its scene, which says why.
func TestCommandEnds(t *testing.T) {
	for name, test := range map[string]struct {
		command string
		opened  bool
		later   bool // it has worked undisturbed
		want    string
		failed  bool
	}{
		"before it works": {`sh -c 'echo no flag -x >&2; exit 2'`, false, false, "the command ended with exit code 2 before it had opened a watch:\n  no flag -x", false},
		"is not there":    {"/no/such/program", false, false, "exit code 127 before it had opened a watch", false},
		"port in use":     {`sh -c 'echo listen: address already in use; echo bind: address already in use >&2; exit 1'`, true, false, "let it take any free one", false},
		"while it works":  {`sh -c 'exit 3'`, true, false, "failure 4", true},
		"after a restart": {`sh -c 'exit 3'`, false, true, "failure 4", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			s := &scene{Faults: &crash.Faults{}, lab: &lab{ws: workspace.Workspace{Root: t.TempDir()}, controller: test.command}, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), ctx: ctx, stop: stop, programs: make([]*program, 1)}
			s.opened.Store(test.opened)
			if test.later {
				s.undisturbed = &scene{}
			}
			fatal.If(t, s.launch(0))
			<-ctx.Done()
			var f *failure
			if err := context.Cause(ctx); !strings.Contains(err.Error(), test.want) || errors.As(err, &f) != test.failed {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// What a program needs to start is no lateness of what people wait for.
func TestPatience(t *testing.T) {
	for _, restarts := range []int{0, 2} {
		s := &scene{undisturbed: &scene{startup: time.Hour}}
		calls := 0
		err := s.patiently(t.Context(), 150*time.Millisecond, func(context.Context) error {
			if calls++; calls <= restarts {
				s.launches++
			}
			if calls > 3 {
				return nil
			}
			return errors.New("not yet")
		})
		if (err == nil) != (restarts > 0) {
			t.Errorf("with %d restarts: %v", restarts, err)
		}
	}
}

// What has lost all of its owners is the garbage collector's to remove, and nothing else is.
func TestOwnersGone(t *testing.T) {
	gone := func(r metav1.OwnerReference) bool { return r.UID == "gone" }
	for text, want := range map[string]bool{"": false, "gone": true, "there": false, "gone there": false, "gone gone": true} {
		var owners []metav1.OwnerReference
		for _, uid := range strings.Fields(text) {
			owners = append(owners, metav1.OwnerReference{UID: types.UID(uid)})
		}
		if got := ownersGone(owners, gone); got != want {
			t.Errorf("owners %q: %t", text, got)
		}
	}
}

// A workload's status is the controller manager's, which may not have come to it yet.
func TestBehind(t *testing.T) {
	for observed, want := range map[int64]bool{0: true, 1: true, 2: false} {
		w := unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(2)}}}
		if observed > 0 {
			w.Object["status"] = map[string]any{"observedGeneration": observed}
		}
		if got := behind(w); got != want {
			t.Errorf("generation 2, observed %d: %t", observed, got)
		}
	}
}

// Whoever still does something for the first time is slow, and not restless.
func TestNewWork(t *testing.T) {
	var all []faultproxy.Request
	for i := range 6 {
		all = append(all, faultproxy.Request{Verb: "patch", Resource: "icecreams/status", Name: fmt.Sprint("many-", i)})
	}
	if !newWork(all) {
		t.Error("six objects, each written once, are not new work")
	}
	if newWork(append(all, all[5])) {
		t.Error("an object that is written twice is new work")
	}
	if newWork(all[:3]) {
		t.Error("three writes are enough to tell")
	}
}

// What a controller may send after a restart: creates that the server refuses. One under way is not judged yet.
func TestMoreThanRefused(t *testing.T) {
	const took = 5 * time.Millisecond
	refused := faultproxy.Request{Verb: "create", Resource: "configmaps", Name: "foreign", Code: 409, Took: took}
	for _, test := range []struct {
		name    string
		written []faultproxy.Request
		want    bool
	}{
		{"nothing", nil, false},
		{"refused", []faultproxy.Request{refused, refused}, false},
		{"refused three times", []faultproxy.Request{refused, refused, refused}, true},
		{"under way", []faultproxy.Request{{Verb: "create", Resource: "configmaps"}}, false},
		{"created", []faultproxy.Request{{Verb: "create", Resource: "configmaps", Code: 201, Took: took}}, true},
		{"without an answer", []faultproxy.Request{{Verb: "create", Resource: "configmaps", Took: took}}, true},
		{"an update under way", []faultproxy.Request{{Verb: "update", Resource: "configmaps", Name: "foreign"}}, true},
		{"an update in conflict", []faultproxy.Request{{Verb: "update", Resource: "configmaps", Name: "foreign", Code: 409, Took: took}}, true},
	} {
		if got := moreThanRefused(test.written); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

// A case that is played again is found by its name, although a smaller scenario has fewer writes.
func TestGroupsOf(t *testing.T) {
	for _, test := range []struct {
		asked    string
		happened int
		want     int
	}{
		{"", 40, 5}, {"", 3, 3}, {"^two copies$", 3, 3},
		{"killed before a write, 1 of 5", 3, 5}, {"^killed after a call, 2 of 4$", 40, 4}, {"^killed", 4, 4},
		{"killed before a write, 1 of 900", 3, 3},
	} {
		if got := groupsOf(test.asked, test.happened); got != test.want {
			t.Errorf("%q with %d writes: %d cases, want %d", test.asked, test.happened, got, test.want)
		}
	}
}

// Leader election by annotation is as little work as that by a Lease.
func TestLeaderElectionIsNoWrite(t *testing.T) {
	r := faultproxy.Request{Verb: "update", Resource: "configmaps", Body: []byte(`{"metadata":{"annotations":{"control-plane.alpha.kubernetes.io/leader":"{}"}}}`)}
	if isWrite(r) {
		t.Error("it counts as a write")
	}
	if r.Body = []byte(`{"data":{"a":"b"}}`); !isWrite(r) {
		t.Error("any other one does not")
	}
}

// An error in the status counts in whatever words it comes, if they are not the usual ones.
func TestSaysMore(t *testing.T) {
	w := &ward{step: Step{Object: &objects(t, "{kind: A, apiVersion: v1, metadata: {name: a}}")[0]}}
	s := &scene{want: stateOf(objects(t, "{kind: A, apiVersion: v1, metadata: {name: b, namespace: judge-0000}, status: {message: 'made judge-0000/x', conditions: [{type: Ready, status: 'True', message: fine}]}}"), nil, nil)}
	for status, want := range map[string]bool{
		"{}":                                           false,
		"{message: 'made judge-1a2b/x'}":               false,
		"{replicas: 0, phase: Pending}":                false,
		"{message: creating was refused}":              true,
		"{phase: Failed, reason: CreateFailed}":        true,
		"{conditions: [{type: Ready, message: fine}]}": false,
		"{conditions: [{type: Degraded, status: 'True', message: cannot create it}]}": true,
	} {
		o := objects(t, "{kind: A, apiVersion: v1, metadata: {name: a, namespace: judge-1a2b}, status: "+status+"}")[0]
		if s.saysMore(w, &o) != want {
			t.Errorf("%s: %t", status, !want)
		}
	}
}
