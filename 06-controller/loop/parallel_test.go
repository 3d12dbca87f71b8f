package loop

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		var busy, most atomic.Int32
		mine := errors.New("mine")
		errs := Parallel(ctx, 2, 6, func(i int) error {
			most.Store(max(most.Load(), busy.Add(1)))
			defer busy.Add(-1)
			switch i {
			case 0:
				panic("poison")
			case 1:
				return mine
			}
			time.Sleep(time.Minute)
			return nil
		})
		if len(errs) != 6 || errs[0] == nil || !strings.Contains(errs[0].Error(), "panic: poison") || !errors.Is(errs[1], mine) || errs[2] != nil || errs[3] != nil {
			t.Errorf("errors %v", errs)
		}
		if most.Load() != 2 {
			t.Errorf("%d at the same time, want 2", most.Load())
		}
		if got := Parallel(ctx, 2, 0, nil); len(got) != 0 {
			t.Errorf("of nothing: %v", got)
		}
		cancel()
		if errs := Parallel(ctx, 2, 1, func(int) error { return nil }); !errors.Is(errs[0], context.DeadlineExceeded) && !errors.Is(errs[0], context.Canceled) {
			t.Errorf("after the end: %v", errs)
		}
	})
}
