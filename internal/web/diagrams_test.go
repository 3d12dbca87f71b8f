package web

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A step's reference stands below its lesson, with commands to run, and what links to a
// heading of either finds it. So do the links around the lesson.
func TestLinksWithinAStep(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	steps, err := ws.Steps()
	fatal.If(t, err)
	link, id := regexp.MustCompile(`href="(?:/\?step=(\d+))?#([^"]*)"`), regexp.MustCompile(`<(?:h\d|div) id="([^"]*)"`)
	pages, ids := map[string]string{}, map[string]bool{}
	for _, s := range steps {
		page, err := (&Server{options: Options{Workspace: ws}}).lesson(s, nil)
		fatal.If(t, err)
		number := strconv.Itoa(s.Number)
		pages[number] = page.(lessonPage).HTML
		for _, m := range id.FindAllStringSubmatch(pages[number], -1) {
			if at := number + "#" + m[1]; ids[at] {
				t.Errorf("two headings of step %d have the id %s", s.Number, m[1])
			} else {
				ids[at] = true
			}
		}
		_, reference, _ := strings.Cut(pages[number], `<div id="reference">`)
		if want := len(s.Documents()) > 1; strings.Contains(reference, "run-button") != want {
			t.Errorf("step %d: its reference has commands to run: %v, want %v", s.Number, !want, want)
		}
	}
	frame, err := static.ReadFile("static/index.html")
	fatal.If(t, err)
	pages["(index.html)"] = strings.ReplaceAll(string(frame), `href="#`, "") // its own links lead to its own parts
	for number, page := range pages {
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if to := cmp.Or(m[1], number) + "#" + m[2]; m[2] != "" && !ids[strings.TrimLeft(to, "0")] {
				t.Errorf("step %s links to %s, which is not there", number, to)
			}
		}
	}
	if !ids["1#reference"] {
		t.Error("step 1 has no reference")
	}
}

func TestEveryDiagramHasAPicture(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	steps, err := ws.Steps()
	fatal.If(t, err)
	shown := 0
	for _, s := range steps {
		page, err := (&Server{options: Options{Workspace: ws}}).lesson(s, nil)
		fatal.If(t, err)
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
