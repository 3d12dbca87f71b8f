package xray_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/xray"
)

// tour runs a tour to its end, and returns all that the hub has seen.
func (r *room) tour(name string) []xray.Item {
	r.t.Helper()
	command, ok := r.Hub.Tour(name)
	if !ok {
		r.t.Fatalf("there is no tour %s", name)
	}
	c := r.command(command)
	c.Timeout = 10 * time.Minute // programs may have to be built
	if result := r.Run(c); result.ExitCode != 0 {
		r.t.Fatalf("%s: exit code %d\n%s%s", command, result.ExitCode, result.Stdout, result.Stderr)
	}
	_, items := r.Recording()
	return items
}

func count(items []xray.Item, f func(xray.Item) bool) (n int) {
	for _, i := range items {
		if f(i) {
			n++
		}
	}
	return n
}

func TestTourEdgeVsLevel(t *testing.T) {
	t.Parallel()
	items := enter(t).tour("edge-vs-level")
	var dropped int64
	for _, style := range []string{"keeper-edge", "keeper-level"} {
		of := func(f func(xray.Item) bool) int {
			return count(items, func(i xray.Item) bool { return i.Program == style && f(i) })
		}
		if n := of(func(i xray.Item) bool {
			dropped = max(dropped, i.Time)
			return i.Kind == "fault" && i.Fault == "drop" && i.Type == "DELETED"
		}); n != 1 {
			t.Errorf("%s: %d events dropped", style, n)
		}
		want := map[string]int{"keeper-edge": 3, "keeper-level": 4}[style]
		if n := of(func(i xray.Item) bool { return i.Kind == "begun" && i.Verb == "create" }); n != want {
			t.Errorf("%s: %d creates, want %d", style, n, want)
		}
	}
	if n := count(items, func(i xray.Item) bool { return i.Program == "keeper-level" && i.Kind == "begun" && i.Verb == "list" }); n < 3 {
		t.Errorf("keeper-level has listed %d times", n)
	}
}

func TestTourTombstone(t *testing.T) {
	t.Parallel()
	items := enter(t).tour("tombstone")
	own := func(f func(xray.Item) bool) func(xray.Item) bool {
		return func(i xray.Item) bool { return i.Program == "tombstones" && f(i) }
	}
	for what, f := range map[string]func(xray.Item) bool{
		"the cache holds one ConfigMap": func(i xray.Item) bool { return len(i.Caches) == 1 && i.Caches[0].Objects == 1 },
		"the watch is cut":              func(i xray.Item) bool { return i.Fault == "cut" },
		"410":                           func(i xray.Item) bool { return i.Fault == "error-event" },
		"the list stalls":               func(i xray.Item) bool { return i.Fault == "stall" && i.Verb == "watch-list" },
		"the program has ended":         func(i xray.Item) bool { return i.Kind == "program" && i.What == "ended" },
	} {
		if count(items, own(f)) == 0 {
			t.Errorf("not seen: %s", what)
		}
	}
	if n := count(items, own(func(i xray.Item) bool { return i.Kind == "event" && i.Type == "DELETED" })); n != 0 {
		t.Errorf("%d DELETED events have passed", n)
	}
	if n := count(items, func(i xray.Item) bool { return i.Program == "kubectl" && i.Verb == "delete" && i.Name == "tomb" }); n == 0 {
		t.Error("kubectl has not deleted it")
	}
}

func TestTourHotLoop(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.define()
	items := r.tour("hot-loop")
	updates := func(code int) int {
		return count(items, func(i xray.Item) bool {
			return i.Program == "find-the-bugs" && i.Kind == "ended" && i.Verb == "update" && i.Resource == "deployments" && i.Code == code
		})
	}
	if good, bad := updates(http.StatusOK), updates(http.StatusInternalServerError); good < 5 || bad < 20 { // with pauses that double from 5 ms, ten of them fit in
		t.Errorf("%d updates, and %d in vain", good, bad)
	}
	if n := count(items, func(i xray.Item) bool { return i.Step == "backing off" }); n != 0 {
		t.Errorf("%d keys back off", n)
	}
	if count(items, func(i xray.Item) bool { return i.Kind == "state" && i.Queue != nil && i.Workers == 2 }) == 0 {
		t.Error("the queue and its two workers are not seen")
	}
}

func TestTours(t *testing.T) {
	t.Parallel()
	r := enter(t)
	resp, err := http.Get(r.url + "/tours/tours.json")
	fatal.If(t, err)
	defer resp.Body.Close()
	var tours []struct {
		Name, Title string
		Look        []string
	}
	if err := json.NewDecoder(resp.Body).Decode(&tours); err != nil || len(tours) != 3 {
		t.Fatalf("%d tours, %v", len(tours), err)
	}
	for _, tour := range tours {
		if _, ok := r.Hub.Tour(tour.Name); !ok || tour.Title == "" || len(tour.Look) < 3 || len(tour.Look) > 5 {
			t.Errorf("%+v", tour)
		}
	}
	for _, name := range []string{"none", "../tours_test", "", "hot-loop.sh; true"} {
		if command, ok := r.Hub.Tour(name); ok {
			t.Errorf("%q", command)
		}
	}
	command, _ := r.Hub.Tour(tours[0].Name)
	c := r.command(command)
	c.Env = append(c.Env, "WORKSHOP_XRAY=")
	if result := r.Run(c); result.ExitCode == 0 || !strings.Contains(result.Stderr, "make web") {
		t.Errorf("without the X-ray: %d %s", result.ExitCode, result.Stderr)
	}
}

// define has the definitions of step 05 for as long as the test needs them.
func (r *room) define() {
	r.t.Helper()
	crdtest.Share(r.t, r.Env, "../../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	crdtest.Share(r.t, r.Env, "../../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml")
}
