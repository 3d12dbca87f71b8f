package web

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

func TestEveryDiagramHasAPicture(t *testing.T) {
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	if missing, stale, err := MissingDiagrams(ws); len(missing)+len(stale) > 0 || err != nil {
		t.Errorf("missing %v, stale %v, %v", missing, stale, err)
	}
	steps, err := ws.Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		page, err := lessons{ws: ws}.lesson(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if html := page.(lessonPage).HTML; !strings.Contains(html, `<figure class="diagram"><svg class="mermaid"`) || strings.Contains(html, "@import") {
			t.Errorf("step %d shows no picture", s.Number)
		}
	}
	// A clone without pictures, and with one too many.
	other := clone(t, "$ true")
	readme := filepath.Join(other.Root, "01-one", "README.md")
	if err := os.WriteFile(readme, []byte("# One\n\n```mermaid\nflowchart LR\n    A --> B\n```\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(other.Root, filepath.FromSlash(DiagramDir))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old.svg"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	missing, stale, err := MissingDiagrams(other)
	if len(missing) != 1 || missing[0].Text != "flowchart LR\n    A --> B\n" || len(stale) != 1 || stale[0] != "old.svg" || err != nil {
		t.Errorf("missing %v, stale %v, %v", missing, stale, err)
	}
}
