package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/workspace"
)

// trainersFile is what a trainer reads. Its tables of exercises are made of the
// exercises' own files, so that each named mistake is listed:
//
//	<!-- exercises: 3 -->
//	<!-- end of exercises -->
const trainersFile = "TRAINERS.md"

var exerciseTable = regexp.MustCompile(`(?ms)^<!-- exercises: (\d+) -->\n(.*?)^<!-- end of exercises -->$`)

// WriteTrainers writes the tables of exercises into TRAINERS.md.
func WriteTrainers(_ context.Context, ws workspace.Workspace, _ []string) error {
	path := filepath.Join(ws.Root, trainersFile)
	before, after, err := withExercises(ws, path)
	if err != nil || before == after {
		return err
	}
	fmt.Printf("%s lists the exercises of now\n", trainersFile)
	return os.WriteFile(path, []byte(after), 0o644)
}

// verifyTrainers checks that TRAINERS.md has the exercises of all steps.
func verifyTrainers(ws workspace.Workspace, steps []workspace.Step) error {
	before, after, err := withExercises(ws, filepath.Join(ws.Root, trainersFile))
	if err != nil {
		return err
	}
	for _, s := range steps {
		if tasks, err := exercise.Of(s); err != nil || len(tasks) > 0 && !strings.Contains(after, fmt.Sprintf("<!-- exercises: %d -->", s.Number)) {
			return fmt.Errorf("%s has no table for the exercises of %s (%v)", trainersFile, s.Name, err)
		}
	}
	if before != after {
		return fmt.Errorf("%s does not list the exercises as they are; run make trainers", trainersFile)
	}
	return verifyAgendas(after, steps)
}

var (
	// agendaRow is a row of an agenda: when it begins, its minutes, and what it is made of. The end of a day has no minutes.
	agendaRow = regexp.MustCompile(`^\| (\d\d):(\d\d) \| (\d*) ?\| (?:\*\*(\d\d)\*\* )?(.*?) \|`)
	// agendaItem is a part of it with its minutes, such as: Two writers 12, or `counter` 20.
	agendaItem = regexp.MustCompile("^(?:`([a-z-]+)`|(.*)) (\\d+)$")
	stepPart   = regexp.MustCompile(`^## Step (\d\d):`)
	scriptPart = regexp.MustCompile(`^### (.*) · (\d+) minutes`)
)

// verifyAgendas checks that the minutes of each agenda add up, that an exercise has those of its
// file, and that a section of a lesson has those of its script.
func verifyAgendas(text string, steps []workspace.Step) error {
	scripts, step := map[string]string{}, "" // "01 Watch" and its minutes
	for line := range strings.Lines(text) {
		if part := stepPart.FindStringSubmatch(line); part != nil {
			step = part[1]
		} else if part := scriptPart.FindStringSubmatch(line); part != nil {
			scripts[step+" "+part[1]] = part[2]
		}
	}
	var errs []error
	end := 0 // of the row above, in minutes of the day
	for line := range strings.Lines(text) {
		row := agendaRow.FindStringSubmatch(line)
		if row == nil {
			end = 0
			continue
		}
		complain := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s, the row %s:%s: %s", trainersFile, row[1], row[2], fmt.Sprintf(format, args...)))
		}
		hour, _ := strconv.Atoi(row[1]) // the pattern lets only numbers through
		minute, _ := strconv.Atoi(row[2])
		begin := 60*hour + minute
		if end != 0 && begin != end {
			complain("the row above ends at %02d:%02d", end/60, end%60)
		}
		end = 0
		if row[3] == "" {
			continue
		}
		minutes, _ := strconv.Atoi(row[3])
		end = begin + minutes
		sum := 0
		for what := range strings.SplitSeq(row[5], " · ") {
			item := agendaItem.FindStringSubmatch(what)
			if item == nil {
				complain("%q does not end with its minutes", what)
				continue
			}
			takes, _ := strconv.Atoi(item[3])
			sum += takes
			if item[1] != "" {
				if want, err := minutesOf(steps, row[4], item[1]); err != nil {
					complain("%v", err)
				} else if want != takes {
					complain("the exercise %s takes %d minutes, not %d", item[1], want, takes)
				}
			} else if want := scripts[row[4]+" "+item[2]]; row[4] != "" && want != item[3] {
				complain("the script of step %s has %q minutes for %q, not %d", row[4], want, item[2], takes)
			}
		}
		if sum != minutes {
			complain("its parts take %d minutes, not %d", sum, minutes)
		}
	}
	return errors.Join(errs...)
}

// minutesOf returns how long an exercise takes.
func minutesOf(steps []workspace.Step, step, name string) (int, error) {
	for _, s := range steps {
		if !strings.HasPrefix(s.Name, step+"-") {
			continue
		}
		tasks, err := exercise.Of(s)
		i := slices.IndexFunc(tasks, func(t exercise.Task) bool { return t.Name == name })
		if err != nil || i < 0 {
			return 0, errors.Join(fmt.Errorf("step %s has no exercise %s", step, name), err)
		}
		return tasks[i].Minutes, nil
	}
	return 0, fmt.Errorf("there is no step %q", step)
}

// withExercises returns the file as it is, and with the tables as they should be.
func withExercises(ws workspace.Workspace, path string) (before, after string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	after = exerciseTable.ReplaceAllStringFunc(string(data), func(found string) string {
		number := exerciseTable.FindStringSubmatch(found)[1]
		step, stepErr := ws.Step(number)
		tasks, tasksErr := exercise.Of(step)
		if stepErr != nil || tasksErr != nil {
			err = fmt.Errorf("%s: the exercises of step %s: %w", trainersFile, number, errors.Join(stepErr, tasksErr))
			return found
		}
		return fmt.Sprintf("<!-- exercises: %s -->\n%s<!-- end of exercises -->", number, exercisesAsTable(tasks))
	})
	return string(data), after, err
}

func exercisesAsTable(tasks []exercise.Task) string {
	var b strings.Builder
	b.WriteString("\n| exercise | minutes | mistakes that `make check` names |\n|---|---|---|\n")
	for _, t := range tasks {
		if t.IsTry() {
			continue // the lesson has it where it is done
		}
		var names []string
		for _, m := range t.Mistakes {
			names = append(names, m.Name)
		}
		fmt.Fprintf(&b, "| %s `%s` | %d | %s |\n", t.ID(), t.Name, t.Minutes, strings.Join(names, " · "))
	}
	return b.String() + "\n"
}
