// Package runner holds the commands with which a learner works on exercises.
package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/terminal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// An Exit ends the program with a code, once all has been said.
type Exit struct{ Code int }

func (e *Exit) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// couldNotCheck says why there is no verdict. That is no failure of the learner's.
func couldNotCheck(err error) error {
	if err == nil {
		return nil
	}
	fmt.Fprintf(os.Stderr, "error: this could not be checked: %v\n", err)
	return &Exit{Code: 2}
}

// variables are what the Makefile passes on.
type variables struct {
	step, task string
}

func given() variables {
	v := variables{step: os.Getenv("N"), task: os.Getenv("TASK")}
	if step, _, ok := strings.Cut(v.task, "."); ok && v.step == "" {
		v.step = step // TASK=3.2 says it all
	}
	return v
}

// NamedTasks returns the tasks that N and TASK name: without TASK, all of the step.
func NamedTasks(ws workspace.Workspace) ([]exercise.Task, error) { return namedTasks(ws, given()) }

func namedTasks(ws workspace.Workspace, v variables) ([]exercise.Task, error) {
	step, err := ws.Step(v.step)
	if err != nil {
		return nil, err
	}
	return exercise.Find(step, v.task)
}

// currentTask returns the task that TASK names, else the first that is begun and has not passed.
func currentTask(ws workspace.Workspace, v variables) (exercise.Task, exercise.State, error) {
	tasks, err := namedTasks(ws, v)
	if err != nil {
		return exercise.Task{}, exercise.State{}, err
	}
	var left []exercise.Task // which have not passed
	for _, t := range tasks {
		s, err := t.State(ws)
		if err != nil {
			return t, s, err
		}
		if v.task == "" && s.Passed != nil {
			continue
		}
		if t.Begun(ws) {
			return t, s, nil
		}
		left = append(left, t)
	}
	if len(left) > 0 {
		return left[0], exercise.State{}, fmt.Errorf("task %s is not begun: make exercise %s writes your copy", left[0].ID(), left[0].Args())
	}
	return exercise.Task{}, exercise.State{}, fmt.Errorf("all tasks of step %d have passed; name one with TASK=%s", tasks[0].Step.Number, tasks[0].Name)
}

// Begin writes the learner's copies of tasks that are not there yet, and shows these tasks, or the one that TASK names.
func Begin(_ context.Context, ws workspace.Workspace, _ []string) error {
	v := given()
	tasks, err := namedTasks(ws, v)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		there := t.Begun(ws)
		kept := there && !t.Shares()
		err := t.Begin(ws) // of one that is kept it says so
		if err != nil && !kept {
			return err
		}
		if !kept || v.task != "" {
			showTask(t, there)
		}
		if kept {
			fmt.Printf("Note: %v\n", err)
		}
	}
	args := fmt.Sprintf("N=%d", tasks[0].Step.Number)
	if v.task != "" {
		args = tasks[0].Args()
	}
	fmt.Printf("\n%s says whether it is done, make watch %s does so at each save, and make hint %s helps.\n", terminal.Bold.Paint(os.Stdout, "make check "+args), args, args)
	return nil
}

func showTask(t exercise.Task, begun bool) {
	fmt.Printf("%s\n", terminal.Bold.Paint(os.Stdout, fmt.Sprintf("%s %s: %s (about %d minutes)", t.ID(), t.Name, t.Title, t.Minutes)))
	for line := range strings.Lines(strings.TrimSpace(t.Do)) {
		fmt.Printf("  %s\n", strings.TrimRight(line, "\n"))
	}
	for _, e := range t.Open {
		if e.Do != "" {
			fmt.Printf("  %s: %s\n", cmp.Or(e.Function, e.Path), strings.ReplaceAll(strings.TrimSpace(e.Do), "\n", "\n  "))
		}
	}
	var files []string
	for _, e := range t.Open {
		if file := t.Shown(e.File); !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	where := "Write it in"
	if begun {
		where = "Go on in"
	}
	fmt.Printf("  %s %s\n", where, strings.Join(files, " and "))
}

// Reset sets the learner's copy aside and writes a new one.
func Reset(_ context.Context, ws workspace.Workspace, _ []string) error {
	v := given()
	if v.task == "" {
		return errors.New("which task? make reset takes TASK=name or number, besides N")
	}
	tasks, err := namedTasks(ws, v)
	if err != nil {
		return err
	}
	t := tasks[0]
	together, err := t.Together()
	if err != nil {
		return err
	}
	progress, err := exercise.ProgressOf(ws, together)
	if err != nil {
		return err
	}
	var passed []string
	for _, p := range progress {
		if p.Passed != nil {
			passed = append(passed, p.Name)
		}
	}
	if t.Shares() && len(passed) > 0 && os.Getenv("FORCE") == "" {
		return fmt.Errorf("%s is the program of %d tasks, of which %s passed with it: make reset %s FORCE=1 sets all of it aside", t.Shown(""), len(together), strings.Join(passed, " and "), t.Args())
	}
	aside, err := t.SetAside(ws, time.Now())
	if err != nil {
		return err
	}
	if err := t.Begin(ws); err != nil {
		return fmt.Errorf("your files are in %s, and a new copy could not be written: %w", aside, err)
	}
	fmt.Printf("Your files are in %s; %s is as in the beginning\n", aside, t.Shown(""))
	fmt.Printf("  rm -r %[1]s && mv %[2]s %[1]s   takes them back\n", t.Shown(""), aside)
	return nil
}

// Check checks the learner's tasks. Its exit code is 1 if one has not passed, and
// 2 if it could not find out.
func Check(ctx context.Context, ws workspace.Workspace, _ []string) error {
	tasks, err := tasksToCheck(ws, given())
	if err != nil {
		return couldNotCheck(err)
	}
	passed, err := checkTasks(ctx, ws, tasks)
	switch {
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case err != nil:
		return couldNotCheck(err)
	case !passed:
		return &Exit{Code: 1}
	}
	return nil
}

// tasksToCheck returns the tasks that a command checks. Where tasks share a folder,
// these are the one that TASK names and those before it; without TASK, those up to the
// first that has not passed, because the next ones build on it.
func tasksToCheck(ws workspace.Workspace, v variables) ([]exercise.Task, error) {
	tasks, err := namedTasks(ws, v)
	if err != nil {
		return nil, err
	}
	if v.task != "" {
		return tasks[0].UpTo()
	}
	var due []exercise.Task
	open := map[string]bool{} // shared folders with a task that has not passed
	for _, t := range tasks {
		s, err := t.State(ws)
		if err != nil {
			return nil, err
		}
		if !open[t.Folder] {
			due = append(due, t)
		}
		open[t.Folder] = t.Shares() && (open[t.Folder] || s.Passed == nil)
	}
	return due, nil
}

// checkTasks checks tasks of one step, shows the verdicts and remembers them.
func checkTasks(ctx context.Context, ws workspace.Workspace, tasks []exercise.Task) (passed bool, err error) {
	var begun []exercise.Task
	for _, t := range tasks {
		if t.Begun(ws) {
			begun = append(begun, t)
		}
	}
	verdicts := map[string]exercise.Verdict{}
	var failed error
	if len(begun) > 0 {
		if verdicts, failed = runChecks(ctx, ws, begun); len(verdicts) == 0 && failed != nil {
			return false, failed
		}
	}
	width := 0
	for _, t := range tasks {
		width = max(width, len(t.Name))
	}
	passed = true
	var details []func()
	var broken string // what the compiler has said last
	for _, t := range tasks {
		v, checked := verdicts[t.Name]
		line := ""
		switch {
		case !checked && t.Begun(ws):
			line = "could not be checked"
		case !checked:
			line = "not begun: make exercise " + t.Args()
		case v.Outcome == exercise.Passed:
			line = terminal.Green.Paint(os.Stdout, "passed")
		case v.Outcome == exercise.Open:
			line = t.NotDone()
		case v.Outcome == exercise.Broken:
			line = "does not compile"
			if t.Program == "" {
				line = "cannot be run"
			}
		default:
			line = "not right yet"
			if v.Mistake != "" {
				line += ": " + v.Mistake
			}
		}
		fmt.Printf("%s %-*s  %s\n", t.ID(), width, t.Name, line)
		if checked {
			failed = errors.Join(failed, remember(ws, t, v))
		}
		if v.Outcome != exercise.Passed {
			passed = false
			// What does not compile says the same for all tasks of its folder.
			if checked && (v.Outcome != exercise.Broken || v.Output != broken) {
				details = append(details, func() { Explain(t, v) })
			}
			if v.Outcome == exercise.Broken {
				broken = v.Output
			}
		}
	}
	switch {
	case details != nil:
		for _, explain := range details {
			fmt.Println()
			explain()
		}
	case passed:
		last := tasks[len(tasks)-1]
		together, err := last.Together()
		if err != nil {
			return false, err
		}
		if i := slices.IndexFunc(together, func(t exercise.Task) bool { return t.Number > last.Number }); i >= 0 {
			fmt.Printf("\nmake exercise %s goes on\n", together[i].Args())
		} else {
			fmt.Printf("\nmake solution %s compares yours with ours\n", last.Args())
		}
	}
	return passed, failed
}

// Explain says what is not right, and where.
func Explain(t exercise.Task, v exercise.Verdict) {
	if v.Outcome == exercise.Broken {
		fmt.Println(v.Output)
		said := map[string]bool{}
		for _, name := range undefined.FindAllStringSubmatch(v.Output, -1) {
			if line, err := t.ImportOf(name[1]); err == nil && line != "" && !said[line] {
				fmt.Printf("  perhaps   import %s\n", line)
				said[line] = true
			}
		}
		return
	}
	// Editors know this form: file, line, message.
	said := saidOf(t, v)
	fmt.Printf("%s:%d: %s\n", said.File, said.Line, said.Text)
	if v.Outcome == exercise.Failed {
		fmt.Printf("  expected  %s\n  held      %s\n", indent(v.Expected), indent(v.Held))
	}
	fmt.Printf("  hint      make hint %s\n", t.Args())
}

// undefined is what the compiler says of a package that is not imported, among others.
var undefined = regexp.MustCompile(`undefined: (\w+)`)

// compiled is a line of the compiler's about a learner's file.
var compiled = regexp.MustCompile(`(?m)^([^\s:]+):(\d+)(?::\d+)?: (.+)$`)

// saidOf puts a verdict other than Passed at a line of a file.
func saidOf(t exercise.Task, v exercise.Verdict) exercise.Said {
	said := exercise.Said{File: t.Shown(v.File), Line: v.Line, Text: "not right yet"}
	switch {
	case v.Outcome == exercise.Broken:
		said.File, said.Line, said.Text = t.Shown(t.Open[0].File), 1, v.Output
		if m := compiled.FindStringSubmatch(v.Output); m != nil {
			said.File, said.Text = m[1], m[3]
			said.Line, _ = strconv.Atoi(m[2])
		}
	case v.Outcome == exercise.Open:
		said.Text = t.NotDone()
	case v.Mistake != "":
		said.Text = v.Mistake
		if m, ok := t.Mistake(v.Mistake); ok {
			said.Text += ": " + strings.Join(strings.Fields(m.Says), " ")
		}
	}
	return said
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n            ")
}

func remember(ws workspace.Workspace, t exercise.Task, v exercise.Verdict) error {
	s, err := t.State(ws)
	if err != nil {
		return err
	}
	changed, err := t.Changed(s)
	if err != nil {
		return err
	}
	if len(changed) > 0 && !t.Shares() { // with what several tasks have added, nobody begins again
		fmt.Printf("Note: since you began, the workshop has changed %s of task %s; make reset %s sets yours aside and begins with the new one\n",
			strings.Join(changed, " and "), t.ID(), t.Args())
	}
	s.Checks++
	s.Mistake, s.Said = v.Mistake, nil
	if v.Outcome != exercise.Passed {
		said := saidOf(t, v)
		if v.Outcome == exercise.Failed && v.Mistake == "" { // the page has no other place for that
			said.Text += ": expected " + strings.Join(strings.Fields(v.Expected), " ")
		}
		s.Said = &said
	}
	if v.Outcome == exercise.Passed && s.Passed == nil {
		now := time.Now().UTC().Truncate(time.Second)
		s.Passed = &now
	}
	return t.SetState(ws, s)
}

// Hint shows one more hint.
func Hint(_ context.Context, ws workspace.Workspace, _ []string) error {
	t, s, err := currentTask(ws, given())
	if err != nil {
		return err
	}
	s.Hints = min(s.Hints+1, len(t.Hints)) // another version of the workshop may have had more
	fmt.Printf("Hint %d of %d for task %s, %s:\n%s\n", s.Hints, len(t.Hints), t.ID(), t.Name, strings.TrimSpace(t.Hints[s.Hints-1]))
	if s.Hints == len(t.Hints) {
		fmt.Printf("That was the last one. make solution %s FORCE=1 shows how ours differs from yours.\n", t.Args())
	}
	return t.SetState(ws, s)
}

// Solution shows how the learner's files differ from ours.
func Solution(ctx context.Context, ws workspace.Workspace, _ []string) error {
	v := given()
	tasks, err := namedTasks(ws, v)
	if err != nil {
		return err
	}
	t := tasks[0]
	if v.task == "" {
		// The first that has not passed; when all have, the first.
		if open, _, err := currentTask(ws, v); err == nil {
			t = open
		}
	}
	s, err := t.State(ws)
	if err != nil {
		return err
	}
	if s.Passed == nil && os.Getenv("FORCE") == "" {
		return fmt.Errorf("task %s has not passed yet: make check %s; make solution %s FORCE=1 shows ours all the same", t.ID(), t.Args(), t.Args())
	}
	together, err := t.Together()
	if err != nil {
		return err
	}
	progress, err := exercise.ProgressOf(ws, together)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(progress, func(p exercise.Progress) bool { return p.Passed == nil }); i >= 0 && os.Getenv("FORCE") == "" {
		return fmt.Errorf("ours answers all %d tasks of %s, and task %s has not passed yet: make exercise %s goes on; make solution %s FORCE=1 shows ours all the same", len(together), t.Shown(""), together[i].ID(), together[i].Args(), t.Args())
	}
	ours, err := t.Solution()
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "workshop-solution-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := t.WriteTree(ws, tree, ours); err != nil {
		return err
	}
	same := true
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		yours := filepath.Join(ws.Root, t.Shown(name))
		if _, err := os.Stat(yours); err != nil {
			yours = os.DevNull
		}
		err := proc.Run(ctx, proc.Cmd{Path: "diff", Out: os.Stdout, Err: os.Stderr, Args: []string{"-u",
			"-L", "yours: " + t.Shown(name), "-L", "ours", yours, filepath.Join(t.Dir(tree), name)}})
		var differs *exec.ExitError
		if errors.As(err, &differs) && differs.ExitCode() == 1 {
			same = false
		} else if err != nil {
			return err
		}
	}
	if same {
		fmt.Printf("Yours is ours: %s\n", t.Shown(""))
	}
	return nil
}

// ShowProgress shows what is done in all steps.
func ShowProgress(_ context.Context, ws workspace.Workspace, _ []string) error {
	tasks, err := exercise.All(ws)
	if err != nil {
		return err
	}
	list, err := exercise.ProgressOf(ws, tasks)
	if err != nil {
		return err
	}
	if os.Getenv("JSON") != "" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string]any{"tasks": list})
	}
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TASK\tNAME\tSTATE\tCHECKS\tHINTS\tESTIMATE\tTITLE")
	passed := 0
	for _, p := range list {
		if p.Passed != nil {
			passed++
		}
		state := p.State
		switch {
		case p.Mistake != "" && p.Passed != nil:
			state += ", now: " + p.Mistake
		case p.Mistake != "":
			state += ": " + p.Mistake
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%d min\t%s\n", p.Task, p.Name, state, p.Checks, p.Hints, p.Minutes, p.Title)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d of %d tasks have passed\n", passed, len(list))
	return nil
}
