package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Nothing changes, so nothing is written: not at a resync, and not by the next process.
func TestNothingIsWrittenWithoutAChange(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t, "-resync", "1s")
	owned := f.controlled()
	f.pod("good", withProbes)
	f.pod("bad", withoutProbes)
	f.pod("taken", withoutProbes, labelled("lacks", "mine"))
	f.pod("killed", withoutProbes, owned, labelled("app", "kill"))
	f.pod("next", withoutProbes, owned, labelled("app", "kill"))
	f.policy("labels", specOf("label", selecting("app=web")))
	f.policy("notes", specOf("annotate", withKey("note"), selecting("app=web")))
	f.policy("invalid", specOf("label", selecting("no label=x")))
	f.policy("kills", specOf("kill", selecting("app=kill"), every(3600)))
	f.expect("labels", counted(2, 1), hindered("KeyConflict", "KeyConflict: 1 pod"))
	f.expect("notes", counted(2, 1), done)
	f.expect("invalid")
	before := f.expect("kills", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	f.resyncs(4) // whatever was still to be done is done
	writes, events := f.Writes(), len(f.Proxy.Requests(faultproxy.Match{Resource: "events"}))
	f.resyncs(3 * 4)
	f.Restart()
	f.resyncs(3 * 4)
	if more := f.Writes()[len(writes):]; len(more) > 0 {
		t.Errorf("written without a change:\n%s", strings.Join(more, "\n"))
	}
	if n := len(f.Proxy.Requests(faultproxy.Match{Resource: "events"})); n != events {
		t.Errorf("%d Events without a change", n-events)
	}
	// Two processes have filled three caches each, and nobody has listed anything again.
	if lists := f.Proxy.Requests(faultproxy.Match{Verb: "list"}); len(lists) > 0 {
		t.Errorf("lists: %v", lists)
	}
	if n := f.Proxy.Count(faultproxy.Match{Verb: "watch-list"}); n != 6 {
		t.Errorf("%d watch-lists, want 6", n)
	}
	if after := f.expect("kills"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("resourceVersion %s, then %s", before.ResourceVersion, after.ResourceVersion)
	}
}

func TestStatusTellsWhenItChanged(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	first := f.expect("example", counted(1, 0), done)
	checked := first.Status.LastChecked
	if checked == nil || time.Since(checked.Time) > time.Minute || time.Since(checked.Time) < -time.Minute {
		t.Errorf("lastChecked %v", checked)
	}
	time.Sleep(time.Until(checked.Add(1100 * time.Millisecond))) // times in a status are whole seconds
	f.pod("b", withoutProbes)
	second := f.expect("example", counted(2, 0), done)
	if !second.Status.LastChecked.After(checked.Time) {
		t.Errorf("lastChecked %s, then %s", checked, second.Status.LastChecked)
	}
	for _, kind := range []string{"Compliant", "Enforced"} {
		a, b := meta.FindStatusCondition(first.Status.Conditions, kind), meta.FindStatusCondition(second.Status.Conditions, kind)
		if !a.LastTransitionTime.Equal(&b.LastTransitionTime) {
			t.Errorf("%s: the status stays %s, and its transition moves from %s to %s", kind, a.Status, a.LastTransitionTime, b.LastTransitionTime)
		}
	}
	f.deletePod("a")
	f.deletePod("b")
	third := f.expect("example", counted(0, 0), done)
	if a, b := meta.FindStatusCondition(second.Status.Conditions, "Compliant"), meta.FindStatusCondition(third.Status.Conditions, "Compliant"); !b.LastTransitionTime.After(a.LastTransitionTime.Time) {
		t.Errorf("Compliant became True, and its transition stays at %s", b.LastTransitionTime)
	}
	// A condition of somebody else stays.
	third.Status.Conditions = append(third.Status.Conditions, metav1.Condition{Type: "Reviewed", Status: "True", Reason: "ByHand", LastTransitionTime: metav1.Now()})
	if _, err := f.policies.UpdateStatus(f.Context(), third, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.pod("c", withoutProbes)
	f.expect("example", counted(1, 0), done, func(p *v1alpha1.HealthCheckPolicy) error { return hasReviewed(p) })
}

func hasReviewed(p *v1alpha1.HealthCheckPolicy) error {
	if !meta.IsStatusConditionTrue(p.Status.Conditions, "Reviewed") {
		return fmt.Errorf("somebody else's condition is gone")
	}
	return nil
}

func TestEventsSayWhatWasDoneToWhichPod(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	pod := f.pod("a", withoutProbes)
	policy := f.policy("example", specOf("label"))
	f.expectMarks(map[string]string{"a": "true"})
	flip := func() {
		f.edit("a", `{"metadata":{"labels":{"lacks":null}}}`) // the mark comes back, with the same Event
		f.expectMarks(map[string]string{"a": "true"})
	}
	var event *eventsv1.Event
	find := func(check func(*eventsv1.Event) error) {
		t.Helper()
		f.Eventually(time.Minute, func(ctx context.Context) error {
			list, err := f.Client.EventsV1().Events(f.Namespace).List(ctx, metav1.ListOptions{})
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
	f := startPolicyTest(t)
	f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "events"}, Fault: faultproxy.Answer, Code: 403, Times: -1})
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.expect("example", counted(1, 0), done)
	f.removed("example")
	f.Stop()
}

func TestStopsWell(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run("in flight, "+signal.String(), func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			f.pod("a", withoutProbes)
			slow := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Slow, Delay: 2 * time.Second})
			f.policy("example", specOf("label"))
			f.Struck(slow, 1)
			f.Signal(signal)
			f.expectMarks(map[string]string{"a": "true"})
		})
	}
	t.Run("asleep", func(t *testing.T) {
		t.Parallel()
		f := startPolicyTest(t)
		f.pod("a", withoutProbes)
		stalled := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Stall, Times: -1})
		f.policy("example", specOf("label"))
		f.Struck(stalled, 1)
		begun := time.Now()
		f.Stop()
		if took := time.Since(begun); took > 30*time.Second { // which is what a pod has
			t.Errorf("the stop took %s", took)
		}
	})
	t.Run("before the caches are filled", func(t *testing.T) {
		t.Parallel()
		f := newPolicyTest(t)
		stalled := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Resource: "healthcheckpolicies"}, Fault: faultproxy.Stall, Times: -1})
		f.Launch()
		f.Struck(stalled, 1)
		if code, _ := f.Get("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz answers %d before the caches are filled", code)
		}
		if code, _ := f.Get("/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d", code)
		}
		f.Stop()
	})
}

func TestMetricsGrowWithNothing(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	series := func() sets.Set[string] {
		t.Helper()
		code, body := f.Get("/metrics")
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
	f.pod("first-pod", withoutProbes)
	f.policy("first-policy", specOf("label"))
	f.expect("first-policy", counted(1, 0), done)
	var before sets.Set[string]
	f.Eventually(time.Minute, func(context.Context) error { // a write is counted after its answer
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
		f.pod(fmt.Sprintf("pod-%d", i), withoutProbes)
		f.policy(fmt.Sprintf("policy-%d", i), specOf("label", withKey(fmt.Sprintf("key-%d", i))))
		f.expect(fmt.Sprintf("policy-%d", i), counted(int32(i)+2, 0), done)
	}
	if more := series().Difference(before); len(more) > 0 {
		t.Errorf("more objects bring more series: %v", sets.List(more))
	}
}

func TestOnlyTheNamespaceThatWasAskedFor(t *testing.T) {
	t.Parallel()
	f, other := startPolicyTest(t), newPolicyTest(t)
	for _, x := range []*policyTest{f, other} {
		x.pod("a", withoutProbes)
		x.policy("example", specOf("label"))
	}
	f.expect("example", counted(1, 0), done)
	if p, err := other.policies.Get(f.Context(), "example", metav1.GetOptions{}); err != nil || p.Status.ObservedGeneration != 0 {
		t.Errorf("a policy of another namespace was worked on: %s (%v)", asJSON(p.Status), err)
	}
	for _, r := range f.Proxy.Requests(faultproxy.Match{}) {
		if r.Resource != "" && r.Namespace != f.Namespace {
			t.Errorf("a request outside of the namespace: %s", r)
		}
	}
}

// The kubeconfig is that of KUBECONFIG, or else that in the home directory. And the resync is to happen seldom.
func TestFindsItsKubeconfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*controllertest.Controller{"healthcheckpolicy": newPolicyTest(t).Controller, "icecream": newIcecreamTest(t).Controller} {
		home := t.TempDir()
		config := filepath.Join(home, ".kube", "config")
		kubeconfig, err := os.ReadFile(c.Proxy.Kubeconfig)
		fatal.If(t, errors.Join(err, os.Mkdir(filepath.Dir(config), 0o700), os.WriteFile(config, kubeconfig, 0o600)))
		c.Command.Args = []string{"-namespace", c.Namespace}
		for _, env := range [][]string{{"KUBECONFIG=", "HOME=" + home}, {"KUBECONFIG=" + config, "HOME=/nowhere"}} {
			c.Command.Env = env
			c.Start()
			c.Stop()
		}
		if r := c.Run(testenv.Command{Path: c.Command.Path, Args: []string{"-h"}}); !strings.Contains(r.Stdout+r.Stderr, "(default 10h0m0s)") {
			t.Errorf("%s -h does not speak of 10 hours:\n%s%s", name, r.Stdout, r.Stderr)
		}
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	for _, args := range [][]string{
		{"-kubeconfig", "/does/not/exist"},
		append(slices.Clone(f.Command.Args), "-listen", "nonsense"),
		append(slices.Clone(f.Command.Args), "-resync", "-1s"),
		append(slices.Clone(f.Command.Args), "-resync", "10ms"),
		append(slices.Clone(f.Command.Args), "-namespace", "No/Such"),
		append(slices.Clone(f.Command.Args), "start"),
		{"-no-such-flag"},
	} {
		r := f.Run(testenv.Command{Path: f.Command.Path, Args: args})
		if r.ExitCode <= 0 || !strings.Contains(r.Stderr, args[len(args)-1]) && !strings.Contains(r.Stderr, "no-such-flag") {
			t.Errorf("%v: exit code %d\n%s", args, r.ExitCode, r.Stderr)
		}
	}
}
