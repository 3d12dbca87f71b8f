package faultproxy

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// An exchange is a request that is under way. Proxy.mu guards what changes.
type exchange struct {
	Request
	conn   net.Conn
	cancel context.CancelFunc // ends the request to the server and every pause
	ended  bool               // by Cut, Down or a fault; its handler has still to notice
}

// now returns the request as it is at this moment. The caller holds p.mu.
func (x *exchange) now() Request {
	r := x.Request
	r.Faults = slices.Clone(r.Faults)
	return r
}

// remembered is how many ended requests a proxy keeps.
const remembered = 10_000

// A ring keeps the last requests that have ended.
type ring struct {
	size      int
	requests  []Request
	oldest    int // index, once the ring is full
	forgotten int
}

func (r *ring) add(request Request) {
	if len(r.requests) < r.size {
		r.requests = append(r.requests, request)
		return
	}
	r.requests[r.oldest] = request
	r.oldest = (r.oldest + 1) % r.size
	r.forgotten++
}

// Requests returns the recorded requests that match, in the order in which they
// began. The proxy keeps the last 10,000 that have ended, and all that are under
// way; forgotten is how many older ones it had, which may have matched.
func (p *Proxy) Requests(m Match) (found []Request, forgotten int) {
	p.mu.Lock()
	all := append(make([]Request, 0, len(p.ended.requests)+len(p.open)), p.ended.requests...)
	for x := range p.open {
		all = append(all, x.now())
	}
	forgotten = p.ended.forgotten
	p.mu.Unlock()
	// Without the lock: the match may ask a function of the caller's.
	found = slices.DeleteFunc(all, func(r Request) bool { return !m.matches(r) })
	slices.SortFunc(found, func(a, b Request) int { return a.ID - b.ID })
	return found, forgotten
}

// Count returns how many of the recorded requests match, and how many were forgotten.
func (p *Proxy) Count(m Match) (n, forgotten int) {
	found, forgotten := p.Requests(m)
	return len(found), forgotten
}

// Open returns how many matching requests are being answered: of watches, how many are open.
func (p *Proxy) Open(m Match) int {
	n := 0
	for _, r := range p.underWay() {
		if r.Code == http.StatusOK && m.matches(r) {
			n++
		}
	}
	return n
}

// underWay returns the requests that nothing has ended, as they are now.
func (p *Proxy) underWay() map[*exchange]Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[*exchange]Request, len(p.open))
	for x := range p.open {
		if !x.ended {
			all[x] = x.now()
		}
	}
	return all
}

// A Moment is a point in the life of a request.
type Moment string

// The moments of which observers hear.
const (
	Begun       Moment = "begun"  // the request has come, and nothing was done with it
	EventPassed Moment = "passed" // an event of a watch goes to the client
	FaultStruck Moment = "struck" // a fault is about to be done to it
	Ended       Moment = "ended"  // its answer is complete, or there will be none
)

// An Event is one of a watch.
type Event struct {
	Type                  string // ADDED MODIFIED DELETED BOOKMARK ERROR
	Kind, Namespace, Name string
	ResourceVersion       string
}

// An Observation is what observers hear.
type Observation struct {
	Moment  Moment
	Time    time.Time
	Request Request // as it was at this moment
	Event   Event   // the one that passed, or that the fault has struck
	Fault   Fault   // the one that struck
	Missed  int     // so many observations before this one were lost, because the observer was slow
}

// observerBuffer is how far an observer may be behind.
const observerBuffer = 1024

type observer struct {
	observations chan Observation
	missed       int
}

// Observe returns a channel that tells everything that happens from now on, in
// its order. It is closed when ctx ends, which removes the observer, or with the
// proxy. No request waits for an observer: one that is 1,024 observations
// behind misses the next ones, and is told their number afterwards.
func (p *Proxy) Observe(ctx context.Context) <-chan Observation {
	o := &observer{observations: make(chan Observation, observerBuffer)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.observers == nil { // closed
		close(o.observations)
		return o.observations
	}
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removeObserver(o)
	})
	p.observers[o] = stop
	return o.observations
}

// removeObserver does nothing the second time. The caller holds p.mu.
func (p *Proxy) removeObserver(o *observer) {
	if stop, ok := p.observers[o]; ok {
		stop()
		delete(p.observers, o)
		close(o.observations)
	}
}

// tell tells the observers. The caller holds p.mu, which keeps the order.
func (p *Proxy) tell(o Observation, x *exchange) {
	if len(p.observers) == 0 {
		return
	}
	o.Time, o.Request = time.Now(), x.now()
	for to := range p.observers {
		o.Missed = to.missed
		select {
		case to.observations <- o:
			to.missed = 0
		default:
			to.missed++
		}
	}
}
