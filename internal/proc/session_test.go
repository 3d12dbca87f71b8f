package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A process that left the group of whoever started it is still found, and ended.
func TestLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	c := bash("set -m; sleep 600 >/dev/null 2>&1 & echo $! >'" + file + "'")
	c.Session = true
	p, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	left, err := p.Left(t.Context())
	if err != nil || len(left) != 1 || !strings.HasSuffix(left[0], " sleep 600") {
		t.Errorf("left: %q, %v", left, err)
	}
	gone(t, file)

	for _, c := range []Cmd{{Path: "true", Session: true}, {Path: "sleep", Args: []string{"0.1"}, Session: true}} {
		p, err := Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := p.Left(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("%s has left %q, %v", c, left, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
