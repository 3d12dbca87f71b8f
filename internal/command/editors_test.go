package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/exercise/runner"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// read decodes a file of the clone, without comments, and returns its clone.
func read(t *testing.T, into any, path ...string) workspace.Workspace {
	t.Helper()
	ws, err := workspace.Find()
	fatal.If(t, err)
	data, err := os.ReadFile(filepath.Join(append([]string{ws.Root}, path...)...))
	fatal.If(t, err)
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", filepath.Join(path...), err)
	}
	return ws
}

// matcher is a problem matcher of VS Code. One that is an empty list matches nothing.
type matcher struct {
	Pattern struct {
		Regexp                      string
		File, Line, Column, Message int
	}
	Background struct{ BeginsPattern, EndsPattern string }
}

type editorTask struct {
	Label, Command string
	ProblemMatcher json.RawMessage
}

func editorTasks(t *testing.T) (workspace.Workspace, []editorTask, []string) {
	t.Helper()
	var file struct {
		Inputs []struct{ Options []string }
		Tasks  []editorTask
	}
	ws := read(t, &file, ".vscode", "tasks.json")
	if len(file.Tasks) == 0 || len(file.Inputs) != 1 {
		t.Fatalf("%d tasks and %d inputs", len(file.Tasks), len(file.Inputs))
	}
	return ws, file.Tasks, file.Inputs[0].Options
}

func TestEditorTasksCallCommands(t *testing.T) {
	ws, tasks, options := editorTasks(t)
	for _, task := range tasks {
		words := strings.Fields(task.Command)
		if len(words) < 2 || words[0] != "make" || commands[words[1]] == nil {
			t.Errorf("%s: %q is no command of the Makefile", task.Label, task.Command)
		}
	}
	steps, err := ws.Steps()
	fatal.If(t, err)
	var with []string // steps that have exercises
	for _, s := range steps {
		tasks, err := exercise.Of(s)
		fatal.If(t, err)
		if len(tasks) > 0 {
			with = append(with, strconv.Itoa(s.Number))
		}
	}
	if !slices.Equal(options, with) {
		t.Errorf("the options are %v, and the steps with exercises %v", options, with)
	}
}

// An editor marks the line that make check and make watch name.
func TestEditorsFindTheLine(t *testing.T) {
	ws, tasks, _ := editorTasks(t)
	all, err := exercise.All(ws)
	if err != nil || len(all) == 0 {
		t.Fatalf("no exercises: %v", err)
	}
	task := all[0]
	file := task.Shown("main.go")
	shown := map[string][4]string{ // what is printed, and what the editor makes of it
		printed(t, func() { runner.Explain(task, exercise.Verdict{Outcome: exercise.Open, File: "main.go", Line: 12}) }): {file, "12", "", task.NotDone()},
		printed(t, func() {
			runner.Explain(task, exercise.Verdict{Outcome: exercise.Failed, File: "main.go", Line: 7, Expected: "a: b", Held: "work/x: 7"})
		}): {file, "7", "", "not right yet"},
		printed(t, func() {
			runner.Explain(task, exercise.Verdict{Outcome: exercise.Broken, Output: "# example.com/work\n" + file + ":3:14: undefined: a: b"})
		}): {file, "3", "14", "undefined: a: b"},
	}
	matchers := 0
	for _, editor := range tasks {
		var m matcher
		if string(editor.ProblemMatcher) == "[]" {
			continue
		}
		if err := json.Unmarshal(editor.ProblemMatcher, &m); err != nil {
			t.Fatalf("%s: %v", editor.Label, err)
		}
		matchers++
		pattern := regexp.MustCompile(m.Pattern.Regexp)
		for text, want := range shown {
			var found [][4]string
			for line := range strings.Lines(text) {
				if g := pattern.FindStringSubmatch(strings.TrimSuffix(line, "\n")); g != nil {
					found = append(found, [4]string{g[m.Pattern.File], g[m.Pattern.Line], g[m.Pattern.Column], g[m.Pattern.Message]})
				}
			}
			if len(found) != 1 || found[0] != want {
				t.Errorf("%s finds %q, want %q, in\n%s", editor.Label, found, want, text)
			}
		}
	}
	if matchers != 2 {
		t.Errorf("%d tasks have a problem matcher, want make check and make watch", matchers)
	}
}

// The container starts a Docker engine of its own, ends with make doctor, and has the Go that go.mod asks for.
func TestDevcontainer(t *testing.T) {
	var container struct {
		Image, PostStartCommand string
		RunArgs                 []string
		Customizations          struct{ VSCode struct{ Extensions []string } }
	}
	var editor struct{ Recommendations []string }
	ws := read(t, &container, ".devcontainer", "devcontainer.json")
	read(t, &editor, ".vscode", "extensions.json")
	version, err := ws.GoVersion()
	fatal.If(t, err)
	minor := strings.Join(strings.Split(version, ".")[:2], ".")
	if !strings.HasPrefix(container.Image, "golang:"+minor+"-") || !slices.Contains(container.RunArgs, "--privileged") ||
		container.PostStartCommand != "scripts/docker/engine.sh start && make doctor" {
		t.Errorf("%+v, want Go %s and make doctor", container, minor)
	}
	if !slices.Equal(container.Customizations.VSCode.Extensions, editor.Recommendations) {
		t.Errorf("the container installs %v, and the clone recommends %v", container.Customizations.VSCode.Extensions, editor.Recommendations)
	}
}
