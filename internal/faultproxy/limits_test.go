package faultproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

// Only who knows the proxy's token can have it keep a long body in memory.
func TestStrangersBodyIsNotKept(t *testing.T) {
	for token, isKept := range map[string]bool{"": false, "of a service account": false, "own": true} {
		u, p := start(t)
		if token == "own" {
			token = p.token
		}
		body, rest := io.Pipe()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+pods, body)
		fatal.If(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		done := make(chan error, 1)
		go func() {
			answer, err := client(t, p).Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				err = errors.Join(err, answer.Body.Close())
			}
			done <- err
		}()
		// The server answers without reading all of it, and then nobody reads on.
		if _, err := io.WriteString(rest, strings.Repeat("x", 1<<20)); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Fatal(err)
		}
		within := map[bool]time.Duration{true: 2 * time.Second, false: 30 * time.Second}[isKept] // a busy server hears of it later
		err = poll.Until(t.Context(), 20*time.Millisecond, within, func(context.Context) error {
			if u.committed.Load() == 0 {
				return errors.New("the server has heard of nothing")
			}
			return nil
		})
		if (err != nil) != isKept {
			t.Errorf("token %q: 1 MiB of a body is kept: %v, want %v", token, err != nil, isKept)
		}
		_ = rest.Close()
		if err := <-done; err != nil && isKept { // whoever still sends when the answer comes can lose it to a reset
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// An event without an end does not take the memory of the proxy.
func TestEventsAreBounded(t *testing.T) {
	endless := &letters{}
	_, p := start(t)
	if n, err := io.Copy(io.Discard, newEventFilter(t.Context(), endless, p, &exchange{})); err == nil || n > 0 || endless.read > 4*maxEvent {
		t.Errorf("%d bytes have passed, and %d were read: %v", n, endless.read, err)
	}
}

// letters is a body of 1 GiB without the end of a line.
type letters struct{ read int }

func (l *letters) Read(b []byte) (int, error) {
	if l.read >= 1<<30 {
		return 0, io.EOF
	}
	for i := range b {
		b[i] = 'x'
	}
	l.read += len(b)
	return len(b), nil
}

func (l *letters) Close() error { return nil }
