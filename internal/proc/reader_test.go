package proc

import (
	"os"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

func TestUnread(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	fatal.If(t, err)
	defer writer.Close()
	if unread(writer) {
		t.Error("somebody can still read it")
	}
	fatal.If(t, reader.Close())
	if !unread(writer) {
		t.Error("nobody can read it")
	}
}
