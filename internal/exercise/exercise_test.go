package exercise

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	ws, err := workspace.Find()
	fatal.If(t, err)
	return ws
}

// Every task can be opened, every mistake can be made, and the lesson says that
// there is a task. That the checks tell them apart is proved by each step's tests.
func TestTasks(t *testing.T) {
	tasks, err := All(clone(t))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d tasks, %v", len(tasks), err)
	}
	for _, task := range tasks {
		t.Run(task.Step.Name+"/"+task.Name, func(t *testing.T) {
			solution, err := task.Solution()
			fatal.If(t, err)
			starter, err := task.Starter()
			fatal.If(t, err)
			if !strings.Contains(string(starter[task.Open[0].File]), task.NotDone()) {
				t.Errorf("%s does not say %q", task.Open[0].File, task.NotDone())
			}
			for _, m := range task.Mistakes {
				mutant, err := task.Mutant(m)
				if err != nil {
					t.Error(err)
				} else if cmp.Equal(mutant, solution) {
					t.Errorf("the mutant of %q is the solution", m.Name)
				}
			}
			var readme []byte
			for _, document := range task.Step.Documents() {
				text, err := os.ReadFile(document)
				fatal.If(t, err)
				readme = append(readme, text...)
			}
			if want := "make check " + task.Args(); !strings.Contains(string(readme), want) {
				t.Errorf("the step's README does not say %s", want)
			}
		})
	}
}

const source = `package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/klog/v2"
)

type list[T any] []T

// add adds.
func (l *list[T]) add(ctx context.Context, s T) (int, error) {
	klog.Info(strings.ToUpper("x")) // gone with it
	return fmt.Fprintln(os.Stderr, s)
}

func main() { fmt.Println(os.Args) }
`

func TestOpenGo(t *testing.T) {
	task := Task{Number: 2, Step: workspace.Step{Number: 3}, Do: "Add s.\n\nAll of it.\n", Open: []Edit{{File: "main.go", Function: "list.add"}}}
	got, err := task.open(task.Open[0], []byte(source))
	fatal.If(t, err)
	want := `package main

import (
	"context"
	"fmt"
	"os"
)

type list[T any] []T

// add adds.
func (l *list[T]) add(ctx context.Context, s T) (int, error) {
	// Your turn, task 3.2:
	// Add s.
	//
	// All of it.
	panic("task 3.2 is not done yet")
}

func main() { fmt.Println(os.Args) }
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := task.open(Edit{File: "main.go", Function: "add"}, []byte(source)); err == nil {
		t.Error("a method was found as a function")
	}
}

func TestOpenShell(t *testing.T) {
	const script = "#!/bin/bash\none() { # prints 1\n  echo 1\n}\none\n"
	task := Task{Number: 1, Step: workspace.Step{Number: 1}, Do: "Print 1.", Open: []Edit{{File: "one.sh", Function: "one"}}}
	got, err := task.open(task.Open[0], []byte(script))
	fatal.If(t, err)
	want := "#!/bin/bash\none() { # prints 1\n  # Your turn, task 1.1:\n  # Print 1.\n  echo \"task 1.1 is not done yet\" >&2\n  exit 1\n}\none\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	file := filepath.Join(t.TempDir(), "one.sh")
	fatal.If(t, os.WriteFile(file, got, 0o755))
	output, err := exec.CommandContext(t.Context(), "bash", file).CombinedOutput()
	if err == nil || string(output) != task.NotDone()+"\n" {
		t.Errorf("it says %q, %v", output, err)
	}
}

func TestOpenYAML(t *testing.T) {
	const file = `a: 1
---
list:
- name: first
  rules:
  - a
  # about b
  - |
    b

    c

  # the end
  after: 1
rules: {}
`
	task := Task{Number: 1, Step: workspace.Step{Number: 4}, Do: "Write rules.", Open: []Edit{{File: "x.yaml", Path: "list.0.rules", Document: 1}}}
	got, err := task.open(task.Open[0], []byte(file))
	fatal.If(t, err)
	want := `a: 1
---
list:
- name: first
  # Your turn, task 4.1:
  # Write rules.
  # task 4.1 is not done yet: remove this line when it is

  # the end
  after: 1
rules: {}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := task.open(Edit{File: "x.yaml", Path: "list.0.none", Document: 1}, []byte(file)); err == nil {
		t.Error("a path that is not there was taken out")
	}
}

// A learner's files are never overwritten: begin refuses, reset sets them aside.
func TestWorkIsKept(t *testing.T) {
	ws := workspace.Workspace{Root: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		testfile.Write(t, filepath.Join(ws.Root, name), text)
	}
	write("go.mod", "module "+workspace.Module+"\n\ngo 1.26.0\n\nrequire k8s.io/api v0.36.3\n")
	write("go.sum", "")
	write("01-curl/one.sh", "one() {\n  echo 1\n}\n")
	task := Task{Step: workspace.Step{Number: 1, Name: "01-curl", Dir: filepath.Join(ws.Root, "01-curl")}, Number: 1, Name: "one", Do: "Print 1.",
		Files: map[string]string{"one.sh": "one.sh"}, Open: []Edit{{File: "one.sh", Function: "one"}}}
	fatal.If(t, task.Begin(ws))
	write("work/01-curl/one/one.sh", "mine")
	if err := task.Begin(ws); err == nil || !strings.Contains(err.Error(), "make reset N=1 TASK=one") {
		t.Errorf("begun twice: %v", err)
	}
	now := time.Now()
	for range 2 { // within a second
		aside, err := task.SetAside(ws, now)
		fatal.If(t, err)
		if data, err := os.ReadFile(filepath.Join(ws.Root, aside, "one.sh")); err != nil || string(data) != "mine" {
			t.Errorf("set aside: %q, %v", data, err)
		}
		if task.Begun(ws) {
			t.Error("it is still there")
		}
		fatal.If(t, task.Begin(ws))
		write("work/01-curl/one/one.sh", "mine")
	}

	s, err := task.State(ws)
	fatal.If(t, err)
	if changed, err := task.Changed(s); err != nil || len(changed) > 0 {
		t.Errorf("changed: %v, %v", changed, err)
	}
	write("01-curl/one.sh", "# new\none() {\n  echo 1\n}\n")
	if changed, err := task.Changed(s); err != nil || !cmp.Equal(changed, []string{"one.sh"}) {
		t.Errorf("changed: %v, %v, want one.sh", changed, err)
	}
}

// What a learner adds to the module stays. What the workshop requires has its versions.
func TestAddedModulesAreKept(t *testing.T) {
	ws := workspace.Workspace{Root: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		testfile.Write(t, filepath.Join(ws.Root, name), text)
	}
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(ws.Root, name))
		fatal.If(t, err)
		return string(data)
	}
	refresh := func() {
		t.Helper()
		fatal.If(t, (Task{}).Refresh(ws))
	}
	const ours = "module " + workspace.Module + "\n\ngo 1.26.0\n\nrequire k8s.io/api v0.36.3\n\nrequire golang.org/x/net v0.50.0 // indirect\n"
	write("go.mod", ours)
	write("go.sum", "k8s.io/api v0.36.3 h1:a=\n")
	refresh()
	first := read("work/go.mod")

	// Without a module of the learner's own, newer versions come from another commit.
	write("work/go.mod", strings.NewReplacer("v0.36.3", "v0.37.0", "v0.50.0", "v0.51.0", "go 1.26.0", "go 1.27.0").Replace(first))
	refresh()
	if diff := cmp.Diff(first, read("work/go.mod")); diff != "" {
		t.Errorf("go.mod (-first +now):\n%s", diff)
	}

	write("work/go.mod", strings.NewReplacer("v0.36.3", "v0.37.0", "v0.50.0", "v0.51.0", "go 1.26.0", "go 1.26.1").Replace(first)+
		"\nrequire example.com/one v1.0.0\n\nrequire (\n\texample.com/two v1.0.0 // indirect\n\texample.com/local v0.0.0\n)\n\nreplace example.com/local => ./local\n\nreplace golang.org/x/net => ../net\n\nexclude example.com/three v1.0.0\n\ntool example.com/one/cmd\n")
	write("work/go.sum", "example.com/one v1.0.0 h1:b=\nk8s.io/api v0.36.3 h1:a=\n")
	refresh()
	mod, sum := read("work/go.mod"), read("work/go.sum")
	for _, want := range []string{"go 1.26.1\n", "k8s.io/api v0.36.3\n", "golang.org/x/net v0.51.0 // indirect\n", "example.com/one v1.0.0\n",
		"example.com/two v1.0.0 // indirect\n", "example.com/local v0.0.0\n", "replace example.com/local => ./local\n",
		"replace golang.org/x/net => ../net\n", "exclude example.com/three v1.0.0\n", "tool example.com/one/cmd\n"} {
		if !strings.Contains(mod, want) {
			t.Errorf("go.mod lacks %q:\n%s", want, mod)
		}
	}
	if want := "k8s.io/api v0.36.3 h1:a=\nexample.com/one v1.0.0 h1:b=\n"; sum != want {
		t.Errorf("go.sum is\n%swant\n%s", sum, want)
	}
	refresh()
	if diff := cmp.Diff(mod+sum, read("work/go.mod")+read("work/go.sum")); diff != "" {
		t.Errorf("a second time changes it:\n%s", diff)
	}
	// The next commit of the workshop has another version.
	write("go.mod", strings.ReplaceAll(ours, "v0.36.3", "v0.36.4"))
	refresh()
	if got := read("work/go.mod"); got != strings.ReplaceAll(mod, "v0.36.3", "v0.36.4") {
		t.Errorf("after an update of the clone:\n%s", got)
	}
	write("work/go.mod", "require what\n")
	if err := (Task{}).Refresh(ws); err == nil || !strings.Contains(err.Error(), "work/go.mod:1") || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("with a go.mod that is broken: %v", err)
	}
}
