package report

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Informer reports the events and the cache of an informer. Call it before the
// informer starts.
func Informer(informer cache.SharedIndexInformer) {
	if r := Open(); r != nil {
		r.events(informer)
		r.State(func() Item { return Item{Kind: State, Caches: []Cache{CacheOf(informer)}} })
	}
}

// Loop is LoopUpTo for a queue with client-go's default rate limiter.
func Loop[T comparable](queue *workqueue.TypedRateLimitingInterface[T], informers ...cache.SharedIndexInformer) {
	LoopUpTo(1000*time.Second, queue, informers...)
}

// LoopUpTo reports an informer and the queue that its handlers fill, whose rate
// limiter has to double 5 milliseconds with each failure, up to longest. Call it
// before the informer starts and before anybody uses the queue.
func LoopUpTo[T comparable](longest time.Duration, queue *workqueue.TypedRateLimitingInterface[T], informers ...cache.SharedIndexInformer) {
	r := Open()
	if r == nil {
		return
	}
	q := &observedQueue[T]{TypedRateLimitingInterface: *queue, reporter: r, longest: longest}
	*queue = q
	for _, informer := range informers {
		r.events(informer)
	}
	r.State(func() Item {
		i := q.state()
		for _, informer := range informers {
			i.Caches = append(i.Caches, CacheOf(informer))
		}
		return i
	})
}

// CacheOf returns the state of an informer's cache.
func CacheOf(informer cache.SharedIndexInformer) Cache {
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kindOf(informer)})
	return Cache{Resource: plural.Resource, Objects: len(informer.GetStore().ListKeys()), ResourceVersion: informer.LastSyncResourceVersion()}
}

// kindOf returns what an informer informs of. The name says it: "SharedIndexInformer *v1.Pod".
func kindOf(informer cache.SharedIndexInformer) string {
	name := informer.HasSyncedChecker().Name()
	return name[strings.LastIndexByte(name, '.')+1:]
}

// events reports each change of which an informer tells its handlers.
func (r *Reporter) events(informer cache.SharedIndexInformer) {
	kind := kindOf(informer)
	tell := func(obj any, what string) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
		if err != nil {
			return // no object, so no change of one
		}
		if _, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			what += " (a tombstone)"
		}
		r.Tell(Item{Kind: Step, Step: "event", Key: key, What: kind + " " + what})
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // it fails only if the informer has ended
		AddFunc:    func(obj any) { tell(obj, "added") },
		UpdateFunc: func(_, obj any) { tell(obj, "updated") },
		DeleteFunc: func(obj any) { tell(obj, "deleted") },
	})
}

// An observedQueue reports what happens to its keys.
type observedQueue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	reporter *Reporter
	longest  time.Duration // that a key waits after a failure

	idle, working atomic.Int64 // workers
	backingOff    sync.Map     // of keys, until when
}

func (q *observedQueue[T]) tell(key T, i Item) {
	i.Kind, i.Key = Step, fmt.Sprint(key)
	q.reporter.Tell(i)
}

func (q *observedQueue[T]) Add(key T) {
	q.tell(key, Item{Step: "queued"})
	q.TypedRateLimitingInterface.Add(key)
}

func (q *observedQueue[T]) Get() (T, bool) {
	q.idle.Add(1)
	key, shutdown := q.TypedRateLimitingInterface.Get()
	q.idle.Add(-1)
	if !shutdown {
		q.working.Add(1)
		q.backingOff.Delete(key)
		q.tell(key, Item{Step: "phase", What: "work"})
	}
	return key, shutdown
}

func (q *observedQueue[T]) Done(key T) {
	q.working.Add(-1)
	if _, later := q.backingOff.Load(key); !later {
		q.tell(key, Item{Step: "phase", What: "done"})
	}
	q.TypedRateLimitingInterface.Done(key)
}

func (q *observedQueue[T]) AddAfter(key T, d time.Duration) {
	q.wait(key, d, "looks again")
	q.TypedRateLimitingInterface.AddAfter(key, d)
}

// AddRateLimited knows that the rate limiter doubles 5 milliseconds with each failure.
func (q *observedQueue[T]) AddRateLimited(key T) {
	q.wait(key, min(5*time.Millisecond<<min(q.NumRequeues(key), 30), q.longest), "the last try failed")
	q.TypedRateLimitingInterface.AddRateLimited(key)
}

func (q *observedQueue[T]) wait(key T, d time.Duration, reason string) {
	until := time.Now().Add(d)
	q.backingOff.Store(key, until)
	q.tell(key, Item{Step: "backing off", Reason: reason, Until: until.UnixMilli()})
}

func (q *observedQueue[T]) state() Item {
	now, working, backingOff := time.Now(), int(q.working.Load()), 0
	for _, until := range q.backingOff.Range {
		if now.Before(until.(time.Time)) {
			backingOff++
		}
	}
	return Item{Kind: State, Queue: &Queue{Waiting: q.Len(), Working: working, BackingOff: backingOff}, Workers: int(q.idle.Load()) + working}
}
