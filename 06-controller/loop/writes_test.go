package loop

import (
	"testing"

	"k8s.io/client-go/tools/cache"
)

// versioned is a store that only knows how new it is.
type versioned struct {
	cache.Store
	version string
}

func (v *versioned) LastStoreSyncResourceVersion() string { return v.version }

func TestWrites(t *testing.T) {
	for _, tc := range []struct {
		name            string
		answers         []string // to writes because of a, in the order in which they came
		store           string
		behind, certain bool
	}{
		{"nothing was written", nil, "10", false, false},
		{"the event is missing", []string{"11"}, "10", true, false},
		{"more digits are newer", []string{"100"}, "99", true, false},
		{"the event has come", []string{"11"}, "11", false, true},
		{"a later event has come", []string{"11"}, "12", false, true},
		{"the answers came in another order", []string{"12", "11"}, "11", true, false},
		{"an answer was lost", []string{"11", ""}, "11", false, false},
		{"the first answer was lost", []string{"", "11"}, "11", false, false},
		{"a lost answer does not hide what is missing", []string{"11", ""}, "10", true, false},
		{"no answer has come at all", []string{""}, "10", false, false},
		{"AtomicFIFO is off", []string{"11"}, "", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w Writes
			store, other := &versioned{version: tc.store}, &versioned{version: "1000"}
			for _, version := range tc.answers {
				w.Record(a, store, version)
			}
			w.Record(a, other, "999")
			if got := w.Behind(a); got != tc.behind {
				t.Errorf("behind: %t", got)
			}
			if got := w.Certain(a, store); got != tc.certain {
				t.Errorf("certain: %t", got)
			}
			if w.Behind(b) || w.Certain(b, store) {
				t.Error("another key has to do with it")
			}
			w.Forget(a)
			if w.Behind(a) || w.Certain(a, store) {
				t.Error("it was not forgotten")
			}
		})
	}
}
