package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// clone makes a small clone with one step.
func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	ws := workspace.Workspace{Root: t.TempDir()}
	testfile.WriteAll(t, ws.Root, map[string]string{
		"go.mod":             "module " + workspace.Module + "\n\ngo 1.26.0\n",
		"README.md":          "See [one](01-one/README.md).\n",
		"CONTRIBUTING.md":    "Do.\n",
		"TRAINERS.md":        "Teach.\n",
		"GLOSSARY.md":        "- **lesson**: A file. [01](01-one/README.md)\n",
		"01-one/README.md":   "# One\n\nA **lesson**.\n\n```console\n$ true\n```\n\n`make test-step N=1`\n",
		"01-one/e2e_test.go": "package e2e\n",
	})
	return ws
}

func TestVerifyDocuments(t *testing.T) {
	if err := verifyDocuments(clone(t)); err != nil {
		t.Fatalf("a good clone: %v", err)
	}
	for _, tc := range []struct{ file, text, want string }{
		{"README.md", "nothing\n", "does not link to 01-one/"},
		{"README.md", "[one](01-one/README.md) [two](02-two/README.md)\n", "links to 02-two/README.md"},
		{"README.md", "[one](01-one/README.md) [one](01-one/README.md#two)\n", "links to 01-one/README.md#two, a heading that is not there"},
		{"README.md", "[one](01-one/README.md)\n" + strings.Repeat("\n", 120), "more than 120"},
		{"01-one/README.md", "# One\n\nmake test-step N=1\n", "no console block"},
		{"01-one/README.md", "# One\n\n```console\n$ true\n```\n", "does not name its tests"},
	} {
		ws := clone(t)
		testfile.Write(t, filepath.Join(ws.Root, tc.file), tc.text)
		if err := verifyDocuments(ws); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v does not say %q", tc.file, err, tc.want)
		}
	}
	ws := clone(t)
	fatal.If(t, os.Remove(filepath.Join(ws.Root, "01-one", "e2e_test.go")))
	if err := verifyDocuments(ws); err == nil || !strings.Contains(err.Error(), "01-one has no tests") {
		t.Errorf("a step without tests: %v", err)
	}
}

// A definition whose label no README declares would survive an interrupted lesson.
func TestVerifyOwned(t *testing.T) {
	t.Parallel()
	for readme, want := range map[string]string{
		"# T\n": `deep/crd.yaml has the label workshop.k8s-go.dev/step=06`,
		"# T\n\n<!-- cluster-scoped objects: 04, 05 -->\n": "add 06 to its line",
		"# T\n\n<!-- cluster-scoped objects: 05, 06 -->\n": "",
	} {
		s := workspace.Step{Dir: t.TempDir()}
		fatal.If(t, os.Mkdir(filepath.Join(s.Dir, "deep"), 0o755))
		for name, text := range map[string]string{"README.md": readme, "deep/crd.yaml": "labels: {workshop.k8s-go.dev/step: \"06\"}\n"} {
			fatal.If(t, os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o644))
		}
		err := verifyOwned(s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", readme, err, want)
		}
	}
}

// A lesson that shows code which its file no longer has is named, with the line.
func TestVerifyExcerpts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(root, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644))
	s := workspace.Step{Number: 6, Dir: filepath.Join(root, "06-controller")}
	for block, want := range map[string]string{
		"<!-- code: main.go func main -->\n```go\nfunc main() {}\n```\n":  "",
		"<!-- code: main.go func main -->\n```go\nfunc main() { }\n```\n": "README.md: line 3: the code block differs from main.go func main; run make readme N=6",
		"<!-- code: main.go func run -->\n```go\n```\n":                   "README.md: line 3: main.go has no func run",
	} {
		document := filepath.Join(root, "README.md")
		fatal.If(t, os.WriteFile(document, []byte("# T\n\n"+block+"\n```console\n$ true\n```\n"), 0o644))
		err := verifyLesson(workspace.Workspace{Root: root}, s, document)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", block, err, want)
		}
	}
}
