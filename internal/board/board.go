// Package board shows a trainer how far each learner is: one line for each file
// that make progress JSON=1 has written.
package board

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/k8s-go/workshop/internal/terminal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Task is what the board needs of a task in a progress file.
type Task struct {
	Task    string     `json:"task"` // "3.2"
	Name    string     `json:"name"`
	State   string     `json:"state"`
	Begun   *time.Time `json:"begun"`
	Checks  int        `json:"checks"`
	Hints   int        `json:"hints"`
	Mistake string     `json:"mistake"`
}

// A learner is one file.
type learner struct {
	name  string
	saved time.Time
	tasks []Task
	err   error // why the file cannot be read
}

// every is how often the folder is read. It is polled, because the server of a
// shared folder reports no changes that other machines make.
const every = time.Second

// Watch shows the learners' files in dir until ctx ends, again whenever one has
// changed. Only a folder that is not there at first is an error.
func Watch(ctx context.Context, dir string, out io.Writer) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is no folder that can be read: make it first, where every learner can write to it (%v)", dir, err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := ""; ; {
		text := Table(dir)
		if text != last {
			if terminal.Colors(out) {
				fmt.Fprint(out, "\x1b[H\x1b[2J") // to the top of an empty screen
			}
			fmt.Fprintf(out, "%s  %s\n\n%s\n", dir, time.Now().Format(time.TimeOnly), text)
			last = text
		}
		select {
		case <-ctx.Done():
			return nil // Ctrl-C is how it ends
		case <-tick.C:
		}
	}
}

// Table returns the table of the files in dir.
func Table(dir string) string {
	learners, err := read(dir)
	if err != nil {
		return fmt.Sprintf("The folder cannot be read: %s\n", clean(err.Error(), 200))
	}
	if len(learners) == 0 {
		return "No file yet. A learner writes one with: make -s progress JSON=1 >FOLDER/anna.json\n"
	}
	steps := map[string]bool{}
	for _, l := range learners {
		for _, t := range l.tasks {
			steps[t.step()] = true
		}
	}
	columns := slices.SortedFunc(maps.Keys(steps), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "LEARNER\tDONE\t")
	for _, step := range columns {
		fmt.Fprintf(tw, "STEP %s\t", step)
	}
	fmt.Fprintln(tw, "SAVED\tNOW")
	for _, l := range learners {
		if l.err != nil {
			// A cell that ends in no tab does not widen its column.
			fmt.Fprintf(tw, "%s\tcannot be read: %s\n", l.name, clean(l.err.Error(), 100))
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t", l.name, l.done(""))
		for _, step := range columns {
			fmt.Fprintf(tw, "%s\t", l.done(step))
		}
		fmt.Fprintf(tw, "%s\t%s\n", l.saved.Format("15:04"), l.now())
	}
	_ = tw.Flush() // into memory
	return b.String()
}

func read(dir string) ([]learner, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var learners []learner
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || name == "" || strings.HasPrefix(name, ".") {
			continue
		}
		l := learner{name: clean(name, 24)}
		l.tasks, l.saved, l.err = readFile(filepath.Join(dir, e.Name()))
		if errors.Is(l.err, os.ErrNotExist) {
			continue // gone meanwhile
		}
		learners = append(learners, l)
	}
	return learners, nil
}

// limit is the most that is read of a file. A real one has a few kilobytes.
const limit = 1 << 20

// mostTasks is more than the workshop has.
const mostTasks = 300

var taskNumber = regexp.MustCompile(`^1?\d\.\d{1,2}[a-z]?$`)

func readFile(path string) ([]Task, time.Time, error) {
	data, info, err := workspace.ReadForeign(path, limit)
	switch {
	case errors.Is(err, workspace.ErrNotRegular), err == nil && info.Size() > limit:
		return nil, time.Time{}, errors.New("it is no file of make progress JSON=1")
	case err != nil:
		return nil, time.Time{}, err
	}
	if len(data) == 0 {
		return nil, time.Time{}, errors.New("it is empty; perhaps it is being written")
	}
	var file struct {
		Tasks []Task `json:"tasks"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, time.Time{}, err
	}
	if file.Tasks == nil {
		return nil, time.Time{}, errors.New("it has no tasks: write it with make -s progress JSON=1")
	}
	// Anybody may have written it, and each step is a column of everybody's table.
	if len(file.Tasks) > mostTasks || slices.ContainsFunc(file.Tasks, func(t Task) bool { return !taskNumber.MatchString(t.Task) }) {
		return nil, time.Time{}, errors.New("it has other tasks than make progress JSON=1 writes")
	}
	return file.Tasks, info.ModTime(), nil
}

func (t Task) step() string {
	step, _, _ := strings.Cut(t.Task, ".")
	return clean(step, 4)
}

// done counts the tasks that have passed, of a step or of all: "2/3".
func (l learner) done(step string) string {
	passed, all := 0, 0
	for _, t := range l.tasks {
		if step != "" && t.step() != step {
			continue
		}
		all++
		if t.State == "passed" {
			passed++
		}
	}
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", passed, all)
}

// now is the task that a learner has begun last and not finished.
func (l learner) now() string {
	var last *Task
	for i, t := range l.tasks {
		if t.State == "begun" && (last == nil || t.Begun != nil && (last.Begun == nil || !t.Begun.Before(*last.Begun))) {
			last = &l.tasks[i]
		}
	}
	if last == nil {
		return ""
	}
	text := fmt.Sprintf("%s %s, %d checks, %d hints", last.Task, last.Name, last.Checks, last.Hints)
	if last.Mistake != "" {
		text += ": " + last.Mistake
	}
	return clean(text, 80)
}

// clean makes text of a file that anybody may have written fit for a terminal.
func clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most-1]) + "…"
	}
	return text
}
