package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	ws, err := workspace.Find()
	fatal.If(t, err)
	return ws
}

func TestEveryPlaceNamesTheSameVersion(t *testing.T) {
	if err := compare(clone(t)); err != nil {
		t.Error(err)
	}
}

// A module that Modules does not know would be neither moved nor compared.
func TestEveryModuleIsKnown(t *testing.T) {
	ws := clone(t)
	known, err := ws.Modules()
	fatal.If(t, err)
	fatal.If(t, filepath.WalkDir(ws.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel(ws.Root, filepath.Dir(path))
		if d.IsDir() && slices.Contains([]string{".git", ".workshop", "work", "node_modules"}, d.Name()) {
			return filepath.SkipDir
		}
		if d.Name() == "go.mod" && !slices.Contains(known, dir) {
			t.Errorf("%s is not among %q", dir, known)
		}
		return nil
	}))
}

// One version at a time becomes another one, in a copy of all files that name any.
func TestOnePlaceThatDiffersIsFound(t *testing.T) {
	ws := clone(t)
	versions, err := versionsOf(ws)
	fatal.If(t, err)
	modules, err := ws.Modules()
	fatal.If(t, err)
	fork := workspace.Workspace{Root: t.TempDir()}
	texts := map[string]string{}
	read := func(name string) {
		data, err := os.ReadFile(filepath.Join(ws.Root, name))
		fatal.If(t, err)
		texts[name] = string(data)
	}
	write := func(name, text string) {
		testfile.Write(t, filepath.Join(fork.Root, name), text)
	}
	read(nodeImages)
	patterns := map[string][]*regexp.Regexp{nodeImages: {
		regexp.MustCompile(`kind v\d+\.\d+\.\d+`), regexp.MustCompile(`"` + regexp.QuoteMeta(versions["minor"]) + `":`), regexp.MustCompile(`node:v\d+\.\d+`),
	}}
	for _, dir := range modules {
		name := filepath.Join(dir, "go.mod")
		read(name)
		module := `k8s\.io/[a-z-]+`
		if name == controlPlane { // what it requires of the others is replaced
			module = `(=> k8s\.io/[a-z-]+|k8s\.io/kubernetes)`
		}
		patterns[name] = []*regexp.Regexp{regexp.MustCompile(module + ` v[01]` + regexp.QuoteMeta(versions["lib"][1:])),
			regexp.MustCompile(`=> k8s\.io/kube-openapi v0\.0\.0-\d+`)}
	}
	for _, p := range places {
		read(p.file)
		patterns[p.file] = append(patterns[p.file], p.pattern())
	}
	for name, text := range texts {
		write(name, text)
	}
	if err := compare(fork); err != nil {
		t.Fatalf("in an unchanged copy: %v", err)
	}
	changed := 0
	for name, text := range texts {
		for _, pattern := range patterns[name] {
			for _, at := range pattern.FindAllStringIndex(text, -1) {
				// The last digit is another one.
				digit := at[0] + strings.LastIndexAny(text[at[0]:at[1]], "0123456789")
				other := string('0' + (text[digit]-'0'+1)%10)
				write(name, text[:digit]+other+text[digit+1:])
				if err := compare(fork); err == nil {
					t.Errorf("%s: nobody sees that %q ends in %s", name, text[at[0]:at[1]], other)
				}
				changed++
			}
		}
		write(name, text)
	}
	if changed < 70 {
		t.Errorf("changed %d places, want those of all modules", changed)
	}
	t.Logf("changed %d places", changed)
}

func TestRefusesWhatIsNoVersion(t *testing.T) {
	for _, args := range [][]string{nil, {""}, {"1"}, {"v1.37"}, {"1.37.x"}, {"1.37", "1.38"}} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "make upgrade K8S=1.37") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
