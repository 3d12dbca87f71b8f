package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/board"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// clone makes a small clone with one step and changes into it.
func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	ws := workspace.Workspace{Root: root}
	testfile.WriteAll(t, ws.Root, map[string]string{
		"go.mod":             "module " + workspace.Module + "\n\ngo 1.26.0\n",
		"README.md":          "See [one](01-one/README.md).\n",
		"CONTRIBUTING.md":    "Do.\n",
		"TRAINERS.md":        "Teach.\n",
		"01-one/README.md":   "# One\n\n```console\n$ true\n```\n\n`make test-step N=1`\n",
		"01-one/e2e_test.go": "package e2e\n",
	})
	t.Chdir(root)
	return ws
}

// printed returns what f prints to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	fatal.If(t, err)
	before := os.Stdout
	os.Stdout = w
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&b, r); done <- err }()
	defer func() { os.Stdout = before }()
	f()
	fatal.If(t, errors.Join(w.Close(), <-done))
	return b.String()
}

func TestErrorsSayWhatToDo(t *testing.T) {
	own, err := workspace.Find()
	fatal.If(t, err)
	doctor, err := os.ReadFile(filepath.Join(own.Root, "scripts", "doctor.sh"))
	fatal.If(t, err)
	bash, err := exec.LookPath("bash")
	fatal.If(t, err)
	testfile.Write(t, filepath.Join(clone(t).Root, "scripts", "doctor.sh"), string(doctor))
	path := t.TempDir()
	t.Setenv("PATH", path) // no container engine, no tools
	for _, tc := range []struct {
		command, n, cluster, want string
	}{
		{"", "", "", "type make"},
		{"no-such-command", "", "", "type make"},
		{"step", "9", "", "N=1  One"},
		{"readme", "", "", "N=1  One"},
		{"test-step", "9", "", "N=1  One"},
		{"up", "", "minikube", "use one of kind, kwok, existing"},
		{"down", "", "minikube", "use one of kind, kwok, existing"},
		{"step", "1", "", "bash is not on PATH"},
		{"tour", "", "", "bash is not on PATH"},
		{"tour", "all", "", "bash is not on PATH"},
		{"tour", "3", "", "make step N=3 runs one step"},
		{"logs", "", "kwok", "there is no kwok cluster"},
	} {
		t.Setenv("CLUSTER", tc.cluster)
		t.Setenv("N", tc.n)
		var err error
		printed(t, func() { err = Run(t.Context(), strings.Fields(tc.command)) })
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v", tc, err)
		}
	}
	fatal.If(t, os.Symlink(bash, filepath.Join(path, "bash")))
	t.Setenv("CLUSTER", "")
	printed(t, func() { err = Run(t.Context(), []string{"tour"}) })
	if err == nil || !strings.Contains(err.Error(), "jq: not on PATH") {
		t.Errorf("without jq: error %v", err)
	}
	t.Chdir(t.TempDir())
	if err := Run(t.Context(), []string{"status"}); err == nil || !strings.Contains(err.Error(), "change into the clone") {
		t.Errorf("outside of a clone: %v", err)
	}
}

// Every command of the Makefile is there, and none is there that it does not have.
func TestCommandsAreTheMakefiles(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	data, err := os.ReadFile(filepath.Join(ws.Root, "Makefile"))
	fatal.If(t, err)
	called := []string{"doctor"} // by scripts/doctor.sh
	for line := range strings.Lines(string(data)) {
		targets, rest, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(rest) == "build" {
			called = append(called, strings.Fields(targets)...)
		}
	}
	for _, name := range called {
		if commands[name] == nil {
			t.Errorf("make %s calls a command that is not there", name)
		}
	}
	for name := range commands {
		if !slices.Contains(called, name) {
			t.Errorf("no target of the Makefile calls %s", name)
		}
	}
}

func TestStatusAndDownKnowFurtherClusters(t *testing.T) {
	ws := clone(t)
	t.Setenv("CLUSTER", "")
	testfile.Write(t, ws.Path("kwok-chaos", "options.json"), "{}")
	show := func(command string) string {
		return printed(t, func() {
			if err := Run(context.Background(), []string{command}); err != nil {
				t.Error(err)
			}
		})
	}
	if out := show("status"); !strings.Contains(out, "kwok-chaos broken") {
		t.Errorf("status does not list a half-made further cluster:\n%s", out)
	}
	if out := show("down"); !strings.Contains(out, "kwok-chaos cluster removed") {
		t.Errorf("down prints:\n%s", out)
	}
	if _, err := os.Stat(ws.Path("kwok-chaos")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("down has left files behind (%v)", err)
	}
	if out := show("down"); out != "There was no cluster to remove\n" {
		t.Errorf("a second down prints:\n%s", out)
	}
}

// What make progress JSON=1 prints is what make board reads.
func TestBoardReadsProgress(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	tasks, err := exercise.All(ws)
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no tasks: %v", err)
	}
	t.Setenv("JSON", "1")
	output := printed(t, func() {
		if err := Run(t.Context(), []string{"progress"}); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	testfile.Write(t, filepath.Join(dir, "anna.json"), output)
	table := board.Table(dir)
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^anna +\d+/%d `, len(tasks)))
	if !line.MatchString(table) {
		t.Errorf("the board does not show %d tasks:\n%s", len(tasks), table)
	}
}
