package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRemembersTheLastAndWhatIsOpen(t *testing.T) {
	_, p := start(t)
	p.ended.size = 3
	w := watch(t, p, "")
	for i := range 5 {
		if _, _, err := do(t, p, "GET", fmt.Sprintf("%s/p%d", pods, i)); err != nil {
			t.Fatal(err)
		}
		// The client has its answer a moment before the request is a part of the past.
		eventually(t, "only the watch is under way", func() bool { return len(p.underWay()) == 1 })
	}
	recorded := func() (verbs string, forgotten int) {
		found, forgotten := p.Requests(Match{})
		for _, r := range found {
			verbs += fmt.Sprintf("%d %s %s, ", r.ID, r.Verb, r.Name)
		}
		return verbs, forgotten
	}
	eventually(t, "all gets are a part of the past", func() bool { _, forgotten := recorded(); return forgotten == 2 })
	if got, _ := recorded(); got != "1 watch , 4 get p2, 5 get p3, 6 get p4, " {
		t.Errorf("recorded %s", got)
	}
	if n, forgotten := p.Count(Match{Verb: "get"}); n != 3 || forgotten != 2 {
		t.Errorf("%d gets, %d forgotten", n, forgotten)
	}
	w.cancel()
	eventually(t, "the watch has pushed out another one", func() bool { _, forgotten := recorded(); return forgotten == 3 })
	if len(p.ended.requests) != 3 || len(p.open) != 0 {
		t.Errorf("%d requests kept, %d open", len(p.ended.requests), len(p.open))
	}
}

func TestMatchByFunctionAndGroup(t *testing.T) {
	_, p := start(t)
	for _, request := range []string{
		"GET /apis/events.k8s.io/v1/namespaces/ns/events", "GET /api/v1/namespaces/ns/events",
		"POST /api/v1/namespaces/ns/pods", "POST /api/v1/namespaces/ns/pods?dryRun=All",
		"PATCH /api/v1/namespaces/ns/pods/a/status", "DELETE /api/v1/namespaces/ns/pods/a",
	} {
		method, target, _ := strings.Cut(request, " ")
		if _, _, err := do(t, p, method, target); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		match Match
		want  int
	}{
		{"all", Match{}, 6},
		{"group", Match{Group: "events.k8s.io"}, 1},
		{"writes", Writes, 3},
		{"subresource", Match{Resource: "pods/status"}, 1},
		{"without subresources", Match{Resource: "pods"}, 3},
		{"both", Match{Verb: "create", If: func(r Request) bool { return r.Query != "" }}, 1},
		// A function may ask the proxy.
		{"asking", Match{If: func(Request) bool { return p.Open(Watches) == 0 }}, 6},
	} {
		if got, _ := p.Count(tc.match); got != tc.want {
			t.Errorf("%s: %d requests, want %d", tc.name, got, tc.want)
		}
	}
	struck := inject(t, p, Rule{Match: Match{If: func(r Request) bool { return strings.Contains(r.Query, "second") }}, Fault: Answer, Code: 500})
	for _, want := range []string{"200 first", "500 second"} {
		_, name, _ := strings.Cut(want, " ")
		code, _, err := do(t, p, "GET", pods+"?fieldManager="+name)
		if got := fmt.Sprint(code, " ", name); got != want || err != nil {
			t.Errorf("%s %v, want %s", got, err, want)
		}
	}
	if struck.Struck() != 1 {
		t.Errorf("struck %d", struck.Struck())
	}
}

// all reads observations until one satisfies f.
func all(t *testing.T, from <-chan Observation, f func(Observation) bool) []string {
	t.Helper()
	var seen []string
	for {
		select {
		case o, open := <-from:
			if !open {
				t.Fatalf("no more observations after %v", seen)
			}
			if o.Time.IsZero() || o.Missed != 0 {
				t.Errorf("at %s, %d missed", o.Time, o.Missed)
			}
			seen = append(seen, fmt.Sprintf("%s %s %s%s by %d %v", o.Moment, o.Request.Verb, o.Fault, o.Event, o.Request.Events, o.Request.Faults))
			if f(o) {
				return seen
			}
		case <-time.After(patience):
			t.Fatalf("no more observations after %v", seen)
		}
	}
}

func TestObserversHearOfFourMoments(t *testing.T) {
	u, p := start(t)
	ended := func(o Observation) bool { return o.Moment == Ended }
	first, second := p.Observe(t.Context()), p.Observe(t.Context())
	inject(t, p, Rule{Match: Watches, Object: "lost", Fault: Drop})
	w := watch(t, p, "")
	u.events <- event("ADDED", "seen")
	w.next(t)
	u.events <- event("ADDED", "lost")
	u.events <- event("DELETED", "seen")
	w.next(t)
	p.Cut(Watches)
	want := []string{
		"begun watch {    } by 0 []",
		"passed watch {ADDED   seen } by 1 []",
		"struck watch drop{ADDED   lost } by 1 [drop]",
		"passed watch {DELETED   seen } by 2 [drop]",
		"struck watch cut{    } by 2 [drop cut]",
		"ended watch {    } by 2 [drop cut]",
	}
	for _, o := range []<-chan Observation{first, second} {
		if diff := cmp.Diff(want, all(t, o, ended)); diff != "" {
			t.Errorf("observations (-want +got):\n%s", diff)
		}
	}
}

func TestObserverSeesARequestBeforeItsEnd(t *testing.T) {
	_, p := start(t)
	stall := inject(t, p, Rule{Fault: Stall})
	observations := p.Observe(t.Context())
	answered := make(chan int)
	go func() {
		code, _, _ := do(t, p, "GET", pods)
		answered <- code
	}()
	all(t, observations, func(o Observation) bool { return o.Moment == FaultStruck && o.Fault == Stall })
	if r, _ := p.Requests(Match{}); len(r) != 1 || r[0].Code != 0 || r[0].Took != 0 {
		t.Errorf("recorded %v", r)
	}
	stall.Remove()
	if code := <-answered; code != 200 {
		t.Errorf("answer %d", code)
	}
}

func TestObserverIsRemoved(t *testing.T) {
	_, p := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	observations, stays := p.Observe(ctx), p.Observe(t.Context())
	cancel()
	eventually(t, "it is removed", func() bool {
		_, open := <-observations
		return !open
	})
	if _, _, err := do(t, p, "GET", pods); err != nil {
		t.Fatal(err)
	}
	all(t, stays, func(o Observation) bool { return o.Moment == Ended })
	p.Close()
	if _, open := <-stays; open {
		t.Error("an observer hears of something after the proxy was closed")
	}
	if _, open := <-p.Observe(t.Context()); open {
		t.Error("a closed proxy has something to tell")
	}
}

// The watch goes on though nobody reads what the observer is told.
func TestSlowObserverHoldsUpNobody(t *testing.T) {
	u, p := start(t)
	observations := p.Observe(t.Context())
	w := watch(t, p, "")
	const events = observerBuffer + 100
	for i := range events {
		u.events <- event("ADDED", fmt.Sprint(i))
		w.next(t)
	}
	for range observerBuffer {
		if o := <-observations; o.Missed != 0 {
			t.Fatalf("missed %d before %v", o.Missed, o)
		}
	}
	u.events <- event("ADDED", "last")
	w.next(t)
	// Begun is the one observation before them that is no event.
	if o := <-observations; o.Missed != events+1-observerBuffer || o.Event.Name != "last" {
		t.Errorf("missed %d before %v, want %d", o.Missed, o, events+1-observerBuffer)
	}
	u.events <- event("ADDED", "after")
	w.next(t)
	if o := <-observations; o.Missed != 0 || o.Event.Name != "after" {
		t.Errorf("missed %d before %v, which came in time", o.Missed, o)
	}
}

// Bodies are remembered only from when that is asked for, and only those of writes.
func TestBodies(t *testing.T) {
	_, p := start(t)
	send := func(method string) {
		t.Helper()
		if _, _, err := doWith(t.Context(), t, p, method, pods+"/p", method); err != nil {
			t.Fatal(err)
		}
	}
	send("PUT")
	p.KeepBodies()
	send("PUT")
	send("GET")
	send("DELETE")
	var bodies []string
	all, _ := p.Requests(Match{})
	for _, r := range all {
		bodies = append(bodies, string(r.Body))
	}
	if diff := cmp.Diff([]string{"", "PUT", "", "DELETE"}, bodies); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
}

func TestCallBeforeForwarding(t *testing.T) {
	u, p := start(t)
	type call struct {
		name      string
		committed int32
	}
	var calls []call
	note := func(_ context.Context, r Request) error {
		calls = append(calls, call{r.Name, u.committed.Load()})
		return nil
	}
	inject(t, p, Rule{Match: Writes, Fault: Call, Call: note, After: 1, Times: 2})
	for i := range 4 {
		if code, _, err := do(t, p, "PATCH", fmt.Sprintf("%s/p%d", pods, i)); code != 200 || err != nil {
			t.Errorf("%d %v", code, err)
		}
	}
	if diff := cmp.Diff([]call{{"p1", 1}, {"p2", 2}}, calls, cmp.AllowUnexported(call{})); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	inject(t, p, Rule{Match: Writes, Fault: Call, Call: func(context.Context, Request) error { return errors.New("no") }})
	if code, _, err := do(t, p, "PATCH", pods+"/p"); err == nil {
		t.Errorf("answer %d", code)
	}
	if n := u.committed.Load(); n != 4 {
		t.Errorf("%d writes have reached the server, one that must not", n)
	}
}

func TestCallBeforeTheAnswer(t *testing.T) {
	u, p := start(t)
	called, goOn := make(chan Request), make(chan error)
	inject(t, p, Rule{Match: Writes, Fault: CallAnswered, Times: 2, Call: func(_ context.Context, r Request) error {
		called <- r
		return <-goOn
	}})
	for i, result := range []error{nil, errors.New("lost")} {
		answered := make(chan error)
		go func() {
			_, _, err := do(t, p, "POST", pods)
			answered <- err
		}()
		if r := <-called; r.Code != 200 || r.Verb != "create" {
			t.Errorf("called for %v", r)
		}
		if n := int(u.committed.Load()); n != i+1 {
			t.Errorf("%d writes committed, want %d", n, i+1)
		}
		select {
		case err := <-answered:
			t.Errorf("the client has its answer already: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		goOn <- result
		if err := <-answered; (err != nil) != (result != nil) {
			t.Errorf("the client got %v after %v", err, result)
		}
	}
}

func TestEndOfAWatch(t *testing.T) {
	u, p := start(t)
	inject(t, p, Rule{Fault: End})
	code, body, err := do(t, p, "GET", pods+"?watch=true")
	if code != 200 || body != "" || err != nil {
		t.Errorf("%d %q %v, want a good end without an event", code, body, err)
	}
	w := watch(t, p, "")
	u.events <- event("ADDED", "a")
	w.next(t)
}

// A client that gave up while a fault held its request back is gone: the server
// gets nothing, and no later rule is used up.
func TestClientThatGaveUp(t *testing.T) {
	u, p := start(t)
	stall := inject(t, p, Rule{Fault: Stall})
	later := inject(t, p, Rule{Fault: Answer, Code: 500})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		doWith(ctx, t, p, "POST", pods, `{"kind":"Pod"}`) //nolint:errcheck // it has to fail
	}()
	eventually(t, "the request is stalled", func() bool { return stall.Struck() == 1 })
	cancel()
	<-gone
	eventually(t, "the proxy has noticed", func() bool {
		r, _ := p.Requests(Match{})
		return len(r) == 1 && r[0].Took > 0
	})
	if later.Struck() != 0 || u.committed.Load() != 0 {
		t.Errorf("a later rule struck %d times, the server got %d requests", later.Struck(), u.committed.Load())
	}
	stall.Remove()
	if code, _, err := do(t, p, "GET", pods); code != 500 || err != nil {
		t.Errorf("%d %v: the later rule is for the next request", code, err)
	}
}
