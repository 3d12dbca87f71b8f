package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const whoami = "./internal/testenv/selftest/whoami"

// build builds the program whoami below dir, as Env.Program does, and returns
// its path and when it was linked.
func build(t *testing.T, dir string, options ...ProgramOption) (string, time.Time) {
	t.Helper()
	binary, err := buildProgram(t.Context(), "../..", filepath.Join(dir, programKey(whoami, options)), whoami, options)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	return binary, info.ModTime()
}

func TestUnchangedProgramIsNotLinkedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	added := AddFile("added.go", "package main\n\nfunc init() { println(\"added\") }\n")
	plain, linked := build(t, dir)
	changed, changedLinked := build(t, dir, added)
	if plain == changed {
		t.Fatalf("both the program and its change are %s", plain)
	}
	if filepath.Base(plain) != "whoami" || filepath.Base(changed) != "whoami" {
		t.Errorf("%s and %s: the binary must have the program's name", plain, changed)
	}
	if _, again := build(t, dir); !again.Equal(linked) {
		t.Error("the program was linked a second time")
	}
	if _, again := build(t, dir, added); !again.Equal(changedLinked) {
		t.Error("the changed program was linked a second time")
	}
}

func TestProgramIsChanged(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("selftest/whoami/main.go")
	if err != nil {
		t.Fatal(err)
	}
	binary, _ := build(t, t.TempDir(),
		Replace("main.go", "\nfunc main() {", "\nfunc renamed() {"),
		Replace("main.go", "\nfunc renamed() {", "\nfunc lesson() {"),
		AddFile("after_main.go", "package main\n\nfunc main() { println(\"changed\") }\n\nvar _ = lesson\n"))
	output, err := exec.CommandContext(t.Context(), binary).CombinedOutput()
	if err != nil || string(output) != "changed\n" {
		t.Errorf("%q %v", output, err)
	}
	after, err := os.ReadFile("selftest/whoami/main.go")
	if err != nil || string(after) != string(source) {
		t.Errorf("the clone's own file has changed: %v", err)
	}
	if _, err := os.Stat("selftest/whoami/after_main.go"); err == nil {
		t.Error("a file was added to the clone")
	}
}

func TestBadChangeIsRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		option ProgramOption
		want   string
	}{
		"no such text":   {Replace("main.go", "no such text", ""), "holds 0 times, not once"},
		"often":          {Replace("main.go", "err", ""), "times, not once"},
		"no such file":   {Replace("other.go", "a", "b"), "no such file"},
		"file is there":  {AddFile("main.go", "package main"), "is there already"},
		"does not build": {AddFile("added.go", "package main\n\nvar x int = \"\"\n"), "added.go:3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := buildProgram(t.Context(), "../..", t.TempDir(), whoami, []ProgramOption{tc.option})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestProgramKeyKnowsFlags(t *testing.T) {
	plain, changed := programKey(whoami, nil), programKey(whoami, []ProgramOption{AddFile("a.go", "")})
	t.Setenv("GOFLAGS", "-race")
	keys := map[string]bool{plain: true, changed: true, programKey(whoami, nil): true, programKey(whoami, []ProgramOption{AddFile("a.go", "")}): true,
		programKey(whoami, []ProgramOption{Replace("a.go", "", "")}): true}
	if len(keys) != 5 {
		t.Errorf("five builds share folders: %v", keys)
	}
}

func TestPruneUnused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hour := time.Now().Add(-time.Hour)
	for name, used := range map[string]time.Time{"old": hour.Add(-time.Minute), "new": hour.Add(time.Minute)} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		lock := filepath.Join(dir, name, "lock")
		if err := os.WriteFile(lock, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(lock, used, used); err != nil {
			t.Fatal(err)
		}
	}
	if err := pruneUnused(dir, hour); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "new" {
		t.Errorf("left: %v %v", left, err)
	}
	if err := pruneUnused(filepath.Join(dir, "nothing"), hour); err != nil {
		t.Errorf("nothing to prune is no error: %v", err)
	}
}
