package main

import (
	"strings"
	"testing"
)

func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	if lost, smallest, err := roundTrips(100_000, 2, false); err != nil || lost > 0 {
		t.Errorf("%d changed, the smallest change: %q (%v)", lost, smallest, err)
	}
}

// Without the annotation it has to be lost, and the program has to say what.
func TestWhatTheAnnotationKeeps(t *testing.T) {
	t.Parallel()
	lost, smallest, err := roundTrips(5_000, 2, true)
	if err != nil || lost == 0 || len(smallest) != 1 || !strings.HasPrefix(smallest[0], "spec.") {
		t.Errorf("%d changed, the smallest change: %q (%v)", lost, smallest, err)
	}
}
