// Package poll waits for something that no watch reports.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Until calls f at once and then at every interval until f returns nil. After
// timeout (none if zero) or when ctx ends, it returns an error that wraps both
// the reason and what f said last. An error that Stop made ends it at once.
// After timeout f is called once more, for at most a second: if the machine stood
// still, what it waits for may have come.
func Until(ctx context.Context, every, timeout time.Duration, f func(ctx context.Context) error) error {
	outer := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	look := func(ctx context.Context) (ended bool, err error) {
		err = f(ctx)
		var stop *stopError
		switch {
		case err == nil:
			return true, nil
		case errors.As(err, &stop):
			return true, stop.error
		case last == nil || ctx.Err() == nil: // a request that the deadline cut off says less than the answer before it
			last = err
		}
		return false, nil
	}
	for {
		if ctx.Err() == nil {
			if ended, err := look(ctx); ended {
				return err
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		switch {
		case outer.Err() != nil && last == nil:
			return context.Cause(outer)
		case outer.Err() != nil:
			return fmt.Errorf("%w; at last: %w", context.Cause(outer), last)
		default:
			again, cancel := context.WithTimeout(outer, time.Second)
			defer cancel()
			if ended, err := look(again); ended {
				return err
			}
			return fmt.Errorf("not within %s: %w (%w)", timeout, last, ctx.Err())
		}
	}
}

// Stop makes of err one that ends Until, which then returns err itself. Stop
// of nil is nil.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }
