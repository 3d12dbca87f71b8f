package terminal

import (
	"bytes"
	"os"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

func TestPaint(t *testing.T) {
	// The side of a new terminal that a terminal's window would hold.
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	defer tty.Close()
	file, err := os.Create(t.TempDir() + "/file")
	fatal.If(t, err)
	defer file.Close()

	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if got := Bold.Paint(tty, "x"); got != "\x1b[1mx\x1b[0m" {
		t.Errorf("on a terminal: %q", got)
	}
	if got := Bold.Paint(file, "x"); got != "x" {
		t.Errorf("into a file: %q", got)
	}
	if got := Bold.Paint(&bytes.Buffer{}, "x"); got != "x" {
		t.Errorf("into a buffer: %q", got)
	}
	t.Setenv("TERM", "dumb")
	if got := Bold.Paint(tty, "x"); got != "x" {
		t.Errorf("with TERM=dumb: %q", got)
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if got := Bold.Paint(tty, "x"); got != "x" {
		t.Errorf("with NO_COLOR: %q", got)
	}
}
