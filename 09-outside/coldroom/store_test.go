package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/k8s-go/workshop/09-outside/pkg/apis/outside/v1alpha1"
	"github.com/k8s-go/workshop/internal/poll"
)

// While one call is answered "later", another waits for its turn. It is not made any more.
func TestNobodyCallsAStoreThatAsksForPatience(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	begun := make(chan struct{})
	var s *store
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > 1 { // an answer that was under way shortens nothing
			w.Header().Set("Retry-After", "1")
		} else {
			close(begun)
			_ = poll.Until(r.Context(), time.Millisecond, time.Minute, func(context.Context) error {
				if s.limiter.Tokens() > -0.1 {
					return errors.New("the other call does not wait yet")
				}
				return nil
			})
			w.Header().Set("Retry-After", "60")
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	var err error
	if s, err = newStore(server.URL, 1, func() (string, error) { return "", nil }); err != nil { // one call now, and the next in a second
		t.Fatal(err)
	}
	call := func() (wait time.Duration) {
		var b *busy
		if _, err := s.ListRoomsWithResponse(t.Context(), nil); !errors.As(err, &b) {
			t.Errorf("the call has returned %v, want busy", err)
			return 0
		}
		return b.wait
	}
	second := make(chan time.Duration)
	go func() {
		<-begun
		second <- call()
	}()
	call()
	if wait := <-second; wait < 55*time.Second || calls.Load() != 1 {
		t.Errorf("the second call has to wait for %s, and the store saw %d calls; want about a minute, and 1", wait, calls.Load())
	}
}

// An answer that is not a store's does not say that there are no rooms, and one without an end is not waited for.
func TestStrangeAnswers(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"something else": `{"status": "maintenance"}`,
		"too long":       strings.Repeat(" ", maxAnswer) + `{"rooms": []}`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(says))
		}))
		defer server.Close()
		s, err := newStore(server.URL, 1, func() (string, error) { return "", nil })
		if err != nil {
			t.Fatal(err)
		}
		if rooms, err := s.of(t.Context(), "coldroom-uid", "1"); err == nil {
			t.Errorf("%s: %d rooms, want an error", name, len(rooms))
		}
	}
}

// What the API server answers is no failure of the store, and its status must not say so.
func TestTheStoreIsNotBlamed(t *testing.T) {
	t.Parallel()
	cr := &v1alpha1.ColdRoom{}
	if failing(cr, fmt.Errorf("%w: %w", errNotRead, apierrors.NewInternalError(errors.New("it is down")))) || len(cr.Status.Conditions) > 0 {
		t.Errorf("the conditions are %+v", cr.Status.Conditions)
	}
}
