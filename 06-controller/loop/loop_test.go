package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

var a, b = cache.ObjectName{Namespace: "n", Name: "a"}, cache.ObjectName{Namespace: "n", Name: "b"}

// record keeps steps.
type record struct {
	mu    sync.Mutex
	steps []Step
}

func (r *record) Observe(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, s)
}

// start runs a loop in a synctest bubble, and returns a function that stops it and waits for its end.
func start(t *testing.T, workers int, reconcile Reconcile) (*Loop, *record, func()) {
	t.Helper()
	r := &record{}
	l := New("test", reconcile, Options{Workers: workers, Observer: r})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	synctest.Wait()
	return l, r, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestAStandbyIsReadyAndWorksOnlyWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan struct{})
		var worked []cache.ObjectName
		l := New("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			worked = append(worked, key)
			return 0, nil
		}, Options{Begin: begin})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.Add(a, "")
		time.Sleep(time.Hour)
		if !l.Ready() || len(worked) > 0 {
			t.Errorf("while it stands by: ready %v, worked on %v", l.Ready(), worked)
		}
		close(begin)
		synctest.Wait()
		if len(worked) != 1 {
			t.Errorf("after it began: worked on %v", worked)
		}
		cancel()
		if err := <-ended; err != nil || l.Ready() {
			t.Errorf("after the stop: ready %v, %v", l.Ready(), err)
		}
	})
}

// holding is an informer whose cache holds a and b.
type holding struct {
	cache.SharedIndexInformer
	handlers int
}

func (h *holding) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.handlers++
	for _, name := range []cache.ObjectName{a, b} {
		handler.OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}, true)
	}
	return registered{}, nil
}

func (h *holding) HasSyncedChecker() cache.DoneChecker { return done{} }

type registered struct {
	cache.ResourceEventHandlerRegistration
}

func (registered) HasSyncedChecker() cache.DoneChecker { return done{} }

type done struct{}

func (done) Name() string { return "done" }

func (done) Done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestAStandbyQueuesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan struct{})
		worked := 0
		l := New("test", func(context.Context, cache.ObjectName) (time.Duration, error) { worked++; return 0, nil }, Options{Begin: begin})
		informer := &holding{}
		if err := l.Watch(informer, Each(func(name cache.ObjectName) { l.Add(name, "") })); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		if !l.Ready() || informer.handlers > 0 || l.queue.Len() > 0 {
			t.Errorf("while it stands by: ready %v, %d handlers, %d keys in the queue", l.Ready(), informer.handlers, l.queue.Len())
		}
		close(begin)
		synctest.Wait()
		if worked != 2 {
			t.Errorf("after it began: worked on %d of 2", worked)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAStandbyStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New("test", nil, Options{Begin: make(chan struct{})})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil || l.Ready() {
			t.Errorf("after the stop: ready %v, %v", l.Ready(), err)
		}
	})
}

func TestEachFailureWaitsLongerAndASuccessForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begun := time.Now()
		l, _, stop := start(t, 1, func(context.Context, cache.ObjectName) (time.Duration, error) {
			at = append(at, time.Since(begun))
			if n := len(at); n == 4 || n == 6 {
				return 0, nil
			}
			return 0, errors.New("not yet")
		})
		l.Add(a, "")
		time.Sleep(time.Second)
		l.Add(a, "")
		time.Sleep(time.Second)
		stop()
		want := []time.Duration{0, 10, 30, 70, 1000, 1010} // milliseconds
		for i := range want {
			if i >= len(at) || at[i] != want[i]*time.Millisecond {
				t.Fatalf("tried at %v, want %v ms", at, want)
			}
		}
	})
}

// Each try writes, and then the key comes back before the cache shows that. Such a look has tried
// nothing, so it ends no back-off.
func TestALookThatHasToWaitForTheCacheIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, tries := 0, 0
		l, _, stop := start(t, 1, func(context.Context, cache.ObjectName) (time.Duration, error) {
			if looks++; looks%2 == 0 {
				return time.Second, ErrBehind
			}
			tries++
			return 0, errors.New("refused")
		})
		l.Add(a, "")
		time.Sleep(time.Hour)
		stop()
		if tries < 50 || tries > 90 { // 60 with the longest wait, a minute, and some before it
			t.Errorf("%d tries in an hour", tries)
		}
	})
}

func TestRetryAfterHoldsAgainstEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Time
		l, _, stop := start(t, 1, func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			if key == b {
				return 0, nil
			}
			tries = append(tries, time.Now())
			if len(tries) == 1 {
				conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "x", errors.New("changed"))
				return 0, errors.Join(conflict, fmt.Errorf("marking: %w", apierrors.NewTooManyRequests("later", 7)), apierrors.NewTooManyRequests("later", 1))
			}
			return 0, nil
		})
		l.Add(a, "")
		for range 20 { // events meanwhile, to a and to others
			time.Sleep(500 * time.Millisecond)
			l.Add(a, "")
			l.Add(b, "")
		}
		stop()
		if len(tries) < 2 || tries[1].Sub(tries[0]) < 7*time.Second {
			t.Fatalf("tried at %v, but the server asked for 7 s", tries)
		}
	})
}

func TestOneKeyHasOneWorkerAndDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		busy, most, done := 0, 0, 0
		l, _, stop := start(t, 2, func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			if key == b {
				mu.Lock()
				done++
				mu.Unlock()
				return 0, nil
			}
			mu.Lock()
			busy++
			most = max(most, busy)
			mu.Unlock()
			<-release
			mu.Lock()
			busy--
			mu.Unlock()
			return 0, nil
		})
		for range 3 {
			l.Add(a, "")
			l.Add(b, "")
			synctest.Wait()
		}
		if most != 1 || done != 3 {
			t.Errorf("%d workers had a at the same time, and b was worked on %d times while a was asleep", most, done)
		}
		close(release)
		stop()
	})
}

func TestPanicIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		l, r, stop := start(t, 1, func(context.Context, cache.ObjectName) (time.Duration, error) {
			if tries++; tries == 1 {
				panic("poison")
			}
			return 0, nil
		})
		l.Add(a, "because")
		time.Sleep(time.Second)
		stop()
		if tries != 2 {
			t.Errorf("%d tries, want one that panics and one more", tries)
		}
		if len(r.steps) < 2 || r.steps[0].Kind != Queued || r.steps[0].Reason != "because" || r.steps[1].Kind != BackingOff || !r.steps[1].Until.After(r.steps[1].Time) {
			t.Errorf("observed %+v", r.steps)
		}
	})
}

// inspector keeps the loop that it was given.
type inspector struct {
	record
	loop *Loop
}

func (i *inspector) Inspect(l *Loop) { i.loop = l }

func TestAnInspectorSeesTheQueueAndTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		o := &inspector{}
		l := New("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
			<-release
			return 0, nil
		}, Options{Observer: o})
		if o.loop != l {
			t.Fatal("the loop was not handed over")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.Add(a, "")
		synctest.Wait()
		l.Add(b, "")
		if s := l.State(); s.Waiting != 1 || s.Working != 1 || s.Workers != 1 {
			t.Errorf("one waits, one is worked on: %+v", s)
		}
		close(release)
		synctest.Wait()
		if s := l.State(); s.Waiting != 0 || s.Working != 0 {
			t.Errorf("all is done: %+v", s)
		}
		if last := o.steps[len(o.steps)-1]; last.Kind != Phase || last.What != "done" || last.Key != b {
			t.Errorf("the last step is %+v", last)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestStopFinishesWhatIsInFlightAndBeginsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var finished []cache.ObjectName
		l, _, stop := start(t, 1, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
			select {
			case <-time.After(Grace / 2):
				finished = append(finished, key)
			case <-ctx.Done():
			}
			return 0, ctx.Err()
		})
		l.Add(a, "")
		l.Add(b, "")
		synctest.Wait()
		stop()
		if len(finished) != 1 || finished[0] != a {
			t.Errorf("finished %v, want only a, which was in flight", finished)
		}
	})
}

func TestStopDoesNotWaitForASleeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, 1, func(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		l.Add(a, "")
		synctest.Wait()
		begun := time.Now()
		stop()
		if took := time.Since(begun); took != Grace {
			t.Errorf("the stop took %s, want %s", took, Grace)
		}
	})
}

func TestReadyOnlyBetweenSyncAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := func(l *Loop) int {
			w := httptest.NewRecorder()
			l.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			return w.Code
		}
		idle := New("idle", nil, Options{})
		if got := code(idle); got != http.StatusServiceUnavailable {
			t.Errorf("before Run: %d", got)
		}
		idle.queue.ShutDown()
		l, _, stop := start(t, 1, func(context.Context, cache.ObjectName) (time.Duration, error) { return 0, nil })
		if got := code(l); got != http.StatusOK {
			t.Errorf("while it runs: %d", got)
		}
		stop()
		if got := code(l); got != http.StatusServiceUnavailable {
			t.Errorf("after the stop: %d", got)
		}
	})
}

func TestMetricsNameNoObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, 1, func(context.Context, cache.ObjectName) (time.Duration, error) { return 0, errors.New("no") })
		l.Add(cache.ObjectName{Namespace: "secret-namespace", Name: "secret-name"}, "")
		l.Wrote(a, "status", "it changed")
		synctest.Wait()
		stop()
		w := httptest.NewRecorder()
		l.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		text := w.Body.String()
		for _, want := range []string{
			`workqueue_adds_total{name="test"} 1`, `workqueue_retries_total{name="test"} 1`,
			`controller_reconciles_total{controller="test",result="error"} 1`, `controller_writes_total{controller="test",what="status"} 1`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is not in\n%s", want, text)
			}
		}
		if strings.Contains(text, "secret") {
			t.Error("a label names an object")
		}
	})
}

// A handler hears of each event, and of a deletion that nobody has seen, by the object's name.
func TestEach(t *testing.T) {
	t.Parallel()
	var names []string
	handler := Each(func(name cache.ObjectName) { names = append(names, name.String()) })
	of := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: name}}
	}
	handler.OnAdd(of("added"), false)
	handler.OnUpdate(of("before"), of("after"))
	handler.OnDelete(of("deleted"))
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "here/unseen", Obj: of("unseen")})
	if want := []string{"here/added", "here/after", "here/deleted", "here/unseen"}; !slices.Equal(names, want) {
		t.Errorf("it has heard of %q, want %q", names, want)
	}
}

// With these a controller would wait for ever, or never rest.
func TestFlagsThatCannotWork(t *testing.T) {
	for _, tc := range []struct {
		namespace string
		resync    time.Duration
		want      string // the beginning of the error; none if empty
	}{
		{"", 0, ""},
		{"shop", time.Second, ""},
		{"No/Such", 0, "-namespace No/Such: "},
		{"shop.example.org", 0, "-namespace shop.example.org: "},
		{strings.Repeat("a", 64), 0, "-namespace aaa"},
		{"", -time.Second, "-resync -1s: "},
		{"shop", 100, "-resync 100ns: "},
	} {
		if err := CheckFlags(tc.namespace, tc.resync); (err != nil) != (tc.want != "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%q, %s: %v, want %q", tc.namespace, tc.resync, err, tc.want)
		}
	}
}
