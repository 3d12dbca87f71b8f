package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

// A definition whose label no README declares would survive an interrupted lesson.
func TestVerifyOwned(t *testing.T) {
	t.Parallel()
	for readme, want := range map[string]string{
		"# T\n": `deep/crd.yaml has the label workshop.k8s-go.dev/step=06`,
		"# T\n\n<!-- cluster-scoped objects: 04, 05 -->\n": "add 06 to its line",
		"# T\n\n<!-- cluster-scoped objects: 05, 06 -->\n": "",
	} {
		s := workspace.Step{Dir: t.TempDir()}
		if err := os.Mkdir(filepath.Join(s.Dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"README.md": readme, "deep/crd.yaml": "labels: {workshop.k8s-go.dev/step: \"06\"}\n"} {
			if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
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
	if err := os.WriteFile(filepath.Join(root, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := workspace.Step{Number: 6, Dir: filepath.Join(root, "06-controller")}
	for block, want := range map[string]string{
		"<!-- code: main.go func main -->\n```go\nfunc main() {}\n```\n":  "",
		"<!-- code: main.go func main -->\n```go\nfunc main() { }\n```\n": "README.md: line 3: the code block differs from main.go func main; run make readme N=6",
		"<!-- code: main.go func run -->\n```go\n```\n":                   "README.md: line 3: main.go has no func run",
	} {
		err := verifyExcerpts(workspace.Workspace{Root: root}, s, []byte("# T\n\n"+block))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", block, err, want)
		}
	}
}
