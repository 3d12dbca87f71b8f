package exercise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/k8s-go/workshop/internal/workspace"
)

// Work is the tree with the learner's files.
func Work(ws workspace.Workspace) string { return filepath.Join(ws.Root, "work") }

// A State is what is known about a learner's work on a task. It lies beside the
// files, and stays and goes with them.
type State struct {
	Begun   time.Time         `json:"begun"`
	Starter map[string]string `json:"starter"` // hashes of the files with which the learner began
	Hints   int               `json:"hints"`   // how many were shown
	Checks  int               `json:"checks"`  // how often it was checked
	Passed  *time.Time        `json:"passed,omitempty"`
	Mistake string            `json:"mistake,omitempty"` // what the last check has found, by name
	Said    *Said             `json:"said,omitempty"`    // what it said, unless the task passed
}

// Said is what a check says about a place.
type Said struct {
	File string `json:"file"` // as a path of the clone
	Line int    `json:"line"`
	Text string `json:"text"`
}

// stateFile is where the state of a task is, beside the learner's files.
func (t Task) stateFile(ws workspace.Workspace) string {
	name := ".state.json"
	if t.Shares() {
		name = ".state-" + t.Name + ".json"
	}
	return filepath.Join(t.Dir(Work(ws)), name)
}

// Begun reports whether a learner has files of a task. Where tasks share a folder, a
// task is begun with the folder.
func (t Task) Begun(ws workspace.Workspace) bool {
	_, err := os.Stat(t.Dir(Work(ws)))
	return err == nil
}

// State returns what is known about a task that was begun.
func (t Task) State(ws workspace.Workspace) (State, error) {
	var s State
	path := t.stateFile(ws)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil // somebody has removed it, or there is no work
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w; remove it if it is broken", path, err)
	}
	return s, nil
}

// SetState remembers it.
func (t Task) SetState(ws workspace.Workspace, s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return workspace.WriteWhole(t.stateFile(ws), append(data, '\n'), 0o644)
}

// A Progress is one task in the list of make progress.
type Progress struct {
	Task    string     `json:"task"` // "3.2"
	Name    string     `json:"name"`
	Title   string     `json:"title"`
	Minutes int        `json:"minutes"`
	State   string     `json:"state"` // "not begun", "begun" or "passed"
	Begun   *time.Time `json:"begun,omitempty"`
	Passed  *time.Time `json:"passed,omitempty"`
	Checks  int        `json:"checks"`
	Hints   int        `json:"hints"`
	Mistake string     `json:"mistake,omitempty"` // of the last check
	Said    *Said      `json:"said,omitempty"`    // by the last check
}

// ProgressOf returns what a learner has done of these tasks.
func ProgressOf(ws workspace.Workspace, tasks []Task) ([]Progress, error) {
	list := []Progress{}
	for _, t := range tasks {
		s, err := t.State(ws)
		if err != nil {
			return nil, err
		}
		p := Progress{Task: t.ID(), Name: t.Name, Title: t.Title, Minutes: t.Minutes, State: "not begun",
			Passed: s.Passed, Checks: s.Checks, Hints: s.Hints, Mistake: s.Mistake, Said: s.Said}
		if t.Begun(ws) && (!t.Shares() || s.Checks > 0 || !s.Begun.IsZero()) {
			p.State = "begun"
			if !s.Begun.IsZero() {
				p.Begun = &s.Begun
			}
		}
		if s.Passed != nil {
			p.State = "passed"
		}
		list = append(list, p)
	}
	return list, nil
}

// Begin writes the files with which a learner begins. A further task of a folder
// goes on with the files that are there.
func (t Task) Begin(ws workspace.Workspace) error {
	if t.Begun(ws) && t.Shares() {
		s, err := t.State(ws)
		if err != nil || !s.Begun.IsZero() {
			return err
		}
		s.Begun = time.Now().UTC().Truncate(time.Second)
		return t.SetState(ws, s)
	}
	if t.Begun(ws) {
		return fmt.Errorf("%s is there and stays as it is; make reset %s moves it aside and begins again", t.Shown(""), t.Args())
	}
	files, err := t.Starter()
	if err != nil {
		return err
	}
	if err := t.writeModule(ws, Work(ws)); err != nil {
		return err
	}
	if err := files.write(t.Dir(Work(ws))); err != nil {
		return err
	}
	return t.SetState(ws, State{Begun: time.Now().UTC().Truncate(time.Second), Starter: files.hashes()})
}

// Shown is the path of a learner's file as a person at the root of the clone types it.
func (t Task) Shown(name string) string {
	return filepath.Join("work", filepath.FromSlash(t.folder()), filepath.FromSlash(name))
}

// Refresh brings the module of the learner's files up to date with the clone.
func (t Task) Refresh(ws workspace.Workspace) error { return t.writeModule(ws, Work(ws)) }

// SetAside moves a learner's files of a task away and returns where they are.
func (t Task) SetAside(ws workspace.Workspace, now time.Time) (string, error) {
	if !t.Begun(ws) {
		return "", fmt.Errorf("there is no %s; make exercise %s begins it", t.Shown(""), t.Args())
	}
	// Go and editors take no notice of a folder whose name begins with a dot.
	aside := filepath.Join("work", ".aside", t.Step.Name, path.Base(t.folder())+"-"+now.Format("2006-01-02T15-04-05"))
	for i := 2; ; i++ {
		if _, err := os.Stat(filepath.Join(ws.Root, aside)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		aside = fmt.Sprintf("%s-%d", aside, i)
	}
	if err := os.MkdirAll(filepath.Join(ws.Root, filepath.Dir(aside)), 0o755); err != nil {
		return "", err
	}
	return aside, os.Rename(t.Dir(Work(ws)), filepath.Join(ws.Root, aside))
}

// Changed names the files of the starter that are not what they were when the
// learner began.
func (t Task) Changed(s State) ([]string, error) {
	if s.Starter == nil {
		return nil, nil
	}
	starter, err := t.Starter()
	if err != nil {
		return nil, err
	}
	now := starter.hashes()
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if s.Starter[name] != now[name] {
			changed = append(changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Starter)) {
		if now[name] == "" {
			changed = append(changed, name)
		}
	}
	return changed, nil
}

// Read returns the learner's present files of a task, by the names of ours.
func (t Task) Read(dir string) (Files, error) {
	names, err := t.Solution()
	if err != nil {
		return nil, err
	}
	files := Files{}
	for name := range names {
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the learner may have moved it; the compiler knows better
		}
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	return files, nil
}
