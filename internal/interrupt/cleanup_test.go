package interrupt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestSayLeft(t *testing.T) {
	left := errors.New("a process is still there")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"only interrupted", fmt.Errorf("waiting: %w", context.Canceled), ""},
		{"cleaned up", errors.Join(context.Canceled, CleanUp(nil)), ""},
		{"not cleaned up", fmt.Errorf("a test: %w", errors.Join(context.Canceled, fmt.Errorf("a cluster: %w", CleanUp(left)))), "error: not everything was cleaned up: a process is still there\n"},
	} {
		var out strings.Builder
		if SayLeft(&out, c.err); out.String() != c.want {
			t.Errorf("%s: %q, want %q", c.name, out.String(), c.want)
		}
	}
	if err := CleanUp(left); !errors.Is(err, left) || err.Error() != left.Error() {
		t.Errorf("marked: %v", err)
	}
}
