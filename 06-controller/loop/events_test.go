package loop

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// hanging is a server that answers no Event before it is told to.
type hanging struct {
	events.EventSink
	answer        chan struct{}
	mu            sync.Mutex
	asked, inside int
}

func (h *hanging) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	h.mu.Lock()
	h.asked++
	h.inside++
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.inside--
		h.mu.Unlock()
	}()
	select {
	case <-h.answer:
		return event, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestFewEventsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &hanging{answer: make(chan struct{})}
		sink := eventSink{server, make(chan struct{}, eventsAtOnce)}
		var failed sync.WaitGroup
		for range 3 * eventsAtOnce {
			failed.Go(func() {
				if _, err := sink.Create(t.Context(), &eventsv1.Event{}); err == nil {
					t.Error("an Event that nobody has answered was written")
				}
			})
		}
		synctest.Wait()
		server.mu.Lock()
		inside, asked := server.inside, server.asked
		server.mu.Unlock()
		if inside != eventsAtOnce || asked != eventsAtOnce {
			t.Errorf("%d requests at once of %d, want %d", inside, asked, eventsAtOnce)
		}
		begun := time.Now()
		failed.Wait()
		if after := time.Since(begun); after != Deadline {
			t.Errorf("they were given up after %s", after)
		}
		close(server.answer)
		for range 3 * eventsAtOnce { // no slot is lost
			if _, err := sink.Create(t.Context(), &eventsv1.Event{}); err != nil {
				t.Error(err)
			}
		}
	})
}
