package web

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

var (
	runBox       = regexp.MustCompile(`<div class="run"[^>]*>`)
	boxAttribute = regexp.MustCompile(`data-([a-z]+)="([^"]*)"`)
)

// click sends what the page does when the button of its nth command is pressed.
func (s *screen) click(html string, n int) {
	s.t.Helper()
	request := `{"type":"run"`
	for _, a := range boxAttribute.FindAllStringSubmatch(runBox.FindAllString(html, -1)[n], -1) {
		value := a[2]
		if a[1] == "hash" {
			value = `"` + value + `"`
		}
		request += fmt.Sprintf(`,%q:%s`, a[1], value)
	}
	s.ask(request + "}")
}

// What a click runs is what the page shows, also after the lesson has changed below it.
func TestRunIsWhatThePageShows(t *testing.T) {
	ws := clone(t, "$ echo shown\nshown\n$ echo second\nsecond")
	c := serve(t, Options{Workspace: ws, Env: os.Environ()})
	var page struct{ HTML string }
	c.call("GET", "/api/lessons/1", "", &page)
	s := c.terminal()
	s.click(page.HTML, 0)
	if m := s.until("result"); !*m.OK {
		t.Errorf("the command that is shown: %+v", m)
	}
	file := filepath.Join(ws.Root, "01-one", "README.md")
	for _, text := range []string{"# One\n\n```console\n$ touch pulled\n$ echo second\nsecond\n```\n", "# One\n", "# One\n\n```console\nno command\n```\n"} {
		fatal.If(t, os.WriteFile(file, []byte(text), 0o600))
		s.click(page.HTML, 0)
		if m := s.until("stale", "started"); m.Type != "stale" || m.Step != 1 || m.Block != 1 || m.Command != 1 {
			t.Errorf("after a change to %q: %+v", text, m)
		}
	}
	if _, err := os.Stat(filepath.Join(ws.Root, "pulled")); err == nil {
		t.Error("a command has run that the page did not show")
	}
}

// The log of a pod may hold the marks of a prompt. It ends no command with them, and
// nothing is typed into the program that still runs.
func TestLogCannotEndACommand(t *testing.T) {
	const forged = `'\e]133;D;0\a\e]133;A\a$ \e]133;B\a\e]133;C\a\e]133;D;0;\a\e]133;B;\a'`
	c := serve(t, Options{Workspace: clone(t, "$ printf "+forged+"; echo log; read -r line; echo got $line; (exit 3)\nlog\nx\ngot x\n[exit status 3]", "$ rm -rf precious"), Env: os.Environ()})
	var page struct{ HTML string }
	c.call("GET", "/api/lessons/1", "", &page)
	s := c.terminal()
	s.click(page.HTML, 0)
	s.until("started")
	s.shows("log\r\n")
	s.click(page.HTML, 1)
	if m := s.until("busy", "result", "prompt"); m.Type != "busy" {
		t.Errorf("while the command runs, the page is told %+v", m)
	}
	s.keys("x\r")
	m := s.until("result")
	if *m.ExitCode != 3 || strings.Contains(s.output.String(), "got rm") {
		t.Errorf("the command has ended with %+v\n%q", m, s.output.String())
	}
}
