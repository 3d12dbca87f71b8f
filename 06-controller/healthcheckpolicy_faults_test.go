package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// One fault of each class. The scenario is the same in all of them, and so is
// its end. The long matrix is in chaos.
var (
	markWrites   = faultproxy.Match{Verb: "patch", Resource: "pods"}
	statusWrites = faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies/status"}
	finalizers   = faultproxy.Match{Verb: "patch", Resource: "healthcheckpolicies"}
	podWatches   = faultproxy.Match{Verb: "watch*", Resource: "pods"}
)

func TestConvergesInSpiteOf(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]faultproxy.Rule{
		"409 on the status":            {{Match: statusWrites, Fault: faultproxy.Answer, Code: 409, Times: 5}},
		"409 on a mark":                {{Match: markWrites, Fault: faultproxy.Answer, Code: 409, Times: 3}},
		"409 on the finalizer":         {{Match: finalizers, Fault: faultproxy.Answer, Code: 409, Times: 3}},
		"500":                          {{Match: markWrites, Fault: faultproxy.Answer, Code: 500, Times: 3}, {Match: statusWrites, Fault: faultproxy.Answer, Code: 500, Times: 2}},
		"503 with Retry-After":         {{Match: markWrites, Fault: faultproxy.Answer, Code: 503, RetryAfter: time.Second}},
		"429 without Retry-After":      {{Match: faultproxy.Writes, Fault: faultproxy.Answer, Code: 429, Times: 4}},
		"the finalizer's answer lost":  {{Match: finalizers, Fault: faultproxy.Lose, Times: 2}},
		"a mark's answer lost":         {{Match: markWrites, Fault: faultproxy.Lose, Times: 4}},
		"the status' answer lost":      {{Match: statusWrites, Fault: faultproxy.Lose, Times: 2}},
		"slow":                         {{Match: faultproxy.Writes, Fault: faultproxy.Slow, Delay: 300 * time.Millisecond, Times: -1}},
		"the watch of the pods is cut": {{Match: podWatches, Fault: faultproxy.Cut, Event: "MODIFIED", Times: 3}},
		"410":                          {{Match: podWatches, Fault: faultproxy.Cut, Event: "MODIFIED"}, {Match: faultproxy.Match{Verb: "watch", Resource: "pods"}, Fault: faultproxy.ErrorEvent, Code: 410}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWard(t)
			for _, rule := range rules {
				w.inject(rule)
			}
			w.start()
			w.scenario()
		})
	}
}

// scenario goes through a policy's life, and checks how each part of it ends.
func (w *ward) scenario() {
	w.t.Helper()
	w.pod("good", healthy)
	w.pod("bad", ill)
	w.pod("taken", ill, labelled("lacks", "patience"))
	w.policy("example", specOf("label", selecting("app=web")))
	w.expect("example", counted(2, 1), hindered("KeyConflict", "KeyConflict: 1 pod"))
	w.expectMarks(map[string]string{"bad": "true", "taken": "patience"})
	w.edit("bad", `{"metadata":{"labels":{"app":"db"}}}`)
	w.edit("taken", `{"metadata":{"labels":{"lacks":null}}}`)
	w.expect("example", counted(1, 1), done)
	w.expectMarks(map[string]string{"taken": "true"})
	w.removed("example")
	w.expectMarks(map[string]string{})
}

// The controller is killed before and after each of its writes, and started again.
func TestConvergesThoughItIsKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		match faultproxy.Match
		after int
	}{
		{"finalizer put", finalizers, 0}, {"mark put", markWrites, 0}, {"status", statusWrites, 0},
		{"mark taken back", markWrites, 2}, {"finalizer removed", finalizers, 1},
	} {
		for _, fault := range []faultproxy.Fault{faultproxy.Call, faultproxy.CallAnswered} {
			t.Run(fmt.Sprintf("%s, %s", c.name, fault), func(t *testing.T) {
				t.Parallel()
				w := begin(t)
				w.revives = true
				process := w.running
				i := w.inject(faultproxy.Rule{Match: c.match, After: c.after, Fault: fault, Call: func(context.Context, faultproxy.Request) error {
					process.Kill()
					return errors.New("killed")
				}})
				w.pod("bad", ill)
				w.pod("worse", ill)
				w.policy("example", specOf("label"))
				w.expect("example", counted(2, 0), done)
				w.expectMarks(map[string]string{"bad": "true", "worse": "true"})
				w.removed("example")
				w.expectMarks(map[string]string{})
				w.struck(i, 1)
			})
		}
	}
}

// A rival writes the same status all the time, for a while.
func TestConvergesAgainstARival(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.inject(faultproxy.Rule{Match: statusWrites, Times: 6, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := w.policies.Patch(ctx, "example", types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"annotations":{"rival":"%d"}}}`, time.Now().UnixNano())), metav1.PatchOptions{})
		return err
	}})
	w.policy("example", specOf("label"))
	w.expect("example", counted(1, 0), done)
	w.removed("example")
}

// One pod that always fails holds up neither the other pods nor other policies.
func TestAPoisonousPodHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]faultproxy.Rule{
		"always 500":   {Fault: faultproxy.Answer, Code: 500},
		"never an end": {Fault: faultproxy.Stall},
		"refused":      {Fault: faultproxy.Answer, Code: 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, "-workers", "2")
			rule.Match, rule.Times = faultproxy.Match{Verb: "patch", Resource: "pods", Name: "poison"}, -1
			i := w.inject(rule)
			w.pod("a", ill)
			w.pod("poison", ill)
			w.pod("z", ill)
			w.policy("example", specOf("label"))
			w.policy("other", specOf("annotate", withKey("note"), selecting("app=db")))
			w.pod("db", ill, labelled("app", "db"))
			w.expectMarks(map[string]string{"a": "true", "z": "true", "db": "true"})
			w.expect("other", counted(1, 0), done)
			if name == "refused" {
				w.expect("example", counted(4, 0), hindered("Refused", "Refused: 1 pod. The server says: injected by faultproxy"))
			}
			i.Remove()
			w.expectMarks(map[string]string{"a": "true", "z": "true", "db": "true", "poison": "true"})
			w.expect("example", counted(4, 0), done)
		})
	}
}

// As long as a pod's write fails, the policy's action is not done, whatever it was before.
func TestEnforcedIsNotDoneWhileAWriteFails(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.policy("example", specOf("label"))
	w.expect("example", counted(0, 0), done)
	i := w.inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 500, Times: -1})
	w.pod("a", ill)
	if p := w.expect("example", counted(1, 0)); done(p) == nil {
		t.Errorf("status %s", asJSON(p.Status))
	}
	i.Remove()
	w.expect("example", counted(1, 0), done)
	w.expectMarks(map[string]string{"a": "true"})
}

// A read that is to be repeated later leaves the only worker to the others.
func TestRetryAfterHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]faultproxy.Match{
		"policy": {Verb: "get", Resource: "healthcheckpolicies"}, "pod": {Verb: "get", Resource: "pods"}, "pods": {Verb: "list", Resource: "pods"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, "-workers", "1")
			w.pod("a", ill, w.controlled())
			if name == "pods" { // only after a restart is it not enough to ask the cache
				w.policy("example", specOf("label"))
				w.expect("example", counted(1, 0), done)
				w.restart()
			}
			i := w.inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 20 * time.Second})
			if name == "pods" {
				w.remove("example")
			} else {
				w.policy("example", specOf("kill"))
			}
			w.struck(i, 1)
			w.policy("other", specOf("annotate", withKey("note")))
			w.expect("other", counted(1, 0), done)
			if asked := w.requests(match); len(asked) > 1 {
				t.Errorf("the other policy had to wait: %v", asked)
			}
		})
	}
}

// Retry-After is kept for each of the writes, whatever events arrive meanwhile.
func TestRetryAfterIsKept(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]faultproxy.Match{"mark": markWrites, "status": statusWrites, "finalizer": finalizers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.pod("a", ill)
			i := w.inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 2 * time.Second})
			w.policy("example", specOf("label"))
			w.struck(i, 1)
			w.edit("a", `{"metadata":{"labels":{"x":"y"}}}`)
			w.change("example", `{"metadata":{"annotations":{"x":"y"}}}`)
			w.expect("example", counted(1, 0), done)
			asked := w.requests(match)
			if len(asked) < 2 || asked[1].Started.Sub(asked[0].Started.Add(asked[0].Took)) < 2*time.Second {
				var lines []string
				for _, r := range asked {
					lines = append(lines, r.Started.Format("05.000 ")+r.String())
				}
				t.Errorf("repeated before its Retry-After:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// One pass can get several answers, and may look at a pod twice.
func TestRetryAfterIsKeptAmongOtherAnswers(t *testing.T) {
	t.Parallel()
	dryRunOfA := faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}
	markOf := func(pod string) faultproxy.Match {
		return faultproxy.Match{Verb: "patch", Resource: "pods", Name: pod}
	}
	for name, c := range map[string]struct {
		action v1alpha1.Action
		match  faultproxy.Match
		others []faultproxy.Rule
	}{
		"a mark, and 500 for another":                   {"label", markOf("b"), []faultproxy.Rule{{Match: markOf("a"), Fault: faultproxy.Answer, Code: 500}}},
		"a mark, and a shorter time for another":        {"label", markOf("b"), []faultproxy.Rule{{Match: markOf("a"), Fault: faultproxy.Answer, Code: 429, RetryAfter: time.Second}}},
		"the status before an eviction":                 {"kill", statusWrites, nil},
		"a dry run, before another pod's good eviction": {"kill", dryRunOfA, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWard(t)
			owned := w.controlled()
			w.pod("a", ill, owned)
			w.pod("b", ill, owned)
			for _, rule := range c.others {
				w.inject(rule)
			}
			w.inject(faultproxy.Rule{Match: c.match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
			w.policy("example", specOf(c.action, every(1)))
			w.start()
			if c.action == "kill" {
				w.alive()
			}
			w.expect("example", done)
			asked := w.requests(c.match)
			if len(asked) < 2 || asked[1].Started.Sub(asked[0].Started.Add(asked[0].Took)) < 3*time.Second {
				t.Errorf("repeated before its Retry-After: %v", asked)
			}
		})
	}
}

// An object is deleted and made again with the same name while the controller is not looking.
func TestTheSameNameIsNotTheSameObject(t *testing.T) {
	t.Parallel()
	w := begin(t)
	old := w.policy("example", specOf("label", withKey("old")))
	w.pod("a", ill)
	w.expect("example", counted(1, 0), done)
	held := w.inject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Hold, Times: -1})
	w.change("example", `{"metadata":{"finalizers":null}}`)
	w.remove("example")
	w.dismiss("a")
	w.pod("a", healthy)
	w.pod("b", ill)
	policy := w.policy("example", specOf("label"))
	w.struck(held, 2)
	held.Remove()
	if policy.UID == old.UID {
		t.Fatal("it is the same policy")
	}
	w.expect("example", counted(1, 1), done)
	w.expectMarks(map[string]string{"b": "true"})
	w.removed("example")
}

// Label A to B to A, between two events.
func TestThereAndBackAgain(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("example", specOf("label", selecting("app=web")))
	w.expect("example", counted(1, 0), done)
	held := w.inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	for _, app := range []string{"db", "web", "db", "web"} {
		w.edit("a", fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, app))
	}
	w.struck(held, 1)
	held.Remove()
	w.edit("a", `{"metadata":{"labels":{"x":"y"}}}`)
	w.pod("b", ill)
	w.expect("example", counted(2, 0), done)
	w.expectMarks(map[string]string{"a": "true", "b": "true"})
}
