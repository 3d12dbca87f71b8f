package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/board"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/workspace"
)

// clone makes a small clone with one step and changes into it.
func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws := workspace.Workspace{Root: root}
	for name, text := range map[string]string{
		"go.mod":             "module " + workspace.Module + "\n\ngo 1.26.0\n",
		"README.md":          "See [one](01-one/README.md).\n",
		"CONTRIBUTING.md":    "Do.\n",
		"TRAINERS.md":        "Teach.\n",
		"01-one/README.md":   "# One\n\n```console\n$ true\n```\n\n`make test-step N=1`\n",
		"01-one/e2e_test.go": "package e2e\n",
	} {
		write(t, filepath.Join(ws.Root, name), text)
	}
	t.Chdir(root)
	return ws
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// printed returns what f prints to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = w
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&b, r); done <- err }()
	defer func() { os.Stdout = before }()
	f()
	if err := errors.Join(w.Close(), <-done); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestErrorsSayWhatToDo(t *testing.T) {
	clone(t)
	t.Setenv("PATH", t.TempDir()) // no container engine, no tools
	for _, tc := range []struct {
		args          []string
		cluster, want string
	}{
		{nil, "", "type make"},
		{[]string{"no-such-command"}, "", "type make"},
		{[]string{"step", "9"}, "", "N=1  One"},
		{[]string{"readme", ""}, "", "N=1  One"},
		{[]string{"test", "9"}, "", "N=1  One"},
		{[]string{"up"}, "minikube", "use one of kind, kwok, existing"},
		{[]string{"down"}, "minikube", "use one of kind, kwok, existing"},
		{[]string{"step", "1"}, "", "jq"},
		{[]string{"tour"}, "", "jq"},
		{[]string{"logs"}, "kwok", "there is no kwok cluster"},
	} {
		t.Setenv("CLUSTER", tc.cluster)
		var err error
		printed(t, func() { err = Run(t.Context(), tc.args) })
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v with CLUSTER=%s: error %v does not say %q", tc.args, tc.cluster, err, tc.want)
		}
	}
	t.Chdir(t.TempDir())
	if err := Run(t.Context(), []string{"status"}); err == nil || !strings.Contains(err.Error(), "change into the clone") {
		t.Errorf("outside of a clone: %v", err)
	}
}

// Every command of the Makefile is there, and none is there that it does not have.
func TestCommandsAreTheMakefiles(t *testing.T) {
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(ws.Root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var called []string
	for line := range strings.Lines(string(data)) {
		targets, rest, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(rest) == "build" {
			called = append(called, strings.Fields(targets)...)
		}
	}
	for _, name := range called {
		if commands[name] == nil && name != "test-step" && name != "bench" {
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
	write(t, ws.Path("kwok-chaos", "options.json"), "{}")
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
	if out := show("down"); out != "" {
		t.Errorf("a second down prints:\n%s", out)
	}
}

func TestVerifyDocuments(t *testing.T) {
	if err := verifyDocuments(clone(t)); err != nil {
		t.Fatalf("a good clone: %v", err)
	}
	for _, tc := range []struct{ file, text, want string }{
		{"README.md", "nothing\n", "does not link to 01-one/"},
		{"README.md", "[one](01-one/README.md) [two](02-two/README.md)\n", "links to 02-two/README.md"},
		{"README.md", "[one](01-one/README.md)\n" + strings.Repeat("\n", 120), "more than 120"},
		{"01-one/README.md", "# One\n\nmake test-step N=1\n", "no console block"},
		{"01-one/README.md", "# One\n\n```console\n$ true\n```\n", "does not name its tests"},
	} {
		ws := clone(t)
		write(t, filepath.Join(ws.Root, tc.file), tc.text)
		if err := verifyDocuments(ws); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v does not say %q", tc.file, err, tc.want)
		}
	}
	ws := clone(t)
	if err := os.Remove(filepath.Join(ws.Root, "01-one", "e2e_test.go")); err != nil {
		t.Fatal(err)
	}
	if err := verifyDocuments(ws); err == nil || !strings.Contains(err.Error(), "01-one has no tests") {
		t.Errorf("a step without tests: %v", err)
	}
}

// The linters see every script, also one without .sh, and nothing that was made.
func TestSources(t *testing.T) {
	ws := clone(t)
	for name, text := range map[string]string{
		"01-one/a.sh":      "true\n",
		".ci/run":          "#!/usr/bin/env bash\ntrue\n",
		"01-one/notes":     "no script\n",
		".workshop/x.go":   "package x\n",
		".workshop/y.sh":   "true\n",
		".git/hooks/z.sh":  "true\n",
		"01-one/a/main.go": "package main\n",
	} {
		write(t, filepath.Join(ws.Root, name), text)
	}
	goFiles, scripts, err := sources(ws)
	if err != nil {
		t.Fatal(err)
	}
	for i := range goFiles {
		goFiles[i], _ = filepath.Rel(ws.Root, goFiles[i])
	}
	for i := range scripts {
		scripts[i], _ = filepath.Rel(ws.Root, scripts[i])
	}
	if want := []string{"01-one/a/main.go", "01-one/e2e_test.go"}; !slices.Equal(goFiles, want) {
		t.Errorf("Go files %v, want %v", goFiles, want)
	}
	if want := []string{".ci/run", "01-one/a.sh"}; !slices.Equal(scripts, want) {
		t.Errorf("scripts %v, want %v", scripts, want)
	}
}

// What make progress JSON=1 prints is what make board reads.
func TestBoardReadsProgress(t *testing.T) {
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := exercise.All(ws)
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no tasks: %v", err)
	}
	output := printed(t, func() {
		if err := Run(t.Context(), []string{"progress", "JSON=1"}); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	write(t, filepath.Join(dir, "anna.json"), output)
	table := board.Table(dir)
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^anna +\d+/%d `, len(tasks)))
	if !line.MatchString(table) {
		t.Errorf("the board does not show %d tasks:\n%s", len(tasks), table)
	}
}
