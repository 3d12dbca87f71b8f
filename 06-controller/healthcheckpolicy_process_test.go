package controller

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Nothing changes, so nothing is written: not at a resync, and not by the next process.
func TestNothingIsWrittenWithoutAChange(t *testing.T) {
	t.Parallel()
	w := begin(t, "-resync", "1s")
	owned := w.controlled()
	w.pod("good", healthy)
	w.pod("bad", ill)
	w.pod("taken", ill, labelled("lacks", "patience"))
	w.pod("killed", ill, owned, labelled("app", "kill"))
	w.pod("next", ill, owned, labelled("app", "kill"))
	w.policy("labels", specOf("label", selecting("app=web")))
	w.policy("notes", specOf("annotate", withKey("note"), selecting("app=web")))
	w.policy("invalid", specOf("label", selecting("no label=x")))
	w.policy("kills", specOf("kill", selecting("app=kill"), every(3600)))
	w.expect("labels", counted(2, 1), hindered("KeyConflict", "KeyConflict: 1 pod"))
	w.expect("notes", counted(2, 1), done)
	w.expect("invalid")
	before := w.expect("kills", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	w.resyncs(4) // whatever was still to be done is done
	writes, events := w.writes(), len(w.requests(faultproxy.Match{Resource: "events"}))
	w.resyncs(3 * 4)
	w.restart()
	w.resyncs(3 * 4)
	if more := w.writes()[len(writes):]; len(more) > 0 {
		t.Errorf("written without a change:\n%s", strings.Join(more, "\n"))
	}
	if n := len(w.requests(faultproxy.Match{Resource: "events"})); n != events {
		t.Errorf("%d Events without a change", n-events)
	}
	// Two processes have filled two caches each, and nobody has listed anything again.
	if lists := w.requests(faultproxy.Match{Verb: "list"}); len(lists) > 0 {
		t.Errorf("lists: %v", lists)
	}
	if n := w.proxy.Count(faultproxy.Match{Verb: "watch-list"}); n != 4 {
		t.Errorf("%d watch-lists, want 4", n)
	}
	if after := w.expect("kills"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("resourceVersion %s, then %s", before.ResourceVersion, after.ResourceVersion)
	}
}

func TestStatusTellsWhenItChanged(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	first := w.expect("example", counted(1, 0), done)
	checked := first.Status.LastChecked
	if checked == nil || time.Since(checked.Time) > time.Minute || time.Since(checked.Time) < -time.Minute {
		t.Errorf("lastChecked %v", checked)
	}
	time.Sleep(time.Until(checked.Add(1100 * time.Millisecond))) // times in a status are whole seconds
	w.pod("b", ill)
	second := w.expect("example", counted(2, 0), done)
	if !second.Status.LastChecked.After(checked.Time) {
		t.Errorf("lastChecked %s, then %s", checked, second.Status.LastChecked)
	}
	for _, kind := range []string{"Compliant", "Enforced"} {
		a, b := meta.FindStatusCondition(first.Status.Conditions, kind), meta.FindStatusCondition(second.Status.Conditions, kind)
		if !a.LastTransitionTime.Equal(&b.LastTransitionTime) {
			t.Errorf("%s: the status stays %s, and its transition moves from %s to %s", kind, a.Status, a.LastTransitionTime, b.LastTransitionTime)
		}
	}
	w.dismiss("a")
	w.dismiss("b")
	third := w.expect("example", counted(0, 0), done)
	if a, b := meta.FindStatusCondition(second.Status.Conditions, "Compliant"), meta.FindStatusCondition(third.Status.Conditions, "Compliant"); !b.LastTransitionTime.After(a.LastTransitionTime.Time) {
		t.Errorf("Compliant became True, and its transition stays at %s", b.LastTransitionTime)
	}
	// A condition of somebody else stays.
	third.Status.Conditions = append(third.Status.Conditions, metav1.Condition{Type: "Reviewed", Status: "True", Reason: "ByHand", LastTransitionTime: metav1.Now()})
	if _, err := w.policies.UpdateStatus(w.Context(), third, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.pod("c", ill)
	w.expect("example", counted(1, 0), done, func(p *v1alpha1.HealthCheckPolicy) error { return hasReviewed(p) })
}

func hasReviewed(p *v1alpha1.HealthCheckPolicy) error {
	if !meta.IsStatusConditionTrue(p.Status.Conditions, "Reviewed") {
		return fmt.Errorf("somebody else's condition is gone")
	}
	return nil
}

func TestEventsSayWhatWasDoneToWhichPod(t *testing.T) {
	t.Parallel()
	w := begin(t)
	pod := w.pod("a", ill)
	policy := w.policy("example", specOf("label"))
	w.expectMarks(map[string]string{"a": "true"})
	flip := func() {
		w.edit("a", `{"metadata":{"labels":{"lacks":null}}}`) // the mark comes back, with the same Event
		w.expectMarks(map[string]string{"a": "true"})
	}
	var event *eventsv1.Event
	find := func(check func(*eventsv1.Event) error) {
		t.Helper()
		w.Eventually(time.Minute, func(ctx context.Context) error {
			list, err := w.Client.EventsV1().Events(w.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var found []*eventsv1.Event
			for i, e := range list.Items {
				if e.ReportingController == "healthcheckpolicy" && e.Reason == "Marked" {
					found = append(found, &list.Items[i])
				}
			}
			if len(found) != 1 {
				return fmt.Errorf("%d Events, want one: %s", len(found), asJSON(list.Items))
			}
			event = found[0]
			return check(event)
		})
	}
	find(func(*eventsv1.Event) error { return nil })
	if r := event.Regarding; r.Kind != "HealthCheckPolicy" || r.Name != "example" || r.UID != policy.UID || r.APIVersion != "policy.k8s-go.openshift.org/v1alpha1" {
		t.Errorf("regarding %+v", r)
	}
	if r := event.Related; r == nil || r.Kind != "Pod" || r.Name != "a" || r.UID != pod.UID {
		t.Errorf("related %+v", r)
	}
	if event.Note != "The pod lacks web: liveness, readiness" || event.Type != "Normal" {
		t.Errorf("%s Event %q", event.Type, event.Note)
	}
	flip()
	find(func(e *eventsv1.Event) error {
		if e.Series == nil || e.Series.Count < 2 {
			return fmt.Errorf("not aggregated: series %+v", e.Series)
		}
		return nil
	})
}

// A refused Event is no error: everything else goes on.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "events"}, Fault: faultproxy.Answer, Code: 403, Times: -1})
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	w.expect("example", counted(1, 0), done)
	w.removed("example")
	w.stop()
}

func TestStopsWell(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run("in flight, "+signal.String(), func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.pod("a", ill)
			slow := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Slow, Delay: 2 * time.Second})
			w.policy("example", specOf("label"))
			w.struck(slow, 1)
			w.signal(signal)
			w.expectMarks(map[string]string{"a": "true"})
		})
	}
	t.Run("asleep", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		w.pod("a", ill)
		stalled := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Stall, Times: -1})
		w.policy("example", specOf("label"))
		w.struck(stalled, 1)
		begun := time.Now()
		w.stop()
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("the stop took %s", took)
		}
	})
	t.Run("before the caches are filled", func(t *testing.T) {
		t.Parallel()
		w := openWard(t)
		stalled := w.inject(faultproxy.Rule{Match: faultproxy.Match{Resource: "healthcheckpolicies"}, Fault: faultproxy.Stall, Times: -1})
		w.launch()
		w.struck(stalled, 1)
		if code, _ := w.get("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz answers %d before the caches are filled", code)
		}
		if code, _ := w.get("/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d", code)
		}
		w.stop()
	})
}

func TestMetricsGrowWithNothing(t *testing.T) {
	t.Parallel()
	w := begin(t)
	series := func() sets.Set[string] {
		t.Helper()
		code, body := w.get("/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics: %d %s", code, body)
		}
		found := sets.New[string]()
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "#") {
				found.Insert(regexp.MustCompile(` \S+\n$`).ReplaceAllString(line, ""))
			}
		}
		return found
	}
	w.pod("first-pod", ill)
	w.policy("first-policy", specOf("label"))
	w.expect("first-policy", counted(1, 0), done)
	var before sets.Set[string]
	w.Eventually(time.Minute, func(context.Context) error { // a write is counted after its answer
		before = series()
		for _, want := range []string{`workqueue_depth{name="healthcheckpolicy"}`, `controller_reconciles_total{controller="healthcheckpolicy",result="success"}`,
			`controller_writes_total{controller="healthcheckpolicy",what="mark"}`, `controller_writes_total{controller="healthcheckpolicy",what="status"}`} {
			if !before.Has(want) {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
	for i := range 3 {
		w.pod(fmt.Sprintf("pod-%d", i), ill)
		w.policy(fmt.Sprintf("policy-%d", i), specOf("label", withKey(fmt.Sprintf("key-%d", i))))
		w.expect(fmt.Sprintf("policy-%d", i), counted(int32(i)+2, 0), done)
	}
	if more := series().Difference(before); len(more) > 0 {
		t.Errorf("more objects bring more series: %v", sets.List(more))
	}
}

func TestOnlyTheNamespaceThatWasAskedFor(t *testing.T) {
	t.Parallel()
	w, other := begin(t), openWard(t)
	for _, x := range []*ward{w, other} {
		x.pod("a", ill)
		x.policy("example", specOf("label"))
	}
	w.expect("example", counted(1, 0), done)
	if p, err := other.policies.Get(w.Context(), "example", metav1.GetOptions{}); err != nil || p.Status.ObservedGeneration != 0 {
		t.Errorf("a policy of another namespace was worked on: %s (%v)", asJSON(p.Status), err)
	}
	for _, r := range w.proxy.Requests(faultproxy.Match{}) {
		if r.Resource != "" && r.Namespace != w.Namespace {
			t.Errorf("a request outside of the namespace: %s", r)
		}
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	for _, args := range [][]string{
		{"-kubeconfig", "/does/not/exist"},
		append(slices.Clone(w.command.Args), "-listen", "nonsense"),
		{"-no-such-flag"},
	} {
		r := w.Run(testenv.Command{Path: w.command.Path, Args: args})
		if r.ExitCode <= 0 || !strings.Contains(r.Stderr, args[len(args)-1]) && !strings.Contains(r.Stderr, "no-such-flag") {
			t.Errorf("%v: exit code %d\n%s", args, r.ExitCode, r.Stderr)
		}
	}
}
