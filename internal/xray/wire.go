package xray

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// observe makes items of what the proxy observes, until the hub or the proxy is closed.
// When it has come to the last one it rests, because no window looks that often: to be
// woken up by each observation would cost more than to make an item of it.
func (h *Hub) observe(observations <-chan faultproxy.Observation) {
	for o := range observations {
		pid := 0
		if o.Moment == faultproxy.Begun {
			pid = h.owners.of(o.Request.Remote) // without the lock: it may take some milliseconds
		}
		h.mu.Lock()
		if o.Missed > 0 {
			h.forgetEnded()
		}
		h.observed(o, pid)
		h.mu.Unlock()
		if len(observations) == 0 {
			time.Sleep(10 * time.Millisecond) // the proxy keeps what comes meanwhile
		}
	}
}

// observed makes an item of one observation. The caller holds h.mu.
func (h *Hub) observed(o faultproxy.Observation, pid int) {
	r := h.underWay[o.Request.ID]
	if r == nil {
		r = &Item{
			Time: o.Time.UnixMilli(), Program: programOf(o.Request.UserAgent), PID: pid, ID: o.Request.ID, Verb: o.Request.Verb, Group: clip(o.Request.Group), Resource: clip(o.Request.Resource),
			Namespace: clip(o.Request.Namespace), Name: clip(o.Request.Name), Path: clip(o.Request.Path), // without the query
		}
		if o.Moment != faultproxy.Ended {
			h.underWay[o.Request.ID] = r
		}
	}
	r.Events = o.Request.Events
	i := *r
	i.Time, i.Events = o.Time.UnixMilli(), 0
	switch o.Moment {
	case faultproxy.Begun:
		i.Kind = report.Begun
	case faultproxy.EventPassed:
		i.Kind = report.Event
	case faultproxy.FaultStruck:
		i.Kind, i.Fault = report.Fault, string(o.Fault)
	case faultproxy.Ended:
		i.Kind, i.Code, i.Took, i.Events = report.Ended, o.Request.Code, float64(o.Request.Took)/float64(time.Millisecond), o.Request.Events
		delete(h.underWay, o.Request.ID)
	}
	if e := o.Event; e.Type != "" {
		i.Type, i.Object, i.ResourceVersion = e.Type, clip(e.Name), e.ResourceVersion
		if e.Namespace != "" {
			i.Namespace = clip(e.Namespace)
		}
		if o.Fault != faultproxy.Drop && e.Type != "ERROR" {
			h.passed(i)
		}
	}
	h.add(i)
}

// forgetEnded forgets the requests of whose end the hub has not heard, because
// it was slow. The caller holds h.mu.
func (h *Hub) forgetEnded() {
	ended, _ := h.proxy.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Took > 0 }})
	for _, r := range ended {
		delete(h.underWay, r.ID)
	}
}

// programOf returns the name in a User-Agent such as "kubectl/v1.36.3 (linux/amd64) kubernetes/abc".
func programOf(userAgent string) string {
	if end := strings.IndexAny(userAgent, "/ "); end >= 0 {
		userAgent = userAgent[:end]
	}
	if userAgent == "" {
		return "(no name)"
	}
	return clip(userAgent)
}

// clip keeps what is remembered small, whatever a client sends.
func clip(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// A stream is where events of one resource go.
type stream struct{ program, group, resource string }

// passed notes how new the events are that a program has got. The caller holds h.mu.
func (h *Hub) passed(i Item) {
	const most = 1000 // streams, and versions of each
	version, err := strconv.ParseUint(i.ResourceVersion, 10, 64)
	to := stream{i.Program, i.Group, i.Resource}
	versions := h.newest[to]
	if err != nil || len(versions) > 0 && version <= versions[len(versions)-1] {
		return // another watch of the same program has had it
	}
	if len(h.newest) >= most {
		clear(h.newest)
	}
	if len(versions) == most {
		versions = slices.Delete(versions, 0, most/2)
	}
	h.newest[to] = append(versions, version)
}

// behind returns how many events a program has got that a cache does not show
// yet. The caller holds h.mu.
func (h *Hub) behind(program string, c report.Cache) int {
	version, err := strconv.ParseUint(c.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	n := 0
	for to, versions := range h.newest {
		if to.program == program && to.resource == c.Resource {
			at, _ := slices.BinarySearch(versions, version+1)
			n += len(versions) - at
		}
	}
	return n
}
