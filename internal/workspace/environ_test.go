package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	for name, want := range map[string]string{"GOWORK": "off", "GOFLAGS": "-buildvcs=false", "A": "b", "PATH": os.Getenv("PATH")} {
		if got, _ := lookup(env, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
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
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		filepath.Join(top, "go.work"): "go 1.26.0\n",
		filepath.Join(dir, "go.mod"):  "module example.com/clone\n\ngo 1.26.0\n",
		filepath.Join(dir, "main.go"): "package main\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
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
