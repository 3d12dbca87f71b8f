package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

func lookup(env []string, name string) (value string, found bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value, found = v, true
		}
	}
	return value, found
}

func TestEnviron(t *testing.T) {
	for _, name := range leadAstray {
		t.Setenv(name, "/somewhere")
	}
	t.Setenv("GOFLAGS", "-mod=vendor")
	t.Setenv("GOWORK", "/somewhere/go.work")
	env := Environ("A=b")
	for _, name := range leadAstray {
		if value, found := lookup(env, name); found {
			t.Errorf("%s=%s stays", name, value)
		}
	}
	for name, want := range map[string]string{"GOWORK": "off", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0", "A": "b", "PATH": os.Getenv("PATH")} {
		if got, _ := lookup(env, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
}

// The race detector is linked by a C compiler, and nothing else is.
func TestRaceNeedsCgo(t *testing.T) {
	t.Setenv("GOFLAGS", "-buildvcs=false -race")
	t.Setenv("CGO_ENABLED", "0")
	if got, _ := lookup(Environ(), "CGO_ENABLED"); got != "1" {
		t.Errorf("with -race CGO_ENABLED=%s, want 1", got)
	}
}

func TestGoFlags(t *testing.T) {
	for own, want := range map[string]string{
		"":                   "-buildvcs=false",
		"-mod=vendor -x":     "-buildvcs=false",
		"-mod=vendor  -race": "-buildvcs=false -race",
	} {
		if got := goFlags(own); got != want {
			t.Errorf("GOFLAGS=%s becomes %s, want %s", own, got, want)
		}
	}
}

func TestNoProxy(t *testing.T) {
	for _, tc := range []struct{ upper, lower, want string }{
		{"", "", loopback},
		{"example.org", "", "example.org," + loopback},
		{"", "example.org", "example.org," + loopback},
		{"one", "two", "one," + loopback},
		{"*", "", "*"},
	} {
		t.Setenv("NO_PROXY", tc.upper)
		t.Setenv("no_proxy", tc.lower)
		env := Environ()
		for _, name := range []string{"NO_PROXY", "no_proxy"} {
			if got, _ := lookup(env, name); got != tc.want {
				t.Errorf("NO_PROXY=%s, no_proxy=%s: %s=%s, want %s", tc.upper, tc.lower, name, got, tc.want)
			}
		}
	}
}

// A go.work above the clone that does not name it stops every go command.
func TestGoWorkAboveIsIgnored(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "clone")
	fatal.If(t, os.Mkdir(dir, 0o755))
	for name, text := range map[string]string{
		filepath.Join(top, "go.work"): "go 1.26.0\n",
		filepath.Join(dir, "go.mod"):  "module example.com/clone\n\ngo 1.26.0\n",
		filepath.Join(dir, "main.go"): "package main\n\nfunc main() {}\n",
	} {
		fatal.If(t, os.WriteFile(name, []byte(text), 0o644))
	}
	list := func(env []string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", "list", "./...")
		cmd.Dir, cmd.Env = dir, env
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	own := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "GOWORK=") })
	if output, err := list(own); err == nil && !strings.Contains(output, "matched no packages") {
		t.Fatalf("a go.work above does no harm (%q): this test cannot fail", output)
	}
	if output, err := list(Environ()); err != nil || output != "example.com/clone\n" {
		t.Errorf("go list: %v, %s", err, output)
	}
}

// The Makefile keeps the same from what it starts before there is any program, but
// for make's own.
func TestTheMakefileUnexportsTheSame(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	fatal.If(t, err)
	want := slices.DeleteFunc(slices.Clone(leadAstray), func(name string) bool { return strings.HasPrefix(name, "M") })
	if line := "\nunexport " + strings.Join(want, " ") + "\n"; !strings.Contains(string(makefile), line) {
		t.Errorf("the Makefile has no line%s", line)
	}
}

// go test does not vet, and go build does not mind.
func TestQuick(t *testing.T) {
	t.Parallel()
	env := []string{"A=b", "GOFLAGS=-buildvcs=false"}
	if got := Quick(env); !slices.Equal(got, []string{"A=b", "GOFLAGS=-buildvcs=false -vet=off -ldflags=-s"}) || env[1] != "GOFLAGS=-buildvcs=false" {
		t.Errorf("%q, and %q", got, env)
	}
	for _, command := range []string{"test", "build"} {
		cmd := exec.Command("go", command, "-n", "errors")
		cmd.Env = Quick(append(os.Environ(), "GOFLAGS=-buildvcs=false"))
		if output, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(output), "/vet") {
			t.Errorf("go %s: %v\n%s", command, err, output)
		}
	}
}
