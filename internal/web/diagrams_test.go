package web

import (
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

func TestEveryDiagramHasAPicture(t *testing.T) {
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	steps, err := ws.Steps()
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, s := range steps {
		page, err := lessons{ws: ws}.lesson(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		html := page.(lessonPage).HTML
		shown += strings.Count(html, `<figure class="diagram"><svg class="mermaid"`)
		if strings.Contains(html, `<figure class="diagram"><pre>`) || strings.Contains(html, "@import") {
			t.Errorf("step %d has a diagram without a picture: run make generate and commit the result", s.Number)
		}
	}
	files, err := diagrams.ReadDir("diagrams")
	if len(files) != shown || shown < len(steps) || err != nil {
		t.Errorf("%d pictures for %d diagrams (%v): run make generate and commit the result", len(files), shown, err)
	}
	if got := diagram("A <-- B"); got != "<pre>A &lt;-- B</pre>" {
		t.Errorf("a diagram without a picture is shown as %s", got)
	}
}
