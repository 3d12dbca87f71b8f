package lesson

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A module is compiled once, and again when something of what that has made is gone, or when it
// needs other modules.
func TestCompileModules(t *testing.T) {
	t.Setenv("GOCACHE", t.TempDir())
	ws := workspace.Workspace{Root: t.TempDir()}
	m := Module{Dir: "project", Packages: []string{"./..."}, steps: []string{"10-project"}}
	before := Modules
	t.Cleanup(func() { Modules = before })
	Modules = []Module{m}
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(ws.Root, "project", file)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	}
	compiles := func(step string) bool {
		t.Helper()
		var said strings.Builder
		CompileModules(t.Context(), ws, []string{step}, &said)
		return strings.Contains(said.String(), "Compiling project (once)")
	}
	write("go.mod", "module example.org/project\n\ngo 1.26\n")
	write("shop/shop.go", "package shop\n") // without an import, for which an empty cache would take a minute
	if compiles("09-other") {
		t.Error("compiled for a step that does not need it")
	}
	if !compiles("10-project") || compiles("10-project") {
		t.Error("not compiled the first time, or once more the second time")
	}

	made, err := os.ReadFile(m.record(ws))
	fatal.If(t, err)
	paths := strings.Split(strings.TrimSpace(string(made)), "\n")
	cached := slices.IndexFunc(paths, func(path string) bool { return strings.HasPrefix(path, os.Getenv("GOCACHE")) })
	if cached < 0 {
		t.Fatalf("no file of the build cache is recorded: %q", paths)
	}
	fatal.If(t, os.Remove(paths[cached]))
	if !compiles("10-project") || compiles("10-project") {
		t.Error("not compiled after a file of the build cache was gone, or twice")
	}
	write("go.sum", "\n")
	if !compiles("10-project") {
		t.Error("not compiled after go.sum has changed")
	}
	t.Setenv("GOCACHE", t.TempDir())
	if !compiles("10-project") {
		t.Error("not compiled for another build cache")
	}

	write("shop/shop.go", "package\n")
	write("go.sum", "\n\n")
	for range 2 {
		if !compiles("10-project") {
			t.Error("recorded although it could not be compiled")
		}
	}
}
