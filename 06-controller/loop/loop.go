// Package loop is what controllers share: a queue, its workers, an orderly stop,
// metrics and health. It knows nothing about the objects that they work on. Read it
// in this order:
//
//	Watch     informers call handlers; a handler calls Add with the key of the object to look at
//	Run       fills the caches, starts the workers, and stops everything in the right order
//	next      takes one key from the queue, and decides what follows from the result
//	serve.go  /healthz, /readyz and /metrics; events.go a recorder of Events
//
// What the reconcile function of a controller needs stands beside it: writes.go says
// whether a cache shows the controller's own writes, once.go makes clients for workers,
// answers.go tells errors apart, away.go waits for an API server that restarts, and
// parallel.go does many things at once.
//
// The loop is level-triggered: the queue holds keys, not events. Whoever gets a
// key looks at the caches for what is true now, so that a lost, repeated or late
// event does no harm. controller-runtime offers the same with much more around it.
package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/validation"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Grace is how long a stop waits for the work in flight before it cancels that work's context.
const Grace = 5 * time.Second

// Reconcile brings one object to the state that it should have. It is never
// called twice at the same time for the same key.
//
// After an error the key comes back later and later, or when the server's
// Retry-After ends. Without an error, or with ErrBehind, the key comes back after the
// returned duration, or, if that is zero, with the next event.
type Reconcile func(ctx context.Context, key cache.ObjectName) (again time.Duration, err error)

// Options are what a program lets its user choose.
type Options struct {
	Workers  int      // how many keys are worked on at the same time; 1 if zero
	Listen   string   // the address for health and metrics; no listener if empty
	Observer Observer // is told every step; nil for none

	// Begin holds the workers back until it is closed, while the informers fill the
	// caches and keep them fresh: a standby that waits for its turn. Nil for no wait.
	Begin <-chan struct{}
	// Registry receives the metrics. If it is nil, the loop makes one, with those
	// of the process. A program with several loops gives all of them the same one.
	Registry *prometheus.Registry
}

// A Loop calls Reconcile for every key that was added.
type Loop struct {
	name      string
	reconcile Reconcile
	options   Options
	queue     workqueue.TypedRateLimitingInterface[cache.ObjectName]
	synced    []cache.DoneChecker
	later     []func() error // connects a handler
	ready     atomic.Bool
	metrics   *metrics
	working   atomic.Int64 // keys
	alarmed   sync.Map     // what the last alarm of a key was about, if it would be the same again

	mu        sync.Mutex
	asleep    map[cache.ObjectName]time.Time // the server has asked to be left alone until then
	informers []cache.SharedIndexInformer
}

// New returns a loop that does nothing before Run. The name appears in metrics and logs.
func New(name string, reconcile Reconcile, options Options) *Loop {
	l := &Loop{name: name, reconcile: reconcile, options: options, metrics: newMetrics(name, options.Registry), asleep: map[cache.ObjectName]time.Time{}}
	// The default rate limiter also has a bucket of 10 tries a second for all keys
	// together. Here each key only waits for its own failures.
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](10*time.Millisecond, time.Minute)
	l.queue = workqueue.NewTypedRateLimitingQueueWithConfig(&observedLimiter{backoff, l},
		workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: name, MetricsProvider: l.metrics})
	if i, ok := options.Observer.(Inspector); ok {
		i.Inspect(l)
	}
	return l
}

// Watch connects a handler to an informer. Run waits until the handler, too,
// has seen everything that was there at the start.
func (l *Loop) Watch(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	l.mu.Lock()
	l.informers = append(l.informers, informer)
	l.mu.Unlock()
	connect := func() error {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("adding an event handler: %w", err)
		}
		l.synced = append(l.synced, registration.HasSyncedChecker())
		return nil
	}
	if l.options.Begin == nil {
		return connect()
	}
	// A standby only fills its caches: with a handler, its queue would hold every key that there has
	// ever been. A handler that comes later is told all that the cache holds.
	l.later = append(l.later, connect)
	l.synced = append(l.synced, informer.HasSyncedChecker())
	return nil
}

// Each returns a handler that calls f with the name of the object of each event, for Watch.
// A deletion that nobody has seen (a tombstone) has a name, too.
func Each(f func(cache.ObjectName)) cache.ResourceEventHandler {
	handle := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			f(name)
		} else {
			utilruntime.HandleError(err)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, obj any) { handle(obj) }, DeleteFunc: handle}
}

// Add puts a key into the queue. A key that is waiting there already is not
// added twice; one that is being worked on comes back when that work is done.
func (l *Loop) Add(key cache.ObjectName, reason string) {
	l.observe(Step{Kind: Queued, Key: key, Reason: reason})
	l.queue.Add(key)
}

// CheckFlags refuses a namespace that cannot exist, whose caches would never be filled, and a
// resync period in which a program would do nothing else than look at everything: less than a
// second, but for zero, which means never. An empty namespace means all.
func CheckFlags(namespace string, resync time.Duration) error {
	if wrong := validation.ValidateNamespaceName(namespace, false); namespace != "" && len(wrong) > 0 {
		return fmt.Errorf("-namespace %s: %s", namespace, wrong[0])
	}
	if resync != 0 && resync < time.Second {
		return fmt.Errorf("-resync %s: it has to be a second at least, or 0 for never", resync)
	}
	return nil
}

// Informers is what Run needs of a shared informer factory.
type Informers interface {
	StartWithContext(ctx context.Context)
}

// Run works until ctx ends. Then the workers finish the keys being processed, but
// take no further ones, and only after that do the informers stop.
func (l *Loop) Run(ctx context.Context, informers ...Informers) error {
	logger := klog.FromContext(ctx)
	server, err := l.serve(logger)
	if err != nil {
		return err
	}
	defer server.stop()

	// Whatever is in flight when ctx ends may finish, so work has a context of its own.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel() // nobody waits for an informer, which may sleep for a minute between two tries
	for _, i := range informers {
		i.StartWithContext(work)
	}
	defer l.queue.ShutDown()
	if !cache.WaitFor(ctx, "the caches of "+l.name, l.synced...) {
		return nil // asked to stop before there was any work
	}
	l.ready.Store(true)
	if l.options.Begin != nil {
		select {
		case <-l.options.Begin:
		case <-ctx.Done():
			l.ready.Store(false)
			return nil
		}
		for _, connect := range l.later {
			if err := connect(); err != nil {
				l.ready.Store(false)
				return err
			}
		}
		if !cache.WaitFor(ctx, "", l.synced...) {
			l.ready.Store(false)
			return nil
		}
	}
	logger.Info("Working", "workers", max(l.options.Workers, 1))

	var workers sync.WaitGroup
	for range max(l.options.Workers, 1) {
		workers.Go(func() {
			for l.next(ctx, work) {
			}
		})
	}
	<-ctx.Done()
	l.ready.Store(false)
	l.queue.ShutDown()
	logger.Info("Stopping: waiting for the work in flight")
	late := time.AfterFunc(Grace, func() {
		logger.Info("Stopping: cancelling the work in flight", "after", Grace)
		cancel()
	})
	defer late.Stop()
	workers.Wait()
	logger.Info("Stopped")
	return nil
}

// next works on one key. It returns false when there will be no more.
func (l *Loop) next(ctx, work context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	if ctx.Err() != nil {
		return true // after ShutDown the queue still hands out what it holds: leave that to the next process
	}
	if rest := l.sleeps(key); rest > 0 {
		l.queue.AddAfter(key, rest)
		return true
	}

	logger := klog.LoggerWithValues(klog.FromContext(work), "object", key)
	l.working.Add(1)
	defer l.working.Add(-1)
	again, err := l.protected(klog.NewContext(work, logger), key)
	l.metrics.reconciled(err)
	if errors.Is(err, ErrBehind) {
		if again > 0 {
			l.lookAgain(key, again, "waits for the cache")
		}
		return true
	}
	if err == nil {
		l.queue.Forget(key) // the next failure is a first one again
		if again > 0 {
			l.lookAgain(key, again, "looks again")
		} else {
			l.alarmed.Delete(key)
		}
		return true
	}
	switch {
	case stale(err):
		logger.V(2).Info("Trying again: what was known is out of date", "err", err)
	case l.alarmedBefore(key, err):
		logger.V(2).Info("Trying again later, as before", "err", err)
	case work.Err() == nil:
		logger.Error(err, "Trying again later", "failures", l.queue.NumRequeues(key)+1)
	}
	if d := RetryAfter(err); d > 0 {
		l.sleep(key, d, err)
		return true
	}
	if away(err) {
		l.lookAgain(key, untilNextLook(), "the API server is away")
		return true
	}
	l.queue.AddRateLimited(key)
	return true
}

// alarmedBefore reports whether a key met the same refusal, or the same absence of
// the API server, the last time.
func (l *Loop) alarmedBefore(key cache.ObjectName, err error) bool {
	said := Refused(err)
	if away(err) {
		said = "the API server is away"
	}
	if said == "" {
		return false
	}
	before, _ := l.alarmed.Swap(key, said)
	last, known := before.(string)
	return known && SameWords(last, said)
}

// protected calls reconcile, and turns a panic into an error.
func (l *Loop) protected(ctx context.Context, key cache.ObjectName) (again time.Duration, err error) {
	err = guarded(func() (err error) {
		again, err = l.reconcile(ctx, key)
		return err
	})
	if err == nil && again == 0 {
		l.Phase(key, "done")
	}
	return again, err
}

// lookAgain brings a key back after a time, or with its next event.
func (l *Loop) lookAgain(key cache.ObjectName, after time.Duration, reason string) {
	l.observe(Step{Kind: BackingOff, Key: key, Until: time.Now().Add(after), Reason: reason})
	l.queue.AddAfter(key, after)
}

// sleep keeps a key away from the server until its Retry-After ends, whatever
// events arrive in the meantime. No worker waits for that.
func (l *Loop) sleep(key cache.ObjectName, d time.Duration, err error) {
	until := time.Now().Add(d)
	l.mu.Lock()
	l.asleep[key] = until
	l.mu.Unlock()
	l.observe(Step{Kind: BackingOff, Key: key, Until: until, Reason: err.Error()})
	l.queue.AddAfter(key, d)
}

// sleeps returns how much longer a key must be left alone.
func (l *Loop) sleeps(key cache.ObjectName) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.asleep[key]
	if !ok {
		return 0
	}
	rest := time.Until(until)
	if rest <= 0 {
		delete(l.asleep, key)
	}
	return rest
}

// Register adds a program's own metrics to /metrics. Give them no label whose
// values grow with the number of objects.
func (l *Loop) Register(collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := l.metrics.registry.Register(c); err != nil {
			return fmt.Errorf("registering a metric: %w", err)
		}
	}
	return nil
}
