package loop

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"k8s.io/client-go/util/workqueue"
)

// Parallel calls do for 0 to pieces-1, at most atOnce of them at the same time, and
// returns an error for each. A panic is such an error; in a goroutine that nobody
// guards it would end the process. Pieces that had not begun when ctx ended have its error.
func Parallel(ctx context.Context, atOnce, pieces int, do func(i int) error) []error {
	errs := make([]error, pieces)
	begun := make([]bool, pieces)
	workqueue.ParallelizeUntil(ctx, atOnce, pieces, func(i int) {
		begun[i] = true
		errs[i] = guarded(func() error { return do(i) })
	})
	for i := range errs {
		if !begun[i] {
			errs[i] = cmp.Or(ctx.Err(), context.Canceled)
		}
	}
	return errs
}

// guarded turns a panic into an error, so that one poisonous object does not end
// the work on all others.
func guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return do()
}
