package controllertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/proc"
)

// A Candidate is a learner's controller that an exercise checks.
type Candidate struct {
	*Controller
	C    *check.C
	Ends func() string // the mistake if it ends; nil or empty if that has no name
}

// Runs starts a controller.
func Runs(c *check.C, controller *Controller) *Candidate {
	controller.Runner = c // which ends the check if the task is not done
	controller.Process = c.Start(controller.Command)
	return &Candidate{Controller: controller, C: c}
}

// Within waits until f returns nil, and returns its last error after a time. It fails the
// check if the controller ends.
func (s *Candidate) Within(timeout time.Duration, f func(context.Context) error) error {
	return s.C.Until(timeout, func(ctx context.Context) error {
		if s.Process.Ended() {
			const expected = "a controller that runs"
			held := fmt.Sprintf("it has ended with exit code %d:\n%s", s.Process.ExitCode(), s.Log())
			if s.Ends != nil && s.Ends() != "" {
				s.C.Mistake(s.Ends(), expected, held)
			}
			s.C.Fail(expected, held)
		}
		return f(ctx)
	})
}

// Until is Within, and fails the check after a time, which only a mistake that no check
// knows can take: nothing else shows that something will not come. What the controller has said may tell why.
func (s *Candidate) Until(expected string, f func(context.Context) error) {
	if err := s.Within(check.Patience(20*time.Second), f); err != nil {
		held := err.Error()
		if log := strings.TrimSpace(s.Log()); log != "" && !strings.Contains(log, "panic: ") { // the verdict shows a panic by itself
			held += "\nand the program has said at last:\n" + log
		}
		s.C.Fail(expected, held)
	}
}

// Log is the end of what the controller has said, without what client-go says of its mutation
// detector, which the check has turned on.
func (s *Candidate) Log() string {
	var said strings.Builder
	for line := range strings.Lines(s.Process.Stderr()) {
		if !strings.Contains(line, "Mutation detector is enabled") {
			said.WriteString(line)
		}
	}
	return proc.LastLines(said.String(), 5)
}
