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
// its end. The long matrix is in cmd/chaos.
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
			f := newPolicyTest(t)
			for _, rule := range rules {
				f.Inject(rule)
			}
			f.Start()
			f.scenario()
		})
	}
}

// scenario goes through a policy's life, and checks how each part of it ends.
func (f *policyTest) scenario() {
	f.T.Helper()
	f.pod("good", withProbes)
	f.pod("bad", withoutProbes)
	f.pod("taken", withoutProbes, labelled("lacks", "mine"))
	f.policy("example", specOf("label", selecting("app=web")))
	f.expect("example", counted(2, 1), hindered("KeyConflict", "KeyConflict: 1 pod"))
	f.expectMarks(map[string]string{"bad": "true", "taken": "mine"})
	f.edit("bad", `{"metadata":{"labels":{"app":"db"}}}`)
	f.edit("taken", `{"metadata":{"labels":{"lacks":null}}}`)
	f.expect("example", counted(1, 1), done)
	f.expectMarks(map[string]string{"taken": "true"})
	f.removed("example")
	f.expectMarks(map[string]string{})
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
				f := startPolicyTest(t)
				process := f.Process
				again := make(chan struct{})
				go func() { // as a cluster does
					defer close(again)
					process.Wait()
					f.Runner.Start(f.Command)
				}()
				i := f.Inject(faultproxy.Rule{Match: c.match, After: c.after, Fault: fault, Call: func(context.Context, faultproxy.Request) error {
					process.Kill()
					return errors.New("killed")
				}})
				f.pod("bad", withoutProbes)
				f.pod("worse", withoutProbes)
				f.policy("example", specOf("label"))
				f.expect("example", counted(2, 0), done)
				f.expectMarks(map[string]string{"bad": "true", "worse": "true"})
				f.removed("example")
				f.expectMarks(map[string]string{})
				f.Struck(i, 1)
				<-again
			})
		}
	}
}

// A rival writes the same status all the time, for a while.
func TestConvergesAgainstARival(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.Inject(faultproxy.Rule{Match: statusWrites, Times: 6, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := f.policies.Patch(ctx, "example", types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"annotations":{"rival":"%d"}}}`, time.Now().UnixNano())), metav1.PatchOptions{})
		return err
	}})
	f.policy("example", specOf("label"))
	f.expect("example", counted(1, 0), done)
	f.removed("example")
}

// One pod that always fails holds up neither the other pods nor other policies.
func TestAPoisonousPodHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]faultproxy.Rule{
		"always 500":                   {Fault: faultproxy.Answer, Code: 500},
		"never an end":                 {Fault: faultproxy.Stall},
		"refused":                      {Fault: faultproxy.Answer, Code: 422},
		"refused as if it had changed": {Fault: faultproxy.Answer, Code: 409},
		"refused as if it were gone":   {Fault: faultproxy.Answer, Code: 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t, "-workers", "2")
			rule.Match, rule.Times = faultproxy.Match{Verb: "patch", Resource: "pods", Name: "poison"}, -1
			i := f.Inject(rule)
			f.pod("a", withoutProbes)
			f.pod("poison", withoutProbes)
			f.pod("z", withoutProbes)
			f.policy("example", specOf("label"))
			f.policy("other", specOf("annotate", withKey("note"), selecting("app=db")))
			f.pod("db", withoutProbes, labelled("app", "db"))
			f.expectMarks(map[string]string{"a": "true", "z": "true", "db": "true"})
			f.expect("other", counted(1, 0), done)
			if strings.HasPrefix(name, "refused") {
				f.expect("example", counted(4, 0), hindered("Refused", "Refused: 1 pod. The server says: injected by faultproxy"))
			}
			i.Remove()
			f.expectMarks(map[string]string{"a": "true", "z": "true", "db": "true", "poison": "true"})
			f.expect("example", counted(4, 0), done)
		})
	}
}

// As long as a pod's write fails, the policy's action is not done, whatever it was before.
func TestEnforcedIsNotDoneWhileAWriteFails(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.policy("example", specOf("label"))
	f.expect("example", counted(0, 0), done)
	i := f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 500, Times: -1})
	f.pod("a", withoutProbes)
	if p := f.expect("example", counted(1, 0)); done(p) == nil {
		t.Errorf("status %s", asJSON(p.Status))
	}
	i.Remove()
	f.expect("example", counted(1, 0), done)
	f.expectMarks(map[string]string{"a": "true"})
}

// A read that is to be repeated later leaves the only worker to the others.
func TestRetryAfterHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]faultproxy.Match{
		"policy": {Verb: "get", Resource: "healthcheckpolicies"}, "pod": {Verb: "get", Resource: "pods"}, "pods": {Verb: "list", Resource: "pods"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t, "-workers", "1")
			f.pod("a", withoutProbes, f.controlled())
			if name == "pods" { // only after a restart is it not enough to ask the cache
				f.policy("example", specOf("label"))
				f.expect("example", counted(1, 0), done)
				f.Restart()
			}
			i := f.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 20 * time.Second})
			if name == "pods" {
				f.remove("example")
			} else {
				f.policy("example", specOf("kill"))
			}
			f.Struck(i, 1)
			f.policy("other", specOf("annotate", withKey("note")))
			f.expect("other", counted(1, 0), done)
			if asked := f.Proxy.Requests(match); len(asked) > 1 {
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
			f := startPolicyTest(t)
			f.pod("a", withoutProbes)
			i := f.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 2 * time.Second})
			f.policy("example", specOf("label"))
			f.Struck(i, 1)
			f.edit("a", `{"metadata":{"labels":{"x":"y"}}}`)
			f.change("example", `{"metadata":{"annotations":{"x":"y"}}}`)
			f.expect("example", counted(1, 0), done)
			asked := f.Proxy.Requests(match)
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
			f := newPolicyTest(t)
			owned := f.controlled()
			f.pod("a", withoutProbes, owned)
			f.pod("b", withoutProbes, owned)
			for _, rule := range c.others {
				f.Inject(rule)
			}
			f.Inject(faultproxy.Rule{Match: c.match, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
			f.policy("example", specOf(c.action, every(1)))
			f.Start()
			if c.action == "kill" {
				f.alive()
			}
			f.expect("example", done)
			asked := f.Proxy.Requests(c.match)
			if len(asked) < 2 || asked[1].Started.Sub(asked[0].Started.Add(asked[0].Took)) < 3*time.Second {
				t.Errorf("repeated before its Retry-After: %v", asked)
			}
		})
	}
}

// An object is deleted and made again with the same name while the controller is not looking.
func TestTheSameNameIsNotTheSameObject(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	old := f.policy("example", specOf("label", withKey("old")))
	f.pod("a", withoutProbes)
	f.expect("example", counted(1, 0), done)
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Hold, Times: -1})
	f.change("example", `{"metadata":{"finalizers":null}}`)
	f.remove("example")
	f.deletePod("a")
	f.pod("a", withProbes)
	f.pod("b", withoutProbes)
	policy := f.policy("example", specOf("label"))
	f.Struck(held, 2)
	held.Remove()
	if policy.UID == old.UID {
		t.Fatal("it is the same policy")
	}
	f.expect("example", counted(1, 1), done)
	f.expectMarks(map[string]string{"b": "true"})
	f.removed("example")
}

// Label A to B to A, between two events.
func TestThereAndBackAgain(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label", selecting("app=web")))
	f.expect("example", counted(1, 0), done)
	held := f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	for _, app := range []string{"db", "web", "db", "web"} {
		f.edit("a", fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, app))
	}
	f.Struck(held, 1)
	held.Remove()
	f.edit("a", `{"metadata":{"labels":{"x":"y"}}}`)
	f.pod("b", withoutProbes)
	f.expect("example", counted(2, 0), done)
	f.expectMarks(map[string]string{"a": "true", "b": "true"})
}
