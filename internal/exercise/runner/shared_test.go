package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Tasks that share a folder are begun one after another on the same file, and a check of
// one repeats those before it.
func TestTasksOfOneFolder(t *testing.T) {
	ws := workspace.Workspace{Root: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		testfile.Write(t, filepath.Join(ws.Root, name), text)
	}
	write("go.mod", "module "+workspace.Module+"\n\ngo 1.26.0\n")
	write("go.sum", "")
	write("01-curl/README.md", "# One\n")
	write("01-curl/program/main.go", "package main\n\nfunc main() {}\n")
	write("01-curl/exercises/main.go.txt", "package main\n\nfunc main() { panic(\"task 1.1 is not done yet\") }\n")
	const task = "title: A\nminutes: 1\nprogram: program\n%sopen: [{file: main.go, from: exercises/main.go.txt}]\ndo: It.\nhints: [a, b, c]\nmistakes: [{name: none, says: None., mutant: [{old: main(), new: other()}]}]\n"
	for name, folder := range map[string]string{"1-one": "folder: grows\n", "2-two": "folder: grows\n", "3-three": "folder: grows\n", "4-alone": ""} {
		write("01-curl/exercises/"+name+".yaml", fmt.Sprintf(task, folder))
	}
	step, err := ws.Step("1")
	fatal.If(t, err)
	tasks, err := exercise.Of(step)
	if err != nil || len(tasks) != 4 {
		t.Fatal(tasks, err)
	}
	checked := func(task string) (names []string) {
		t.Helper()
		all, err := tasksToCheck(ws, variables{step: "1", task: task})
		fatal.If(t, err)
		for _, t := range all {
			names = append(names, t.Name)
		}
		return names
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("of two", checked("two"), "one", "two")
	want("of alone", checked("alone"), "alone")
	want("of the step, at first", checked(""), "one", "alone")

	fatal.If(t, tasks[0].Begin(ws))
	write("work/01-curl/grows/main.go", "mine")
	now := time.Now()
	fatal.If(t, tasks[0].SetState(ws, exercise.State{Passed: &now}))
	want("of the step, when one has passed", checked(""), "one", "two", "alone")
	for range 2 {
		if err := tasks[1].Begin(ws); err != nil {
			t.Errorf("going on: %v", err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(ws.Root, "work/01-curl/grows/main.go")); err != nil || string(data) != "mine" {
		t.Errorf("the file is now %q (%v)", data, err)
	}
	progress, err := exercise.ProgressOf(ws, tasks)
	fatal.If(t, err)
	var states []string
	for _, p := range progress {
		states = append(states, p.State)
	}
	want("states", states, "passed", "begun", "not begun", "not begun")
	if tasks[2].NotDone() != "task 1.1 is not done yet" || tasks[3].NotDone() != "task 1.4 is not done yet" {
		t.Errorf("%q, %q", tasks[2].NotDone(), tasks[3].NotDone())
	}
}

// What a check has said is remembered with its file and line, also what the compiler has said.
func TestSaid(t *testing.T) {
	task := exercise.Task{Step: workspace.Step{Number: 1, Name: "01-curl"}, Number: 2, Name: "one", Program: "one", Open: []exercise.Edit{{File: "main.go"}},
		Mistakes: []exercise.Mistake{{Name: "no retry", Says: "It gives\n up."}}}
	for name, tc := range map[string]struct {
		verdict exercise.Verdict
		want    exercise.Said
	}{
		"a mistake":    {exercise.Verdict{Outcome: exercise.Failed, Mistake: "no retry", File: "main.go", Line: 7}, exercise.Said{File: task.Shown("main.go"), Line: 7, Text: "no retry: It gives up."}},
		"another one":  {exercise.Verdict{Outcome: exercise.Failed, File: "main.go", Line: 8}, exercise.Said{File: task.Shown("main.go"), Line: 8, Text: "not right yet"}},
		"open":         {exercise.Verdict{Outcome: exercise.Open, File: "main.go", Line: 9}, exercise.Said{File: task.Shown("main.go"), Line: 9, Text: task.NotDone()}},
		"the compiler": {exercise.Verdict{Outcome: exercise.Broken, Output: "# work/one\nwork/one/other.go:12:3: undefined: x\nwork/one/main.go:1:1: y"}, exercise.Said{File: "work/one/other.go", Line: 12, Text: "undefined: x"}},
		"no line":      {exercise.Verdict{Outcome: exercise.Broken, Output: "it hangs"}, exercise.Said{File: task.Shown("main.go"), Line: 1, Text: "it hangs"}},
	} {
		if diff := cmp.Diff(tc.want, saidOf(task, tc.verdict)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
