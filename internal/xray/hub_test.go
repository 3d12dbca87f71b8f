package xray

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/xray/report"
)

func newHub() *Hub {
	return &Hub{counts: map[report.Kind]int{}, underWay: map[int]*Item{}, newest: map[stream][]uint64{}}
}

// looks returns a viewer that has looked once.
func looks(h *Hub) *viewer {
	v := &viewer{seen: -1}
	h.next(v)
	return v
}

func TestASlowViewerGetsCounts(t *testing.T) {
	h := newHub()
	slow, fast := looks(h), looks(h)
	const number = burst + mostItems + 1
	for n := range number {
		h.add(Item{Kind: report.Event, Object: fmt.Sprint(n)})
		b, ok := h.next(fast)
		if !ok || len(b.Items) != 1 || b.Items[0].Object != fmt.Sprint(n) || b.Missed != 0 || b.Counts[report.Event] != n+1 || b.Open != nil {
			t.Fatalf("the fast viewer got %+v", b)
		}
	}
	if b, ok := h.next(fast); ok {
		t.Errorf("nothing has happened, and the fast viewer got %+v", b)
	}
	if b, ok := h.next(slow); !ok || b.Missed != number || b.Counts[report.Event] != number || b.Items != nil || b.Open == nil {
		t.Errorf("after it was slow, it got %+v", b)
	}
	h.add(Item{Kind: report.Event, Object: "one"})
	if b, _ := h.next(slow); b.Missed != 0 || b.Counts[report.Event] != number+1 || len(b.Items) != 1 || b.Items[0].Object != "one" {
		t.Errorf("then it got %+v", b)
	}
}

func TestCountsWithoutItemsWhenThereAreMany(t *testing.T) {
	h := newHub()
	h.add(Item{Kind: report.Fault}) // before anybody looked
	v := &viewer{seen: -1}
	if b, ok := h.next(v); !ok || b.Open == nil || len(b.Items) != 0 || b.Missed != 0 || b.Counts[report.Fault] != 1 {
		t.Errorf("first %+v", b)
	}
	h.underWay[7] = &Item{ID: 7, Verb: "watch-list", Resource: "pods", Events: 3}
	h.underWay[8] = &Item{ID: 8, Verb: "list"}
	happen := func(n int, i Item) batch {
		for range n {
			h.add(i)
		}
		b, _ := h.next(v)
		return b
	}
	if b := happen(burst+mostItems, Item{Kind: report.Begun}); len(b.Items) != burst+mostItems || b.Open != nil || b.Counts[report.Begun] != burst+mostItems {
		t.Errorf("a burst: %d items, %d missed", len(b.Items), b.Missed)
	}
	for range 3 { // as long as there are many
		b := happen(mostItems+1, Item{Kind: report.Step, Missed: 1})
		if b.Items != nil || b.Missed != mostItems+1 || len(b.Open) != 2 || !slices.ContainsFunc(b.Open, func(i Item) bool { return i.ID == 7 && i.Events == 3 }) {
			t.Errorf("more than that: %+v", b)
		}
	}
	if n := h.counts[report.Step]; n != 3*2*(mostItems+1) {
		t.Errorf("%d steps, with those that were missed", n)
	}
	if b := happen(mostItems, Item{Kind: report.Begun}); len(b.Items) != mostItems {
		t.Errorf("as many as always pass: %d items", len(b.Items))
	}
	for range 2 {
		happen(0, Item{})
	}
	if b := happen(3*mostItems, Item{Kind: report.Begun}); len(b.Items) != 3*mostItems {
		t.Errorf("after a rest: %d items", len(b.Items))
	}
}

func TestTheLastItemsAreRemembered(t *testing.T) {
	h := newHub()
	for n := range remembered + 3 {
		h.add(Item{ID: n})
	}
	if got := h.Recording().Items; len(got) != remembered || got[0].ID != 3 || got[remembered-1].ID != remembered+2 {
		t.Errorf("%d items from %d on", len(got), got[0].ID)
	}
}

func TestTooManyViewers(t *testing.T) {
	h := newHub()
	h.ctx = t.Context()
	server := httptest.NewServer(h.Handler())
	defer server.Close()
	dial := func() (*websocket.Conn, int) {
		c, r, err := websocket.Dial(t.Context(), server.URL+"/ws", nil)
		if err == nil {
			t.Cleanup(func() { _ = c.CloseNow() })
		} else if r == nil {
			t.Fatal(err)
		}
		return c, r.StatusCode
	}
	var first *websocket.Conn
	for range mostViewers {
		c, code := dial()
		if code != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", code)
		}
		first = cmp.Or(first, c)
	}
	if _, code := dial(); code != http.StatusServiceUnavailable {
		t.Errorf("one more: status %d", code)
	}
	_ = first.CloseNow()
	if err := poll.Until(t.Context(), 20*time.Millisecond, time.Minute, func(context.Context) error {
		if _, code := dial(); code != http.StatusSwitchingProtocols {
			return fmt.Errorf("after one has left: status %d", code)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestBehind(t *testing.T) {
	h := newHub()
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
