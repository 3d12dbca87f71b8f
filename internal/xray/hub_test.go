package xray

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/xray/report"
)

// still is a hub that sends only when the test calls flush.
func still() *Hub {
	return &Hub{wake: make(chan struct{}, 1), viewers: map[*viewer]struct{}{}, underWay: map[int]*Item{}, newest: map[stream][]uint64{}}
}

func next(t *testing.T, v *viewer) (b batch) {
	t.Helper()
	select {
	case frame := <-v.frames:
		if err := json.Unmarshal(frame, &b); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatal("no frame")
	}
	return b
}

func TestASlowViewerIsToldWhatItMissed(t *testing.T) {
	h := still()
	slow, fast := h.newViewer(), h.newViewer()
	const more = 7
	for n := range mostBehind + more {
		h.add(Item{Kind: report.Event, Object: fmt.Sprint(n)})
		h.flush()
		if b := next(t, fast); len(b.Items) != 1 || b.Missed != 0 || b.Counts.Events != 1 {
			t.Fatalf("the fast viewer got %+v", b)
		}
	}
	for n := range mostBehind {
		if b := next(t, slow); b.Missed != 0 || b.Items[0].Object != fmt.Sprint(n) {
			t.Fatalf("frame %d: %+v", n, b)
		}
	}
	if len(h.wake) != 1 {
		t.Error("it would learn of that only with the next item")
	}
	h.flush()
	if b := next(t, slow); b.Missed != more || b.Counts.Events != more || len(b.Items) != 0 || b.Open == nil {
		t.Errorf("after it was slow, it got %+v", b)
	}
	h.add(Item{Kind: report.Event})
	h.flush()
	if b := next(t, slow); b.Missed != 0 || b.Counts.Events != 1 || len(b.Items) != 1 {
		t.Errorf("then it got %+v", b)
	}
	if len(fast.frames) != 1 {
		t.Errorf("the fast viewer got %d frames", len(fast.frames))
	}
}

func TestCountsWithoutItemsWhenThereAreMany(t *testing.T) {
	h := still()
	v := h.newViewer()
	h.flush()
	if b := next(t, v); b.Open == nil || len(b.Items) != 0 {
		t.Errorf("first %+v", b)
	}
	h.underWay[7] = &Item{ID: 7, Verb: "watch-list", Resource: "pods", Events: 3}
	h.underWay[8] = &Item{ID: 8, Verb: "list"}
	for range mostItems {
		h.add(Item{Kind: report.Begun})
	}
	h.flush()
	if b := next(t, v); len(b.Items) != mostItems || b.Open != nil || b.Counts.Requests != mostItems {
		t.Errorf("as many as it may hold: %+v", b)
	}
	for range mostItems + 1 {
		h.add(Item{Kind: report.Fault})
	}
	h.flush()
	b := next(t, v)
	if b.Items != nil || b.Counts.Faults != mostItems+1 || len(b.Open) != 1 || b.Open[0].ID != 7 || b.Open[0].Events != 3 {
		t.Errorf("more than that: %+v", b)
	}
}

func TestTheLastItemsAreRemembered(t *testing.T) {
	h := still()
	for n := range remembered + 3 {
		h.add(Item{ID: n})
	}
	if got := h.recorded(); len(got) != remembered || got[0].ID != 3 || got[remembered-1].ID != remembered+2 {
		t.Errorf("%d items from %d on", len(got), got[0].ID)
	}
}

func TestTooManyViewers(t *testing.T) {
	h := still()
	for range mostViewers {
		if h.newViewer() == nil {
			t.Fatal("refused")
		}
	}
	if h.newViewer() != nil {
		t.Error("one more was accepted")
	}
}

func TestBehind(t *testing.T) {
	h := still()
	for _, version := range []string{"5", "7", "6", "7", "9", "strange"} { // 6 and 7 again: another watch had them
		h.passed(Item{Program: "p", Resource: "pods", ResourceVersion: version})
	}
	for version, want := range map[string]int{"4": 3, "5": 2, "6": 2, "7": 1, "9": 0, "10": 0, "": 0} {
		if got := h.behind("p", report.Cache{Resource: "pods", ResourceVersion: version}); got != want {
			t.Errorf("at version %s: %d behind, want %d", version, got, want)
		}
	}
	if got := h.behind("other", report.Cache{Resource: "pods", ResourceVersion: "1"}); got != 0 {
		t.Errorf("another program is %d behind", got)
	}
}

func TestProgramOf(t *testing.T) {
	for agent, want := range map[string]string{
		"kubectl/v1.36.3 (linux/amd64) kubernetes/$Format": "kubectl", "curl/8": "curl", "keeper-edge": "keeper-edge", "a b": "a", "": "(no name)",
	} {
		if got := programOf(agent); got != want {
			t.Errorf("%q: %q", agent, got)
		}
	}
	if got := programOf(strings.Repeat("ä", 10_000)); len(got) > 310 {
		t.Errorf("%d bytes", len(got))
	}
}
