package poll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var errNotYet = errors.New("not yet")

func TestUntil(t *testing.T) {
	calls := 0
	err := Until(t.Context(), time.Millisecond, time.Minute, func(context.Context) error {
		if calls++; calls < 3 {
			return errNotYet
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("Until = %v after %d calls", err, calls)
	}
}

// The first call comes at once, not after the first interval.
func TestFirstCallComesAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Until(ctx, time.Hour, 0, func(context.Context) error { return nil }); err != nil {
		t.Errorf("Until = %v", err)
	}
}

func TestTimeoutTellsTheLastError(t *testing.T) {
	calls := 0
	err := Until(t.Context(), time.Millisecond, 50*time.Millisecond, func(ctx context.Context) error {
		if calls++; calls == 1 {
			return errNotYet
		}
		<-ctx.Done() // a request that hangs
		return ctx.Err()
	})
	if !errors.Is(err, errNotYet) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not within 50ms: not yet") {
		t.Errorf("Until = %v", err)
	}
}

// What has come while the machine stood still is seen.
func TestLastLookAfterTheTimeout(t *testing.T) {
	calls := 0
	err := Until(t.Context(), time.Millisecond, 20*time.Millisecond, func(ctx context.Context) error {
		if calls++; calls == 1 {
			time.Sleep(50 * time.Millisecond)
			return errNotYet
		}
		return ctx.Err()
	})
	if err != nil || calls != 2 {
		t.Errorf("Until = %v after %d calls", err, calls)
	}
}

func TestEndOfContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	err := Until(ctx, time.Millisecond, time.Minute, func(context.Context) error {
		cancel(why)
		return errNotYet
	})
	if !errors.Is(err, why) || !errors.Is(err, errNotYet) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Until = %v", err)
	}
	err = Until(ctx, time.Millisecond, time.Minute, func(context.Context) error {
		t.Error("called after the end of its context")
		return nil
	})
	if !errors.Is(err, why) {
		t.Errorf("Until = %v", err)
	}
}

func TestStop(t *testing.T) {
	fatal := errors.New("never")
	calls := 0
	err := Until(t.Context(), time.Millisecond, time.Minute, func(context.Context) error {
		calls++
		return fmt.Errorf("wrapped: %w", Stop(fatal))
	})
	if calls != 1 || !errors.Is(err, fatal) {
		t.Errorf("Until = %v after %d calls", err, calls)
	}
	if Stop(nil) != nil {
		t.Error("Stop(nil) is an error")
	}
}
