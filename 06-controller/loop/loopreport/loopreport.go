// Package loopreport tells the X-ray of make web what a controller's loop does.
package loopreport

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// Observer returns an observer for loop.Options, or nil if nobody wants to know:
// see package report. Several loops of one process may share it.
func Observer() loop.Observer {
	if r := report.Open(); r != nil {
		return For(r)
	}
	return nil
}

type observer struct {
	reporter *report.Reporter

	mu         sync.Mutex
	loops      []*loop.Loop
	backingOff map[cache.ObjectName]time.Time // until when
}

// For returns an observer that tells a reporter.
func For(r *report.Reporter) loop.Observer {
	o := &observer{reporter: r, backingOff: map[cache.ObjectName]time.Time{}}
	r.State(o.state)
	return o
}

// Observe reports a step.
func (o *observer) Observe(s loop.Step) {
	i := report.Item{Time: s.Time.UnixMilli(), Kind: report.Step, Step: string(s.Kind), Key: s.Key.String(), What: s.What, Reason: s.Reason}
	if s.Kind == loop.BackingOff {
		i.Until = s.Until.UnixMilli()
		o.mu.Lock()
		o.backingOff[s.Key] = s.Until
		o.mu.Unlock()
	}
	o.reporter.Tell(i)
}

// Inspect is called by each new loop.
func (o *observer) Inspect(l *loop.Loop) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loops = append(o.loops, l)
}

func (o *observer) state() report.Item {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := report.Item{Kind: report.State, Queue: &report.Queue{}}
	for _, l := range o.loops {
		s := l.State()
		i.Queue.Waiting += s.Waiting
		i.Queue.Working += s.Working
		i.Workers += s.Workers
		for _, informer := range s.Informers {
			i.Caches = append(i.Caches, report.CacheOf(informer))
		}
	}
	for key, until := range o.backingOff {
		if time.Now().After(until) {
			delete(o.backingOff, key)
		}
	}
	i.Queue.BackingOff = len(o.backingOff)
	return i
}
