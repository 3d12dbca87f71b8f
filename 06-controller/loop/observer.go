package loop

import (
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// An Observer is told every step of a loop. Tests use it, and so can a page that
// shows a controller at work. It is called from many goroutines and must not block.
type Observer interface {
	Observe(Step)
}

// An Inspector is an Observer that also looks at a loop from time to time. New hands
// the loop over.
type Inspector interface {
	Observer
	Inspect(*Loop)
}

// A State is what a loop is like at one moment.
type State struct {
	Waiting, Working int // keys
	Workers          int
	Informers        []cache.SharedIndexInformer // those that Watch got
}

// State may be called at any time.
func (l *Loop) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Waiting: l.queue.Len(), Working: int(l.working.Load()), Workers: max(l.options.Workers, 1), Informers: l.informers}
}

// A Step is something that the loop, or the controller on it, has done.
type Step struct {
	Kind   Kind
	Key    cache.ObjectName // the object in the queue; for Event the object that changed
	Time   time.Time
	Until  time.Time // for BackingOff
	What   string    // the event, the phase's name ("done" for the last one) or what was written
	Reason string    // why the key was queued, backs off or was written
}

// Kind says what a Step is.
type Kind string

// The kinds of steps, in the order in which one change goes through a loop.
const (
	Event      Kind = "event"       // an informer has reported a change
	Queued     Kind = "queued"      // a key was added to the queue
	Phase      Kind = "phase"       // reconciling a key has come to a phase
	Write      Kind = "write"       // something was written
	BackingOff Kind = "backing off" // the key comes back at Until
)

func (l *Loop) observe(s Step) {
	if l.options.Observer == nil {
		return
	}
	s.Time = time.Now()
	l.options.Observer.Observe(s)
}

// Event tells the observer that an informer has reported a change, such as "pod deleted".
func (l *Loop) Event(what string, object cache.ObjectName) {
	l.observe(Step{Kind: Event, Key: object, What: what})
}

// Phase tells the observer how far reconciling a key has come.
func (l *Loop) Phase(key cache.ObjectName, name string) {
	l.observe(Step{Kind: Phase, Key: key, What: name})
}

// Wrote counts a write and tells the observer why it was done. What is a
// label of a metric, so it must be one of a few words, such as "status".
func (l *Loop) Wrote(key cache.ObjectName, what, reason string) {
	l.metrics.writes.WithLabelValues(what).Inc()
	l.observe(Step{Kind: Write, Key: key, What: what, Reason: reason})
}

// observedLimiter tells the observer how long a key has to wait.
type observedLimiter struct {
	workqueue.TypedRateLimiter[cache.ObjectName]
	loop *Loop
}

func (o *observedLimiter) When(key cache.ObjectName) time.Duration {
	d := o.TypedRateLimiter.When(key)
	o.loop.observe(Step{Kind: BackingOff, Key: key, Until: time.Now().Add(d), Reason: "the last try failed"})
	return d
}
