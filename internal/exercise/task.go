// Package exercise holds what a learner writes: tasks, the copies of the lesson's
// files in which a part is left open, and what is known about a learner's work.
//
// A task is one file, NN-step/exercises/<number>-<name>.yaml, and one check in the
// tests of the step; README.md here says how to add one. A try is a task of a few
// minutes in the middle of a lesson, <section><letter>-<name>.yaml.
package exercise

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/workspace"
)

// A Task is one thing for a learner to write.
type Task struct {
	Step   workspace.Step `json:"-"`
	Number int            `json:"-"` // within the step, from 1; of a try, the lesson's section
	Letter string         `json:"-"` // of a try, "a" for the first of its section
	Name   string         `json:"-"`

	Title   string `json:"title"`
	Minutes int    `json:"minutes"` // for somebody who does it for the first time
	Do      string `json:"do"`      // what is asked for; a comment in what is left open

	// Takes is how long the check takes if that is longer than anybody expects, as "about
	// 90 seconds". Only make prove proves such a check, apart from its beginning.
	Takes string `json:"takes,omitempty"`

	// Program is a folder of the step with a Go program. The learner gets all of
	// it but the tests, and its packages import one another.
	Program string `json:"program,omitempty"`
	// Folder is the learner's folder if it is not called as the task. Tasks of one
	// folder are about one program, which grows from the starter of the first.
	Folder string `json:"folder,omitempty"`
	// Files are single files: the learner's name, and the path of ours below the step.
	Files map[string]string `json:"files,omitempty"`

	Open     []Edit    `json:"open"`
	Hints    []string  `json:"hints"`
	Mistakes []Mistake `json:"mistakes"`

	first string // the ID of the first task of the folder
}

// IsTry reports whether a task is a few minutes' work in the middle of a section.
func (t Task) IsTry() bool { return t.Letter != "" }

// Shares reports whether a task's folder belongs to other tasks, too.
func (t Task) Shares() bool { return t.Folder != "" }

// An Edit changes one file. What is left open for the learner is an edit of our
// solution, and so is a mistake.
type Edit struct {
	File string `json:"file,omitempty"` // the learner's name for it; the file of the first open edit if empty

	// Do is what is asked for at this place, if that is not the Do of the task.
	Do string `json:"do,omitempty"`

	// Function is a Go function ("follow"), a method ("rollout.complete") or a
	// shell function. An open edit takes its body out; otherwise Body replaces it.
	Function string `json:"function,omitempty"`
	Body     string `json:"body,omitempty"`
	// Path is a key of a YAML file, as "spec.versions.0.schema", which an open edit
	// takes out with what is below it, in the document of this index.
	Path     string `json:"path,omitempty"`
	Document int    `json:"document,omitempty"`
	// Old is a piece of the file that occurs once; New replaces it.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
	// From is a file of the step that replaces the whole file.
	From string `json:"from,omitempty"`
}

// A Mistake is one that a check knows by name.
type Mistake struct {
	Name string `json:"name"`
	// Says is what the check tells the learner: what went wrong, and why.
	Says string `json:"says"`
	// At is a regular expression for the line of the learner's file to look at;
	// the beginning of what was open, if there is no such line.
	At string `json:"at,omitempty"`
	// Mutant makes the mistake in our solution.
	Mutant []Edit `json:"mutant"`
}

// ID is how a task is called in sentences: "3.2", or "3.1a" for the first try of section 1.
func (t Task) ID() string { return fmt.Sprintf("%d.%d%s", t.Step.Number, t.Number, t.Letter) }

// NotDone is what an open task says when it runs. Tasks of one folder have one starter.
func (t Task) NotDone() string { return "task " + cmp.Or(t.first, t.ID()) + " is not done yet" }

// Args names the task to make: "N=3 TASK=repair".
func (t Task) Args() string { return fmt.Sprintf("N=%d TASK=%s", t.Step.Number, t.Name) }

// Mistake returns the mistake of that name.
func (t Task) Mistake(name string) (Mistake, bool) {
	for _, m := range t.Mistakes {
		if m.Name == name {
			return m, true
		}
	}
	return Mistake{}, false
}

var (
	taskFile = regexp.MustCompile(`^([1-9][0-9]?)([a-z]?)-([a-z][a-z-]*)\.yaml$`)
	names    = regexp.MustCompile(`^[a-z][a-z0-9 '-]*$`)
)

// Of returns the tasks of a step in order, and after them its tries.
func Of(step workspace.Step) ([]Task, error) {
	dir := filepath.Join(step.Dir, "exercises")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var tasks []Task
	for _, entry := range entries {
		m := taskFile.FindStringSubmatch(entry.Name())
		if m == nil {
			if filepath.Ext(entry.Name()) == ".yaml" {
				return nil, fmt.Errorf("%s: a task's file is called <number>-<name>.yaml, and that of a try <section><letter>-<name>.yaml", filepath.Join(dir, entry.Name()))
			}
			continue
		}
		path := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		t := Task{Step: step, Letter: m[2], Name: m[3]}
		t.Number, _ = strconv.Atoi(m[1])
		if err := yaml.UnmarshalStrict(data, &t); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := t.complete(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		tasks = append(tasks, t)
	}
	slices.SortFunc(tasks, func(a, b Task) int {
		if a.IsTry() != b.IsTry() {
			return strings.Compare(a.Letter, b.Letter) // a task has none
		}
		return cmp.Or(a.Number-b.Number, strings.Compare(a.Letter, b.Letter))
	})
	for i := range tasks {
		t := &tasks[i]
		if !t.IsTry() && t.Number != i+1 {
			return nil, fmt.Errorf("%s: tasks are numbered from 1 on; %s is number %d of them", dir, t.Name, i+1)
		}
		t.first = tasks[slices.IndexFunc(tasks, func(other Task) bool { return other.folder() == t.folder() })].ID()
	}
	return tasks, nil
}

// UpTo returns the tasks that a check of t covers: t itself, and before it those of
// its folder, because what they ask for has to stay true.
func (t Task) UpTo() ([]Task, error) {
	all, err := t.Together()
	return slices.DeleteFunc(all, func(other Task) bool { return other.Number > t.Number }), err
}

// Together returns the tasks of its folder, which share their files: the learner's, and ours.
func (t Task) Together() ([]Task, error) {
	all, err := Of(t.Step)
	return slices.DeleteFunc(all, func(other Task) bool { return other.folder() != t.folder() }), err
}

// complete fills in what may be left out, and says what may not.
func (t *Task) complete() error {
	switch {
	case t.Title == "" || t.Do == "":
		return errors.New("a task needs a title, and what is to be done")
	case t.Minutes < 1:
		return errors.New("a task says how many minutes it takes")
	case (t.Program == "") == (len(t.Files) == 0):
		return errors.New("a task has either a program or files")
	case len(t.Open) == 0:
		return errors.New("nothing is left open")
	case t.IsTry() && (t.Minutes > 5 || len(t.Hints) == 0):
		return errors.New("a try takes at most 5 minutes, and has a hint")
	case !t.IsTry() && len(t.Hints) < 3:
		return fmt.Errorf("%d hints: want at least 3, each saying more than the one before", len(t.Hints))
	case len(t.Mistakes) == 0:
		return errors.New("no mistake is known by name")
	}
	if t.Program != "" && t.Open[0].File == "" {
		t.Open[0].File = "main.go"
	}
	if t.Program == "" && t.Open[0].File == "" {
		return errors.New("the first open edit names its file")
	}
	fill := func(edits []Edit) {
		for i := range edits {
			if edits[i].File == "" {
				edits[i].File = t.Open[0].File
			}
		}
	}
	fill(t.Open)
	seen := map[string]bool{}
	for _, m := range t.Mistakes {
		if !names.MatchString(m.Name) || seen[m.Name] {
			return fmt.Errorf("mistake %q: a name has lower-case words and occurs once", m.Name)
		}
		seen[m.Name] = true
		if m.Says == "" || len(m.Mutant) == 0 {
			return fmt.Errorf("mistake %s needs what it says and a mutant", m.Name)
		}
		if _, err := regexp.Compile(m.At); err != nil {
			return fmt.Errorf("mistake %s: %w", m.Name, err)
		}
		fill(m.Mutant)
	}
	return nil
}

// Find returns the tasks of a step, or the one that want names or numbers: "2",
// "3.2", "1a" or "repair". The error for an unknown one lists those that exist.
func Find(step workspace.Step, want string) ([]Task, error) {
	tasks, err := Of(step)
	if err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return nil, fmt.Errorf("step %d has no tasks", step.Number)
	}
	if want == "" {
		return tasks, nil
	}
	var list strings.Builder
	for _, t := range tasks {
		if want == t.Name || want == t.ID() || want == strconv.Itoa(t.Number)+t.Letter {
			return []Task{t}, nil
		}
		fmt.Fprintf(&list, "\n  TASK=%-10s %s %s", t.Name, t.ID(), t.Title)
	}
	return nil, fmt.Errorf("step %d has no task %q; its tasks are:%s", step.Number, want, list.String())
}

// All returns the tasks of all steps in order.
func All(ws workspace.Workspace) ([]Task, error) {
	steps, err := ws.Steps()
	if err != nil {
		return nil, err
	}
	var all []Task
	for _, s := range steps {
		tasks, err := Of(s)
		if err != nil {
			return nil, err
		}
		all = slices.Concat(all, tasks)
	}
	return all, nil
}
