package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Every script of TRAINERS.md belongs to a section of its lesson, and on the path every section has one.
func TestTrainersText(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	steps, err := ws.Steps()
	fatal.If(t, err)
	text, err := os.ReadFile(filepath.Join(ws.Root, "TRAINERS.md"))
	fatal.If(t, err)
	for _, s := range steps {
		notes, err := parseTrainers(string(text), s.Number)
		if err != nil {
			t.Errorf("step %d: %v", s.Number, err)
			continue
		}
		lesson, err := os.ReadFile(filepath.Join(ws.Root, s.Name, "README.md"))
		fatal.If(t, err)
		sections := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^#{2,3} (\d+\. )?(.*)$`).FindAllStringSubmatch(string(lesson), -1) {
			sections[strings.ReplaceAll(m[2], "`", "")] = m[1] != ""
		}
		scripts := map[string]bool{}
		for _, script := range notes.Scripts {
			scripts[script.Title] = true
			if _, ok := sections[script.Title]; !ok {
				t.Errorf("step %d: the lesson has no section %q", s.Number, script.Title)
			}
			if script.Minutes == 0 || script.Say == "" || len(script.Questions) == 0 || script.Questions[0].When != "before" {
				t.Errorf("step %d: the script of %q is not whole: %+v", s.Number, script.Title, script)
			}
		}
		for section, isTask := range sections {
			if isTask && s.Number <= 7 && !scripts[section] {
				t.Errorf("step %d: TRAINERS.md has no script for %q", s.Number, section)
			}
		}
		if at := strings.Index(notes.About, "](#"); at >= 0 {
			t.Errorf("step %d: a link in its notes leads to another part of TRAINERS.md, which their window does not have: %.40q", s.Number, notes.About[at:])
		}
		if len(scripts) != len(notes.Scripts) || len(scripts) == 0 || notes.About == "" {
			t.Errorf("step %d: %d scripts with %d titles, and %q about the step", s.Number, len(notes.Scripts), len(scripts), notes.About)
		}
	}
}

const someTrainers = `# For trainers

## Step 01: one

All of it.

### Count · 8 minutes

> Count
> with me.

| ask | often heard, and wrong | answer |
|---|---|---|
| **before:** How many? | two | ` + "`three`" + ` |
| **after:** Why? | chance | Addition. |

### Count again · 6 minutes, and the exercise

> Once more.

| ask | often heard, and wrong | answer |
|---|---|---|
| **before:** And now? | more | less |

If you are late: stop.

## Step 02: two

### Other · 5 minutes
`

// A text that cannot be understood is an error that shows the line.
func TestTrainersTextBroken(t *testing.T) {
	for what, tc := range map[string]struct{ old, broken, want string }{
		"a cell is missing":        {"| two | `three` |", "| two |", "| two |\": a row of questions is"},
		"a cell too many":          {"| chance |", "| chance | luck |", "| luck | Addition. |\": a row of questions is"},
		"neither before nor after": {"**after:** Why", "Why", "| Why? | chance | Addition. |\": a row of questions is"},
		"no minutes":               {" · 8 minutes", "", "### Count\": a section's heading ends with its minutes"},
		"no such step":             {"## Step 01", "## Step 03", "nothing about step 1"},
	} {
		if !strings.Contains(someTrainers, tc.old) {
			t.Fatalf("%s: the text has no %q", what, tc.old)
		}
		if _, err := parseTrainers(strings.Replace(someTrainers, tc.old, tc.broken, 1), 1); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
	notes, err := parseTrainers(someTrainers, 1)
	if err != nil || len(notes.Scripts) != 2 || notes.Scripts[0].Say != "Count\nwith me.\n" || notes.Scripts[0].Minutes != 8 || notes.Scripts[1].Minutes != 6 {
		t.Errorf("%+v, %v", notes, err)
	}
}

// taught is a clone with a lesson, and with what its trainer says.
func taught(t testing.TB) workspace.Workspace {
	t.Helper()
	ws := clone(t, "$ true")
	testfile.WriteAll(t, ws.Root, map[string]string{
		"TRAINERS.md": someTrainers,
		"GLOSSARY.md": "# Glossary\n",
		"01-one/README.md": "# One\n\nA lesson.\n\n## 1. Count\n\nTwo numbers, and their sum:\n\n<!-- code: 01-one/main.go func main -->\n```go\nfunc main() {}\n```\n\n" +
			"**Predict:** what is the sum?\n\n```console\n$ echo 4$((1+1))\n42\n```\n\n**What happened:** it was 42.\n\n## 2. Count again\n\nMore.\n\n## Clean up\n\nNothing. See [again](#2-count-again).\n",
	})
	return ws
}

// The trainer's notes, and the room, are for the page alone.
func TestTrainerAnswers(t *testing.T) {
	share := t.TempDir()
	testfile.WriteAll(t, share, map[string]string{"anna.json": `{"tasks": [{"task": "1.1", "name": "patch", "state": "passed"}]}`})
	c := serve(t, Options{Workspace: taught(t), Board: share})
	for _, path := range []string{"/api/trainer/1", "/api/board"} {
		if answer := c.bare(http.MethodGet, path, "", nil); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without the token: %s", path, answer.Status)
		}
	}
	var notes stepNotes
	c.call("GET", "/api/trainer/1", "", &notes)
	if len(notes.Scripts) != 2 || !strings.Contains(notes.Scripts[0].Questions[0].Answer, "<code>three</code>") || !strings.Contains(notes.About, "If you are late") {
		t.Errorf("the notes are %+v", notes)
	}
	if code, text := c.call("GET", "/api/trainer/2", "", nil); code != http.StatusNotFound {
		t.Errorf("a step that is not there: %d %s", code, text)
	}
	if _, text := c.call("GET", "/api/board", "", nil); !strings.Contains(text, "anna") {
		t.Errorf("the board is %s", text)
	}
	c = serve(t, Options{Workspace: taught(t)})
	if _, text := c.call("GET", "/api/board", "", nil); !strings.Contains(text, "make web DIR=") {
		t.Errorf("without a folder, the board says %s", text)
	}
}

// A place goes from one server to a file and from there to another server; what is no place is a sentence.
func TestPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "place.json")
	trainer := serve(t, Options{Workspace: taught(t), Place: file})
	learner := serve(t, Options{Workspace: taught(t), Follow: file})
	follows := func(want string) {
		t.Helper()
		err := poll.Until(t.Context(), 50*time.Millisecond, 10*time.Second, func(context.Context) error {
			var state struct{ Changed map[string]json.RawMessage }
			learner.call("GET", "/api/state", "", &state)
			if got := string(state.Changed[trainerFollow]); !strings.Contains(got, want) {
				return fmt.Errorf("the learner's page has %s, want %s", got, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	follows("The trainer has not begun")
	trainer.call("PUT", "/api/state/"+trainerPlace, `{"step": 1, "section": 2, "part": 0, "title": "Count again", "id": "2-count-again"}`, nil)
	follows(`{"step":1,"title":"Count again","id":"2-count-again"}`)
	for what, text := range map[string]string{"half a file": `{"step": 1, "ti`, "another step": `{"step": 99}`, "another address": `{"step": 1, "id": "token=x"}`, "nothing": "", "too much": strings.Repeat(" ", maxPlace) + `{"step": 1}`} {
		fatal.If(t, os.WriteFile(file, []byte(text), 0o600))
		t.Log(what)
		follows("does not say where the trainer is")
		trainer.call("PUT", "/api/state/"+trainerPlace, fmt.Sprintf(`{"step": 1, "title": "After %s", "id": "x"}`, what), nil)
		follows("After " + what)
	}
	// A pipe that nobody writes holds nothing up, neither the next sentence nor the end of the servers.
	fatal.If(t, errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)))
	follows("does not say where the trainer is")
	trainer.call("PUT", "/api/state/"+trainerPlace, `{"step": 1, "title": "After a pipe", "id": "x"}`, nil)
	follows("After a pipe")
	names, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
	if hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*.new")); err != nil || len(names) != 1 || len(hidden) > 0 {
		t.Errorf("beside the file there are %v %v (%v)", names, hidden, err)
	}
	trouble := serve(t, Options{Workspace: taught(t), Place: filepath.Join(file, "below")})
	trouble.call("PUT", "/api/state/"+trainerPlace, `{"step": 1}`, nil)
	err = poll.Until(t.Context(), 50*time.Millisecond, 10*time.Second, func(context.Context) error {
		if _, text := trouble.call("GET", "/api/state", "", nil); !strings.Contains(text, "Nobody can follow you") {
			return errors.New(text)
		}
		return nil
	})
	if err != nil {
		t.Errorf("a file that cannot be written: %v", err)
	}
}
