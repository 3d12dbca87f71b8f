package web

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/k8s-go/workshop/internal/exercise"
)

// exercises answers what the learner has done of a step's tasks.
func (s *Server) exercises(r *http.Request) (any, error) {
	step, err := s.options.Workspace.Step(r.PathValue("step"))
	if err != nil {
		return nil, problem{http.StatusNotFound, err}
	}
	tasks, err := exercise.Of(step)
	if err != nil {
		return nil, err
	}
	return exercise.ProgressOf(s.options.Workspace, tasks)
}

// doExercise types the command of make into a terminal.
func (s *Server) doExercise(r *http.Request) (any, error) {
	action := r.PathValue("action")
	if !slices.Contains([]string{"exercise", "check", "hint", "progress"}, action) {
		return nil, refuse(http.StatusNotFound, "There is no make %s on this page.", action)
	}
	step, err := s.options.Workspace.Step(r.PathValue("step"))
	if err != nil {
		return nil, problem{http.StatusNotFound, err}
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
	t, err := s.terminals.find(r.URL.Query().Get("terminal"))
	if err != nil {
		return nil, err
	}
	if !t.begin(command, &run{}) {
		return nil, refuse(http.StatusConflict, "A command runs in terminal %d. Wait for its end, or open another terminal.", t.id)
	}
	return map[string]string{"command": command}, nil
}
