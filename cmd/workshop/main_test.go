package main

import (
	"os"
	"testing"
)

func TestUnread(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if unread(writer) {
		t.Error("somebody can still read it")
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	if !unread(writer) {
		t.Error("nobody can read it")
	}
}
