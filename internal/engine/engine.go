// Package engine finds the container engine that kind can use.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// An Engine is a container engine whose command line is that of docker.
type Engine struct {
	Name    string // docker, podman or nerdctl
	Version string
}

// names are the engines that kind supports, in its order of preference.
var names = []string{"docker", "podman", "nerdctl"}

// Find returns the first engine that answers, of all that kind supports or of these. The error says
// for each that is installed why it does not.
func Find(ctx context.Context, of ...string) (Engine, error) {
	var reasons []string
	if len(of) == 0 {
		of = names
	}
	for _, name := range of {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		version, err := ask(ctx, name)
		if err == nil {
			return Engine{Name: name, Version: version}, nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", name, err))
	}
	if len(reasons) == 0 {
		return Engine{}, fmt.Errorf("%s is not installed: install Docker (https://docs.docker.com/engine/install), or use CLUSTER=kwok, which needs none", strings.Join(of, ", or "))
	}
	return Engine{}, fmt.Errorf("no container engine answers (%s)", strings.Join(reasons, "; "))
}

func ask(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	format := "{{.Server.Version}}"
	if name == "podman" {
		format = "{{.Client.Version}}" // it has no server
	}
	output, err := proc.Output(ctx, proc.Cmd{Path: name, Args: []string{"version", "--format", format}, Env: workspace.Environ()})
	if ctx.Err() != nil {
		return "", errors.New("no answer within five seconds")
	}
	var failed *proc.Error
	if errors.As(err, &failed) {
		return "", errors.New(explain(failed.Output))
	}
	return strings.TrimSpace(output), err
}

// explain turns what the command line says into what to do.
func explain(stderr string) string {
	switch {
	case strings.Contains(stderr, "permission denied"):
		return "you have no rights on its socket: join the group docker (sudo usermod -aG docker $USER, then log in again), or use CLUSTER=kwok"
	case strings.Contains(stderr, "Cannot connect"):
		return "it is installed but not running: start it, or use CLUSTER=kwok"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(stderr), "\n")
	return line
}

// Run runs a command of the engine. The error holds what it printed.
func (e Engine) Run(ctx context.Context, args ...string) (string, error) {
	output, err := proc.Output(ctx, proc.Cmd{Path: e.Name, Args: args, Env: workspace.Environ()})
	return strings.TrimSpace(output), err
}
