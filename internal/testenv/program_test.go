package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

const hello = "./lesson/hello"

// module writes a module with a small program and returns its root.
func module(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	testfile.WriteAll(t, root, map[string]string{
		"go.mod":               "module example.org/m\n\ngo 1.26\n",
		"lesson/hello/main.go": "package main\n\nfunc main() {\n\tprintln(\"hello\")\n}\n",
	})
	return root
}

// build builds the program as Env.Program does.
func build(t *testing.T, root string, options ...ProgramOption) (string, os.FileInfo) {
	t.Helper()
	binary, err := buildProgram(t.Context(), root, filepath.Join(root, ".workshop", ProgramKey(hello, options)), hello, options)
	fatal.If(t, err)
	info, err := os.Stat(binary)
	fatal.If(t, err)
	return binary, info
}

func TestUnchangedProgramIsNotLinkedAgain(t *testing.T) {
	t.Parallel()
	root := module(t)
	added := AddFile("added.go", "package main\n\nfunc init() { println(\"added\") }\n")
	plain, linked := build(t, root)
	changed, changedLinked := build(t, root, added)
	if plain == changed {
		t.Fatalf("both the program and its change are %s", plain)
	}
	if filepath.Base(plain) != "hello" || filepath.Base(changed) != "hello" {
		t.Errorf("%s and %s: the binary must have the program's name", plain, changed)
	}
	// Linking makes another file, and go build gives a current one a new time.
	if _, again := build(t, root); !os.SameFile(linked, again) || !again.ModTime().Equal(linked.ModTime()) {
		t.Error("the program was built a second time")
	}
	if _, again := build(t, root, added); !os.SameFile(changedLinked, again) || !again.ModTime().Equal(changedLinked.ModTime()) {
		t.Error("the changed program was built a second time")
	}
	fatal.If(t, os.Remove(plain))
	build(t, root) // which looks at the binary
	source := filepath.Join(root, "lesson/hello/main.go")
	fatal.If(t, os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"goodbye\") }\n"), 0o644))
	for want, options := range map[string][]ProgramOption{"goodbye\n": nil, "added\ngoodbye\n": {added}} {
		binary, _ := build(t, root, options...)
		if output, err := exec.CommandContext(t.Context(), binary).CombinedOutput(); err != nil || string(output) != want {
			t.Errorf("after a change of the source: %q %v, want %q", output, err, want)
		}
	}
}

func TestProgramIsChanged(t *testing.T) {
	t.Parallel()
	root := module(t)
	before, err := os.ReadDir(filepath.Join(root, "lesson/hello"))
	fatal.If(t, err)
	binary, _ := build(t, root,
		Replace("main.go", "\nfunc main() {", "\nfunc renamed() {"),
		Replace("main.go", "\nfunc renamed() {", "\nfunc lesson() {"),
		AddFile("after_main.go", "package main\n\nfunc main() {\n\tlesson()\n\tprintln(\"changed\")\n}\n"))
	output, err := exec.CommandContext(t.Context(), binary).CombinedOutput()
	if err != nil || string(output) != "hello\nchanged\n" {
		t.Errorf("%q %v", output, err)
	}
	after, err := os.ReadDir(filepath.Join(root, "lesson/hello"))
	if err != nil || len(after) != len(before) {
		t.Errorf("the source folder holds %v (%v), before %v", after, err, before)
	}
	text, err := os.ReadFile(filepath.Join(root, "lesson/hello/main.go"))
	if err != nil || !strings.Contains(string(text), "func main()") {
		t.Errorf("the source itself has changed (%v):\n%s", err, text)
	}
}

func TestBadChangeIsRefused(t *testing.T) {
	t.Parallel()
	root := module(t)
	for name, tc := range map[string]struct {
		option ProgramOption
		want   string
	}{
		"no such text":   {Replace("main.go", "no such text", ""), "holds 0 times, not once"},
		"often":          {Replace("main.go", "main", ""), "times, not once"},
		"no such file":   {Replace("other.go", "a", "b"), "no such file"},
		"file is there":  {AddFile("main.go", "package main"), "is there already"},
		"does not build": {AddFile("added.go", "package main\n\nvar x int = \"\"\n"), "added.go:3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := buildProgram(t.Context(), root, t.TempDir(), hello, []ProgramOption{tc.option})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestProgramKeyKnowsFlags(t *testing.T) {
	t.Setenv("GOFLAGS", "-buildvcs=false") // as make sets it
	plain, changed := ProgramKey(hello, nil), ProgramKey(hello, []ProgramOption{AddFile("a.go", "")})
	if plain != "lesson-hello" {
		t.Errorf("an ordinary build is kept as %s", plain)
	}
	t.Setenv("GOFLAGS", "-race")
	keys := map[string]bool{plain: true, changed: true, ProgramKey(hello, nil): true, ProgramKey(hello, []ProgramOption{AddFile("a.go", "")}): true,
		ProgramKey(hello, []ProgramOption{Replace("a.go", "", "")}): true}
	if len(keys) != 5 {
		t.Errorf("five builds share folders: %v", keys)
	}
}

func TestPruneUnused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hour := time.Now().Add(-time.Hour)
	for name, used := range map[string]time.Time{"old": hour.Add(-time.Minute), "new": hour.Add(time.Minute)} {
		fatal.If(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		lock := filepath.Join(dir, name, "lock")
		fatal.If(t, os.WriteFile(lock, nil, 0o644))
		fatal.If(t, os.Chtimes(lock, used, used))
	}
	fatal.If(t, pruneUnused(dir, hour))
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "new" {
		t.Errorf("left: %v %v", left, err)
	}
	if err := pruneUnused(filepath.Join(dir, "nothing"), hour); err != nil {
		t.Errorf("nothing to prune is no error: %v", err)
	}
}

// A program of a step's project is built with what that project's go.mod requires.
func TestAProgramOfAModuleOfItsOwn(t *testing.T) {
	t.Parallel()
	root := module(t)
	testfile.WriteAll(t, root, map[string]string{
		"step/project/go.mod":         "module example.org/project\n\ngo 1.26\n",
		"step/project/cmd/main.go":    "package main\n\nimport \"example.org/project/greet\"\n\nfunc main() { println(greet.With) }\n",
		"step/project/greet/greet.go": "package greet\n\nconst With = \"hello\"\n",
	})
	for pkg, want := range map[string][2]string{
		hello:                 {root, hello},
		"./step/project/cmd":  {filepath.Join(root, "step", "project"), "./cmd"},
		"step/project/cmd/x/": {filepath.Join(root, "step", "project"), "./cmd/x"},
		"./step/project":      {filepath.Join(root, "step", "project"), "./."},
		".":                   {root, "."},
	} {
		if dir, rest := moduleOf(root, pkg); dir != want[0] || rest != want[1] {
			t.Errorf("%s: %s in %s, want %s in %s", pkg, rest, dir, want[1], want[0])
		}
	}
	changed := Replace("main.go", "greet.With", "greet.With+\", you\"")
	for says, options := range map[string][]ProgramOption{"hello\n": nil, "hello, you\n": {changed}} {
		binary := filepath.Join(t.TempDir(), "cmd")
		fatal.If(t, GoBuild(t.Context(), root, "./step/project/cmd", binary, t.TempDir(), options...))
		if output, err := exec.Command(binary).CombinedOutput(); err != nil || string(output) != says {
			t.Errorf("it says %q (%v), want %q", output, err, says)
		}
	}
}
