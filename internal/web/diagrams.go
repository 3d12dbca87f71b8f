package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"

	"github.com/k8s-go/workshop/internal/workspace"
)

// The diagrams of the lessons as pictures. The name of each is made from its text.
//
//go:embed diagrams
var diagrams embed.FS

// DiagramDir is where they are in the clone.
const DiagramDir = "internal/web/diagrams"

// A Diagram is a mermaid block of a lesson.
type Diagram struct {
	Lesson string // "03-informer/README.md"
	Text   string
}

// File is the name of its picture.
func (d Diagram) File() string {
	sum := sha256.Sum256([]byte(d.Text))
	return hex.EncodeToString(sum[:])[:16] + ".svg"
}

// MissingDiagrams returns the diagrams of the lessons that have no picture in the
// clone, and the pictures that no lesson shows any more.
func MissingDiagrams(ws workspace.Workspace) (missing []Diagram, stale []string, err error) {
	steps, err := ws.Steps()
	if err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(filepath.Join(ws.Root, DiagramDir, "*.svg"))
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		stale = append(stale, filepath.Base(f))
	}
	var used []string
	for _, s := range steps {
		source, err := os.ReadFile(s.README())
		if err != nil {
			return nil, nil, err
		}
		err = ast.Walk(goldmark.DefaultParser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			block, ok := n.(*ast.FencedCodeBlock)
			if !ok || !entering || string(block.Language(source)) != "mermaid" {
				return ast.WalkContinue, nil
			}
			d := Diagram{s.Name + "/README.md", string(block.Lines().Value(source))}
			if used = append(used, d.File()); !slices.Contains(stale, d.File()) {
				missing = append(missing, d)
			}
			return ast.WalkContinue, nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return missing, slices.DeleteFunc(stale, func(f string) bool { return slices.Contains(used, f) }), nil
}

// colours of a picture are those of the page, light or dark.
const colours = `<style>
svg.mermaid { --bg: var(--page, #fff); --fg: var(--text, #1f2328); height: auto; max-width: 100%;
  --_text: var(--fg); --_text-sec: var(--fg); --_text-muted: color-mix(in srgb, var(--fg) 80%, var(--bg)); --_text-faint: var(--_text-muted);
  --_line: color-mix(in srgb, var(--fg) 60%, var(--bg)); --_arrow: var(--fg);
  --_node-fill: color-mix(in srgb, var(--fg) 5%, var(--bg)); --_node-stroke: color-mix(in srgb, var(--fg) 40%, var(--bg));
  --_group-fill: var(--bg); --_group-hdr: color-mix(in srgb, var(--fg) 8%, var(--bg));
  --_inner-stroke: color-mix(in srgb, var(--fg) 25%, var(--bg)); --_key-badge: color-mix(in srgb, var(--fg) 12%, var(--bg)); }
svg.mermaid text { font-family: Inter, Arial, "Liberation Sans", sans-serif; }
</style>`

var (
	svgTag   = regexp.MustCompile(`^<svg ([^>]*?) style="[^"]*">`)
	svgStyle = regexp.MustCompile(`(?s)<style>.*?</style>`)
	lineEnd  = regexp.MustCompile(`[ \t]+\n`)
	label    = regexp.MustCompile(`\w\[[("]*([^\])"]+)`)
)

// Picture makes of what the renderer has drawn a picture in the page's colours and font.
func (d Diagram) Picture(svg string) (string, error) {
	svg = strings.TrimSpace(svg) + "\n"
	if !svgTag.MatchString(svg) || strings.Count(svg, "<style>") != 1 {
		return "", fmt.Errorf("the renderer has printed something else than before: %.100s", svg)
	}
	for _, m := range label.FindAllStringSubmatch(d.Text, -1) {
		if !strings.Contains(svg, ">"+html.EscapeString(m[1])+"<") {
			return "", fmt.Errorf("the renderer has left out %q: give a node its label where the diagram names it first", m[1])
		}
	}
	svg = svgTag.ReplaceAllString(svg, `<svg class="mermaid" $1>`)
	return lineEnd.ReplaceAllString(svgStyle.ReplaceAllLiteralString(svg, colours), "\n"), nil
}
