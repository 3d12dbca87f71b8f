// Package xray shows programs at work: what passes between them and the API
// server through the fault proxy, and what those report that know how to.
//
//	hub.go     collects items, and sends them to viewers in batches
//	wire.go    makes items of what the proxy observes
//	owner*.go  finds the process that a connection belongs to
//	inside.go  receives what programs report (package report)
//	faults.go  the buttons that break something
//	tours.go   scenarios to run and what to look at
//	handler.go what a page can ask
package xray

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// Item is one line of the X-ray.
type Item = report.Item

const (
	remembered  = 10_000                // items
	interval    = 50 * time.Millisecond // between two batches
	mostItems   = 25                    // in a batch; if there are more, it holds only counts
	mostBehind  = 40                    // batches: how far a viewer may be behind
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
	wake    chan struct{} // something is to be sent

	mu       sync.Mutex
	items    []Item // a ring
	oldest   int    // index, once the ring is full
	viewers  map[*viewer]struct{}
	underWay map[int]*Item       // what all items about a request share
	newest   map[stream][]uint64 // resourceVersions of the last events, in their order

	// The next batch.
	pending []Item
	number  int // of items, including those that are left out of pending
	counts  Counts
}

// Counts say how much has happened.
type Counts struct {
	Requests int `json:"requests"`
	Events   int `json:"events"`
	Faults   int `json:"faults"`
	Steps    int `json:"steps"`
}

func (c *Counts) add(more Counts) {
	c.Requests += more.Requests
	c.Events += more.Events
	c.Faults += more.Faults
	c.Steps += more.Steps
}

func (c *Counts) count(i Item) {
	switch i.Kind {
	case report.Begun:
		c.Requests++
	case report.Event:
		c.Events++
	case report.Fault:
		c.Faults++
	case report.Step:
		c.Steps++
	case report.Program:
		c.Steps += i.Missed
	}
}

// A batch is what a viewer gets in one message.
type batch struct {
	Now    int64  `json:"now"`
	Missed int    `json:"missed"` // so many items before this batch were not sent, because the viewer was slow
	Counts Counts `json:"counts"`
	Open   []Item `json:"open"`  // the open watches, unless the viewer can tell by the items
	Items  []Item `json:"items"` // none if there are more than mostItems
}

type viewer struct {
	frames chan []byte
	fresh  bool   // has got nothing yet
	missed int    // items
	owed   Counts // of what was missed
}

// NewHub observes a proxy, and listens on a Unix socket for programs that report.
func NewHub(proxy *faultproxy.Proxy, socket string) (*Hub, error) {
	ctx, stop := context.WithCancel(context.Background())
	h := &Hub{
		proxy: proxy, owners: &owners{proxy: strings.TrimPrefix(proxy.URL(), "https://"), pids: map[string]func() int{}},
		ctx: ctx, stop: stop, wake: make(chan struct{}, 1), viewers: map[*viewer]struct{}{},
		underWay: map[int]*Item{}, newest: map[stream][]uint64{},
	}
	if err := h.listen(socket); err != nil {
		stop()
		return nil, err
	}
	proxy.OnConnect(h.owners.connected)
	observations := proxy.Observe(ctx)
	h.running.Go(func() { h.observe(observations) })
	h.running.Go(h.send)
	return h, nil
}

// Close ends the viewers' connections and those of the programs.
func (h *Hub) Close() error {
	h.proxy.OnConnect(nil)
	h.stop()
	err := h.reports.Close()
	h.running.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// add records an item, and has it sent. The caller holds h.mu.
func (h *Hub) add(i Item) {
	if len(h.items) < remembered {
		h.items = append(h.items, i)
	} else {
		h.items[h.oldest] = i
		h.oldest = (h.oldest + 1) % remembered
	}
	if len(h.viewers) == 0 {
		return
	}
	h.number++
	h.counts.count(i)
	if h.number <= mostItems {
		h.pending = append(h.pending, i)
	}
	h.wakeUp()
}

func (h *Hub) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// recorded returns what the hub remembers, the oldest first.
func (h *Hub) recorded() []Item {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append(make([]Item, 0, len(h.items)), h.items[h.oldest:]...), h.items[:h.oldest]...)
}

// send sends a batch when something has happened, the first one at once and
// later ones at intervals.
func (h *Hub) send() {
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.wake:
		}
		h.flush()
		select {
		case <-h.ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// flush puts a batch into each viewer's buffer.
func (h *Hub) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	next, number := batch{Now: time.Now().UnixMilli(), Counts: h.counts, Items: h.pending}, h.number
	if number > mostItems {
		next.Items, next.Open = nil, h.openWatches()
	}
	h.pending, h.number, h.counts = nil, 0, Counts{}
	var shared []byte // most viewers get the same
	for v := range h.viewers {
		if number == 0 && !v.fresh && v.missed == 0 {
			continue
		}
		frame := shared
		if own := next; v.fresh || v.missed > 0 {
			own.Missed, own.Open = v.missed, h.openWatches()
			own.Counts.add(v.owed)
			frame = encode(own)
		} else if shared == nil {
			shared = encode(next)
			frame = shared
		}
		select {
		case v.frames <- frame:
			*v = viewer{frames: v.frames}
		default:
			v.missed += number
			v.owed.add(next.Counts)
			h.wakeUp() // it is told as soon as it has caught up, even if nothing else happens
		}
	}
}

func encode(b batch) []byte {
	data, _ := json.Marshal(b) // there is nothing in a batch that JSON does not know
	return data
}

// openWatches returns the open watches. The caller holds h.mu.
func (h *Hub) openWatches() []Item {
	open := []Item{}
	for _, r := range h.underWay {
		if strings.HasPrefix(r.Verb, "watch") {
			open = append(open, *r)
		}
	}
	return open
}

// newViewer returns nil if there are too many.
func (h *Hub) newViewer() *viewer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.viewers) >= mostViewers {
		return nil
	}
	v := &viewer{frames: make(chan []byte, mostBehind), fresh: true}
	h.viewers[v] = struct{}{}
	h.wakeUp()
	return v
}

func (h *Hub) remove(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
	if len(h.viewers) == 0 {
		h.pending, h.number, h.counts = nil, 0, Counts{}
	}
}
