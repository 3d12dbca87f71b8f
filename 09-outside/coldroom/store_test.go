package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// While one call is answered "later", another waits for its turn. It is not made any more.
func TestNobodyCallsAStoreThatAsksForPatience(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			time.Sleep(200 * time.Millisecond) // until the other call waits, too
			w.Header().Set("Retry-After", "60")
		} else { // an answer that was under way shortens nothing
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	s, err := newStore(server.URL, 2, func() (string, error) { return "", nil })
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context) (wait time.Duration) {
		var b *busy
		if _, err := s.ListRoomsWithResponse(ctx, nil); !errors.As(err, &b) {
			t.Errorf("the call has returned %v, want busy", err)
			return 0
		}
		return b.wait
	}
	ctx := t.Context()
	s.limiter.Allow() // so that there is one call now, and the next in half a second
	second := make(chan time.Duration)
	go func() {
		time.Sleep(100 * time.Millisecond)
		second <- call(ctx)
	}()
	call(ctx)
	if wait := <-second; wait < 58*time.Second || calls.Load() != 1 {
		t.Errorf("the second call has to wait for %s, and the store saw %d calls; want about a minute, and 1", wait, calls.Load())
	}
}
