package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

// A process that left the group of whoever started it is still found, and ended.
func TestKillSession(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	c := bash("set -m; sleep 600 >/dev/null 2>&1 & echo $! >'" + file + "'")
	c.Session = true
	p, err := Start(t.Context(), c)
	fatal.If(t, err)
	killed, err := p.KillSession(t.Context())
	if err != nil || len(killed) != 1 || !strings.HasSuffix(killed[0], " sleep 600") {
		t.Errorf("killed: %q, %v", killed, err)
	}
	gone(t, file)

	for _, c := range []Cmd{{Path: "true", Session: true}, {Path: "sleep", Args: []string{"0.1"}, Session: true}} {
		p, err := Start(t.Context(), c)
		fatal.If(t, err)
		if killed, err := p.KillSession(t.Context()); err != nil || len(killed) > 0 {
			t.Errorf("%s: killed %q, %v", c, killed, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
