package board

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// columns returns the words of the table's lines.
func columns(table string) [][]string {
	var lines [][]string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

const anna = `{"tasks": [
 {"task": "1.1", "name": "patch", "state": "passed", "checks": 2, "hints": 0},
 {"task": "1.2", "name": "follow", "state": "begun", "begun": "2026-11-21T09:00:00Z", "checks": 9, "hints": 3},
 {"task": "2.1", "name": "retry", "state": "begun", "begun": "2026-11-21T10:00:00Z", "checks": 4, "hints": 1, "mistake": "no retry"},
 {"task": "10.1", "name": "late", "state": "not begun", "checks": 0, "hints": 0}]}`

func TestTable(t *testing.T) {
	dir := t.TempDir()
	if text := Table(dir); !strings.Contains(text, "make -s progress JSON=1") {
		t.Errorf("an empty folder does not say how it is filled:\n%s", text)
	}
	write(t, dir, "anna.json", anna)
	write(t, dir, "bert.json", `{"tasks": [{"task": "2.1", "name": "retry", "state": "passed"}]}`)
	write(t, dir, ".anna.json.new", "{")
	write(t, dir, "notes.txt", "nothing")
	saved := time.Date(2026, 11, 21, 11, 30, 0, 0, time.Local)
	for _, name := range []string{"anna.json", "bert.json"} {
		fatal.If(t, os.Chtimes(filepath.Join(dir, name), saved, saved))
	}
	got := columns(Table(dir))
	want := [][]string{
		{"LEARNER", "DONE", "STEP", "1", "STEP", "2", "STEP", "10", "SAVED", "NOW"},
		{"anna", "1/4", "1/2", "0/1", "0/1", "11:30", "2.1", "retry,", "4", "checks,", "1", "hints:", "no", "retry"},
		{"bert", "1/1", "-", "1/1", "-", "11:30"},
	}
	for i := range want {
		if i >= len(got) || strings.Join(got[i], " ") != strings.Join(want[i], " ") {
			t.Errorf("line %d is %v, want %v", i, got, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d: %v", len(got), len(want), got)
	}
}

// Whatever somebody puts into the folder, the others stay on the board.
func TestBrokenFileIsOneLine(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "anna.json", anna)
	for name, text := range map[string]string{
		"empty": "", "cut": anna[:50], "list": "[]", "other": "{}", "html": "<html>", "wrong": `{"tasks": [{"checks": "many"}]}`,
		"steps": `{"tasks": [{"task": "a1.1"}]}`, "tasks": `{"tasks": [` + strings.Repeat(`{"task": "1.1"},`, mostTasks) + `{"task": "1.1"}]}`,
		"large": strings.Repeat(" ", limit+1), "line\nbreak": "{",
	} {
		write(t, dir, name+".json", text)
	}
	fatal.If(t, os.Mkdir(filepath.Join(dir, "folder.json"), 0o755))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o644); err != nil { // reading it would wait for ever
		t.Fatal(err)
	}
	lines := columns(Table(dir))
	if len(lines) != 14 {
		t.Errorf("%d lines, want the heading, anna and 12 broken ones: %q", len(lines), lines)
	}
	for _, line := range lines[1:] {
		text := strings.Join(line, " ")
		if broken := strings.Contains(text, "cannot be read: "); broken == (line[0] == "anna") {
			t.Errorf("%s", text)
		}
	}
}

func TestNothingReachesTheTerminalButText(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "anna.json", `{"tasks": [{"task": "1.1", "name": "\u001b]0;x\u0007", "state": "begun", "mistake": "\u009b1m\n"}]}`)
	write(t, dir, "\x1b[31m.json", "{")
	if table := Table(dir); strings.ContainsAny(table, "\x1b\x07\u009b") || strings.Count(table, "\n") != 3 {
		t.Errorf("%q", table)
	}
}

// The board shows a file as soon as it changes, outlives its folder, and ends with ctx.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	var out proc.Buffer
	if err := Watch(t.Context(), dir, &out); err == nil || !strings.Contains(err.Error(), "make it first") {
		t.Errorf("without the folder: %v", err)
	}
	fatal.If(t, os.Mkdir(dir, 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, dir, &out) }()
	shows := func(text string) {
		t.Helper()
		err := poll.Until(ctx, 50*time.Millisecond, time.Minute, func(context.Context) error {
			if strings.Contains(out.String(), text) {
				return nil
			}
			return os.ErrNotExist
		})
		if err != nil {
			t.Fatalf("%q is not on the board: %v\n%s", text, err, out.String())
		}
	}
	shows("No file yet")
	write(t, dir, "anna.json", anna)
	shows("no retry")
	write(t, dir, "anna.json", anna[:50])
	shows("cannot be read")
	fatal.If(t, os.RemoveAll(dir))
	shows("The folder cannot be read")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("at its end: %v", err)
	}
}
