package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

func clone(t *testing.T) Workspace {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		testfile.Write(t, filepath.Join(root, name), text)
	}
	write("go.mod", "module "+Module+"\n\nrequire k8s.io/api v0.36.3\n")
	write("01-curl/README.md", "<!-- note -->\n# The API is HTTP\n")
	write("03-informer/README.md", "# Watching\n")
	write("04-unwritten/main.go", "package main\n")
	write("internal/x/go.mod", "module example.com/nested\n")
	return Workspace{Root: root}
}

func TestFind(t *testing.T) {
	w := clone(t)
	t.Chdir(filepath.Join(w.Root, "internal", "x"))
	got, err := Find()
	fatal.If(t, err)
	// A temporary folder may itself be reached through a symbolic link.
	want, err := filepath.EvalSymlinks(w.Root)
	fatal.If(t, err)
	if real, err := filepath.EvalSymlinks(got.Root); err != nil || real != want {
		t.Errorf("Find() = %q, %v, want %q", got.Root, err, want)
	}

	t.Chdir(t.TempDir())
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), "change into the clone") {
		t.Errorf("outside a clone: error = %v, want one that says what to do", err)
	}
}

func TestStep(t *testing.T) {
	w := clone(t)
	for _, tc := range []struct{ want, name string }{
		{"1", "01-curl"}, {"01", "01-curl"}, {"01-curl", "01-curl"}, {"01-curl/", "01-curl"}, {"3", "03-informer"},
	} {
		if s, err := w.Step(tc.want); err != nil || s.Name != tc.name {
			t.Errorf("Step(%q) = %q, %v, want %q", tc.want, s.Name, err, tc.name)
		}
	}
	for _, bad := range []string{"", "9", "4", "curl", "-1"} {
		_, err := w.Step(bad)
		if err == nil || !strings.Contains(err.Error(), "N=1  The API is HTTP\n  N=3  Watching") {
			t.Errorf("Step(%q): error = %v, want one that lists the steps", bad, err)
		}
	}
}

func TestIDDiffersByPath(t *testing.T) {
	a, b := Workspace{Root: "/a"}, Workspace{Root: "/b"}
	if a.ID() == b.ID() {
		t.Errorf("ID() of two clones: %q and %q", a.ID(), b.ID())
	}
}

// A file is replaced whole, and a link that somebody has put in the way leads nowhere.
func TestWriteWhole(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	testfile.Write(t, other, "theirs")
	file := filepath.Join(dir, "place.json")
	fatal.If(t, os.Symlink(other, filepath.Join(dir, ".place.json.new")))
	for _, text := range []string{"one", "two"} {
		fatal.If(t, WriteWhole(file, []byte(text), 0o600))
		if data, err := os.ReadFile(file); err != nil || string(data) != text {
			t.Errorf("the file holds %q, want %q (%v)", data, text, err)
		}
	}
	if info, err := os.Lstat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	if data, err := os.ReadFile(other); err != nil || string(data) != "theirs" {
		t.Errorf("the other file holds %q (%v)", data, err)
	}
}

func TestModuleVersion(t *testing.T) {
	w := clone(t)
	if v, err := w.ModuleVersion("go.mod", "k8s.io/api"); err != nil || v != "v0.36.3" {
		t.Errorf("ModuleVersion = %q, %v", v, err)
	}
	if _, err := w.ModuleVersion("go.mod", "k8s.io/none"); err == nil {
		t.Error("a module that is not required was found")
	}
}
