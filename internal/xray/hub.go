// Package xray shows programs at work: what passes between them and the API
// server through the fault proxy, and what those report that know how to.
//
//	hub.go     collects items, and makes batches of them for viewers
//	wire.go    makes items of what the proxy observes
//	owner.go   finds the process that a connection belongs to
//	inside.go  receives what programs report (package report)
//	faults.go  the buttons that break something
//	tours.go   scenarios to run and what to look at
//	handler.go what a page can ask
package xray

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// Item is one line of the X-ray.
type Item = report.Item

const (
	remembered  = 10_000                // items
	interval    = 50 * time.Millisecond // between two batches
	mostItems   = 25                    // in a batch, on average; if there are more, it holds only counts
	burst       = 500                   // so many more pass at once after a rest
	mostViewers = 20
)

// A Hub collects items and hands them to viewers.
type Hub struct {
	proxy   *faultproxy.Proxy
	owners  *owners
	reports *http.Server
	ctx     context.Context // ends with the hub
	stop    context.CancelFunc
	running sync.WaitGroup
	viewers atomic.Int32

	mu       sync.Mutex
	items    []Item              // a ring: item n has the index n % remembered
	total    int                 // of items so far
	counts   map[report.Kind]int // of all of them
	underWay map[int]*Item       // what all items about a request share
	newest   map[stream][]uint64 // resourceVersions of the last events, in their order
}

// A batch is what a viewer gets in one message.
type batch struct {
	Now    int64               `json:"now"`
	Missed int                 `json:"missed"` // so many items are only counted
	Counts map[report.Kind]int `json:"counts"` // of all items so far
	Open   []Item              `json:"open"`   // what is under way, unless the viewer can tell by the items
	Items  []Item              `json:"items"`  // none if there are too many
}

// NewHub observes a proxy, and listens on a Unix socket for programs that report.
func NewHub(proxy *faultproxy.Proxy, socket string) (*Hub, error) {
	ctx, stop := context.WithCancel(context.Background())
	h := &Hub{
		proxy: proxy, owners: &owners{proxy: strings.TrimPrefix(proxy.URL(), "https://"), pids: map[string]func() int{}},
		ctx: ctx, stop: stop, counts: map[report.Kind]int{}, underWay: map[int]*Item{}, newest: map[stream][]uint64{},
	}
	if err := h.listen(socket); err != nil {
		stop()
		return nil, err
	}
	proxy.OnConnect(h.owners.connected)
	observations := proxy.Observe(ctx)
	h.running.Go(func() { h.observe(observations) })
	return h, nil
}

// Close ends the viewers' connections and those of the programs.
func (h *Hub) Close() error {
	h.proxy.OnConnect(nil)
	h.stop()
	err := h.reports.Close()
	h.running.Wait()
	return err
}

// add records an item. The caller holds h.mu.
func (h *Hub) add(i Item) {
	if len(h.items) < remembered {
		h.items = append(h.items, i)
	} else {
		h.items[h.total%remembered] = i
	}
	h.total++
	h.counts[i.Kind]++
	h.counts[report.Step] += i.Missed
}

// last returns the last n items, at most all that are remembered. The caller holds h.mu.
func (h *Hub) last(n int) []Item {
	n = min(n, len(h.items))
	items := make([]Item, 0, n)
	for at := h.total - n; at < h.total; at++ {
		items = append(items, h.items[at%remembered])
	}
	return items
}

// A Recording is what the page can save, open and play back.
type Recording struct {
	Version int    `json:"version"`
	Items   []Item `json:"items"`
}

// Recording returns what the hub remembers, the oldest first.
func (h *Hub) Recording() Recording {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Recording{Version: 1, Items: h.last(remembered)}
}

// A viewer is one window: how far it has come, and how many items it may get beyond the average.
type viewer struct{ seen, spare int }

// next returns what has happened since a viewer looked last, and false if nothing has.
// A new viewer (seen is -1) gets only what is under way.
func (h *Hub) next(v *viewer) (batch, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.total - v.seen
	v.spare += mostItems - n
	if n == 0 { // most of the time, so it must cost nothing
		v.spare = min(v.spare, burst)
		return batch{}, false
	}
	b := batch{Now: time.Now().UnixMilli(), Counts: maps.Clone(h.counts), Items: []Item{}}
	switch {
	case v.seen < 0:
		b.Open = h.open()
		v.spare = burst
	case v.spare >= 0:
		b.Items = h.last(n)
	default:
		b.Missed, b.Items, b.Open = n, nil, h.open()
	}
	v.seen, v.spare = h.total, min(max(v.spare, 0), burst)
	return b, true
}

// open returns what is under way. The caller holds h.mu.
func (h *Hub) open() []Item {
	open := make([]Item, 0, len(h.underWay))
	for _, r := range h.underWay {
		open = append(open, *r)
	}
	return open
}
