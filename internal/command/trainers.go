package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// trainers writes the tables of exercises into TRAINERS.md.
func trainers(_ context.Context, ws workspace.Workspace, _ []string) error {
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
	return nil
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
		var names []string
		for _, m := range t.Mistakes {
			names = append(names, m.Name)
		}
		fmt.Fprintf(&b, "| %s `%s` | %d | %s |\n", t.ID(), t.Name, t.Minutes, strings.Join(names, " · "))
	}
	return b.String() + "\n"
}
