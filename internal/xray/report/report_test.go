package report

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/k8s-go/workshop/internal/fatal"
)

// A program must never wait for the X-ray, whatever becomes of the page.
func TestNothingWaitsForASocketThatDoesNotRead(t *testing.T) {
	t.Chdir(t.TempDir()) // a socket's path must be short
	for name, accept := range map[string]bool{"nobody": false, "mute": true} {
		if accept {
			listener, err := net.Listen("unix", name)
			fatal.If(t, err)
			defer listener.Close() // connections are made, and nobody reads from them
		}
		r := start(t.Context(), name, "test")
		began := time.Now()
		var missed bool // the reporter sets its count to 0 when it has told it
		for range 100 * buffered {
			r.Tell(Item{Kind: Step, Key: "a/b"})
			missed = missed || r.missed.Load() > 0
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: %s for %d steps", name, took, 100*buffered)
		}
		if !missed {
			t.Errorf("%s: nothing is missed", name)
		}
	}
}

// The waits that are told are those of the queue's limiter.
func TestAQueueBacksOffNoLongerThanItsLimiter(t *testing.T) {
	for longest, told := range map[time.Duration]time.Duration{10 * time.Second: 10 * time.Second, 1000 * time.Second: 20 * time.Second} {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, longest))
		q := &observedQueue[string]{TypedRateLimitingInterface: queue, reporter: New(), longest: longest}
		for range 13 { // the last one waits for 20.48 s, if it may
			q.AddRateLimited("a")
		}
		until, _ := q.backingOff.Load("a")
		if wait := time.Until(until.(time.Time)).Round(time.Second); wait != told {
			t.Errorf("it tells of %s, want %s", wait, told)
		}
		queue.ShutDown()
	}
}

// What is left out is told, and a page that starts later is found.
func TestMissedStepsAreTold(t *testing.T) {
	t.Chdir(t.TempDir())
	r := start(t.Context(), "socket", "test")
	const steps = 3 * buffered
	for range steps {
		r.Tell(Item{Kind: Step})
	}
	items := make(chan Item, steps)
	listener, err := net.Listen("unix", "socket")
	fatal.If(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if query := r.URL.Query(); query.Get("program") != "test" || query.Get("pid") == "" {
			t.Errorf("query %v", query)
		}
		for lines := json.NewDecoder(r.Body); ; {
			var i Item
			if lines.Decode(&i) != nil {
				return
			}
			items <- i
		}
	})}
	go server.Serve(listener) //nolint:errcheck // it ends with Close
	defer server.Close()
	r.State(func() Item { return Item{Kind: State, Workers: 3} })
	for deadline, missed, workers := time.After(30*time.Second), 0, 0; missed == 0 || workers == 0; {
		r.Tell(Item{Kind: Step, Key: "more"})
		for range 100 {
			r.Tell(Item{Kind: Step})
		}
		select {
		case i := <-items:
			if i.Time == 0 {
				t.Errorf("no time: %+v", i)
			}
			missed += i.Missed
			workers += i.Workers
		case <-deadline:
			t.Fatalf("%d missed, %d workers", missed, workers)
		}
	}
}

// A writer calls itself with each piece that is written.
type writer func(lines []byte)

func (w writer) Write(lines []byte) (int, error) {
	w(lines)
	return len(lines), nil
}

// On a busy machine steps wait for their turn, and are not left out.
func TestNoStepIsLeftOutBecauseTheReporterIsLate(t *testing.T) {
	const steps = 5 * mostAtOnce
	r := New()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	written := 0
	r.Tell(Item{Kind: Step})
	r.write(ctx, writer(func(lines []byte) {
		if written == 0 { // while this is written, much happens
			for range steps {
				r.Tell(Item{Kind: Step})
			}
			time.Sleep(10 * interval)
		}
		written += bytes.Count(lines, []byte("\n"))
		if len(r.items) == 0 {
			stop()
		}
	}))
	if written != 1+steps {
		t.Errorf("%d lines are written of %d", written, 1+steps)
	}
}

// A controller does most of its work at once: an event, and all that follows from it. What goes on
// like that is more than anybody can look at.
func TestABurstPassesAndAFloodDoesNot(t *testing.T) {
	const steps = 3 * mostAtOnce
	r := New()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tell := func() {
		for range steps {
			r.Tell(Item{Kind: Step})
		}
	}
	tell()
	writes, burst, lines := 0, 0, 0
	r.write(ctx, writer(func(data []byte) {
		lines += bytes.Count(data, []byte("\n"))
		if writes++; writes == 1 {
			burst = lines
		}
		if writes == 50 {
			stop()
		}
		tell()
	}))
	if burst != steps {
		t.Errorf("%d lines are written of %d", burst, steps)
	}
	if lines >= writes*steps {
		t.Errorf("all %d steps are written, three times as many as there may be", lines)
	}
}

func TestNoReporterWithoutASocket(t *testing.T) {
	t.Setenv(Variable, "")
	if Open() != nil {
		t.Error("a reporter without a socket")
	}
}

// BenchmarkTell is what a step costs a controller with the X-ray on.
func BenchmarkTell(b *testing.B) {
	r := start(b.Context(), filepath.Join(b.TempDir(), "none"), "bench")
	for b.Loop() {
		r.Tell(Item{Kind: Step, Step: "queued", Key: "namespace/name"})
	}
}
