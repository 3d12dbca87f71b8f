package web

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/workspace"
)

// exercises answers what the learner has done of a step's tasks.
func (s *Server) exercises(step workspace.Step, _ *http.Request) (any, error) {
	tasks, err := exercise.Of(step)
	if err != nil {
		return nil, err
	}
	progress, err := exercise.ProgressOf(s.options.Workspace, tasks)
	if err != nil {
		return nil, err
	}
	rows := []exerciseRow{}
	for i, t := range tasks {
		row := exerciseRow{progress[i], t.Do, nil}
		if t.Begun(s.options.Workspace) {
			if row.Files, err = filesOf(t, s.options.Workspace); err != nil {
				return nil, err
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// An exerciseRow is a task with the learner's files, as paths of the clone, the one to write in first.
type exerciseRow struct {
	exercise.Progress
	Do    string   `json:"do"` // what the task asks for
	Files []string `json:"files"`
}

// filesOf names a learner's files of a task.
func filesOf(t exercise.Task, ws workspace.Workspace) ([]string, error) {
	first := filepath.ToSlash(t.Shown(t.Open[0].File))
	files := []string{first}
	err := fs.WalkDir(os.DirFS(ws.Root), filepath.ToSlash(t.Shown("")), func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case len(files) == 20:
			return fs.SkipAll
		case strings.HasPrefix(d.Name(), ".") && d.IsDir():
			return fs.SkipDir
		case d.Type().IsRegular() && !strings.HasPrefix(d.Name(), ".") && name != first:
			files = append(files, name)
		}
		return nil
	})
	return files, err
}

// doExercise types the command of make into a terminal.
func (s *Server) doExercise(step workspace.Step, r *http.Request) (any, error) {
	action := r.PathValue("action")
	if !slices.Contains([]string{"exercise", "check", "hint", "reset", "progress"}, action) {
		return nil, refuse(http.StatusNotFound, "There is no make %s on this page.", action)
	}
	command := "make progress"
	if action != "progress" {
		command = fmt.Sprintf("make %s N=%d", action, step.Number)
		if task := r.URL.Query().Get("task"); task != "" {
			tasks, err := exercise.Find(step, task)
			if err != nil {
				return nil, problem{http.StatusNotFound, err}
			}
			command = fmt.Sprintf("make %s %s", action, tasks[0].Args())
		}
	}
	return s.beginIn(r, command)
}
