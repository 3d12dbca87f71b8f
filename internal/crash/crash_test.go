package crash

import (
	"strings"
	"testing"
)

func TestWindow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		window Window
		want   string
	}{
		{Window{}, "xxxxx"},
		{Window{To: 2}, "xx---"},
		{Window{From: 2, To: 4}, "--xx-"},
		{Window{From: 3}, "---xx"},
	} {
		f, got := Faults{Window: tc.window}, ""
		for range 5 {
			if f.Strike() {
				got += "x"
			} else {
				got += "-"
			}
		}
		if got != tc.want || f.Chances() != 5 {
			t.Errorf("%+v: %s, %d chances; want %s, 5", tc.window, got, f.Chances(), tc.want)
		}
		if taken := strings.Count(tc.want, "x"); f.Struck() != taken {
			t.Errorf("%+v: struck %d times, want %d", tc.window, f.Struck(), taken)
		}
	}
}
