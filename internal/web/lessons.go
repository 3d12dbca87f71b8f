package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	markdown "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

// lessons are the READMEs of the steps, as the person with this prefix reads them.
type lessons struct {
	ws     workspace.Workspace
	prefix lesson.Prefix
}

type lessonPage struct {
	Step  int    `json:"step"`
	Title string `json:"title"`
	HTML  string `json:"html"`
}

func (l lessons) steps() (any, error) {
	steps, err := l.ws.Steps()
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	for _, s := range steps {
		commands := 0
		_, documents, err := l.read(strconv.Itoa(s.Number))
		if refused := (problem{}); err != nil && !errors.As(err, &refused) { // a step that this person cannot do has its row all the same
			return nil, err
		}
		for _, d := range documents {
			for _, block := range d.blocks {
				if !block.ByHand {
					commands += len(block.Commands)
				}
			}
		}
		rows = append(rows, map[string]any{"step": s.Number, "dir": s.Name, "title": s.Title, "commands": commands})
	}
	return rows, nil
}

// A document is one of those that a step has to read and to run: its lesson or its reference.
type document struct {
	source []byte
	blocks []readme.Block
}

func (l lessons) read(step string) (s workspace.Step, documents []document, err error) {
	if s, err = l.ws.Step(step); err != nil {
		return s, nil, problem{http.StatusNotFound, err}
	}
	files, err := l.prefix.Documents(l.ws, s)
	if err != nil {
		return s, nil, problem{http.StatusConflict, err}
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return s, nil, err
		}
		doc, err := readme.Parse(source)
		if err != nil {
			return s, nil, fmt.Errorf("%s: %w", file, err)
		}
		documents = append(documents, document{source, doc.Blocks})
	}
	return s, documents, nil
}

// command returns a command of a step. Blocks and commands count from 1, those of the
// reference after those of the lesson.
func (l lessons) command(step, block, command int) (c readme.Command, err error) {
	_, documents, err := l.read(strconv.Itoa(step))
	if err != nil {
		return c, err
	}
	var blocks []readme.Block
	for _, d := range documents {
		blocks = append(blocks, d.blocks...)
	}
	if block < 1 || block > len(blocks) || command < 1 || command > len(blocks[block-1].Commands) {
		return c, fmt.Errorf("step %d has no command %d in a block %d", step, command, block)
	}
	return blocks[block-1].Commands[command-1], nil
}

// hashOf is how the page names a command whose text it shows.
func hashOf(c readme.Command) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(c.Text))) }

// lesson renders a step: its lesson, and below it its reference.
func (l lessons) lesson(step string) (any, error) {
	s, documents, err := l.read(step)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	ids := parser.NewContext().IDs() // of both, so that no heading has the id of another
	before := 0
	for i, d := range documents {
		if i > 0 {
			b.WriteString("<hr>\n<div id=\"reference\"></div>\n")
		}
		r := &lessonRenderer{s, d.blocks, before}
		before += len(d.blocks)
		md := goldmark.New(
			goldmark.WithExtensions(extension.GFM),
			goldmark.WithParserOptions(parser.WithAutoHeadingID()),
			// The lessons use <details>. What a clone holds is run anyway.
			goldmark.WithRendererOptions(markdown.WithUnsafe(), renderer.WithNodeRenderers(util.Prioritized(r, 100))),
		)
		if err := md.Convert(d.source, &b, parser.WithContext(parser.NewContext(parser.WithIDs(ids)))); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return lessonPage{s.Number, s.Title, b.String()}, nil
}

// glossary renders the terms of all lessons.
func (l lessons) glossary() (any, error) {
	source, err := os.ReadFile(filepath.Join(l.ws.Root, "GLOSSARY.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var b bytes.Buffer
	err = goldmark.New(goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(&lessonRenderer{}, 100)))).Convert(source, &b)
	return map[string]string{"html": b.String()}, err
}

// A lessonRenderer renders what a lesson has that other documents do not have.
type lessonRenderer struct {
	step   workspace.Step
	blocks []readme.Block
	before int // how many blocks the step has in an earlier document
}

func (r *lessonRenderer) RegisterFuncs(reg renderer.NodeRendererFuncRegisterer) {
	reg.Register(ast.KindFencedCodeBlock, r.code)
	reg.Register(ast.KindLink, r.link)
}

func (r *lessonRenderer) code(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	n := node.(*ast.FencedCodeBlock)
	language, text := string(n.Language(source)), string(n.Lines().Value(source))
	if n.Lines().Len() == 0 {
		return ast.WalkSkipChildren, nil
	}
	switch language {
	case "console":
		line := bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
		for i, block := range r.blocks {
			if block.Line == line {
				return ast.WalkSkipChildren, r.console(w, r.before+i+1, block)
			}
		}
		return ast.WalkStop, fmt.Errorf("line %d: the runner does not know this block", line)
	case "mermaid":
		_, err := fmt.Fprintf(w, "<figure class=\"diagram\">%s</figure>\n", diagram(text))
		return ast.WalkSkipChildren, err
	}
	highlighted, err := highlight(language, "", text)
	if err != nil {
		return ast.WalkStop, err
	}
	_, err = fmt.Fprintf(w, "<pre class=\"code\"><code>%s</code></pre>\n", strings.Join(highlighted, ""))
	return ast.WalkSkipChildren, err
}

// console renders the commands of a block, each with what it prints.
func (r *lessonRenderer) console(w util.BufWriter, number int, block readme.Block) error {
	for i, c := range block.Commands {
		highlighted, err := highlight("bash", "", c.Text)
		if err != nil {
			return err
		}
		if block.ByHand {
			fmt.Fprintf(w, "<div class=\"by-hand\"><pre><code>%s</code></pre></div>\n", strings.Join(highlighted, ""))
		} else {
			fmt.Fprintf(w, "<div class=\"run\" data-step=\"%d\" data-block=\"%d\" data-command=\"%d\" data-hash=\"%s\"><button type=\"button\" class=\"run-button\">Run</button>"+
				"<pre><code>%s</code></pre><div class=\"outcome\" hidden></div></div>\n", r.step.Number, number, i+1, hashOf(c), strings.Join(highlighted, ""))
		}
		want := strings.Join(c.Want, "\n")
		if c.ExitCode != 0 {
			want = strings.TrimLeft(want+fmt.Sprintf("\n[exit status %d]", c.ExitCode), "\n")
		}
		switch want = html.EscapeString(want); {
		case want != "" && block.ByHand: // the page does not run it, so it never opens by itself
			fmt.Fprintf(w, "<pre class=\"expected\">%s</pre>\n", want)
		case want != "":
			fmt.Fprintf(w, "<details class=\"output\"><summary>What it prints</summary><pre class=\"expected\">%s</pre></details>\n", want)
		}
	}
	return nil
}

var (
	lineFragment = regexp.MustCompile(`^L(\d+)`)
	lessonFile   = regexp.MustCompile(`^0*(\d+)-[a-z-]+/(README|reference)\.md$`)
)

// link makes of a link to a file of the clone one that the page opens beside the lesson.
func (r *lessonRenderer) link(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		_, err := w.WriteString("</a>")
		return ast.WalkContinue, err
	}
	target, fragment, _ := strings.Cut(string(node.(*ast.Link).Destination), "#")
	file := path.Join(r.step.Name, target)
	attributes := ""
	switch {
	case strings.Contains(target, ":"):
		attributes = fmt.Sprintf(`href="%s" target="_blank" rel="noopener noreferrer"`, html.EscapeString(string(node.(*ast.Link).Destination)))
	case target == "", target == "README.md":
		attributes = fmt.Sprintf(`href="#%s"`, html.EscapeString(fragment))
	case target == "reference.md":
		attributes = fmt.Sprintf(`href="#%s"`, html.EscapeString(cmp.Or(fragment, "reference")))
	case filepath.IsLocal(file):
		attributes = fmt.Sprintf(`class="file" data-path="%s"`, html.EscapeString(file))
		href := fmt.Sprintf("/?step=%d&amp;file=%s", r.step.Number, url.QueryEscape(file))
		if m := lineFragment.FindStringSubmatch(fragment); m != nil {
			attributes += fmt.Sprintf(` data-line="%s"`, m[1])
			href += "&amp;line=" + m[1]
		}
		if m := lessonFile.FindStringSubmatch(file); m != nil {
			href = "/?step=" + m[1]
			if m[2] == "reference" {
				fragment = cmp.Or(fragment, "reference")
			}
			if fragment != "" {
				href += "#" + html.EscapeString(fragment)
			}
		}
		attributes += fmt.Sprintf(` href="%s"`, href)
	}
	_, err := fmt.Fprintf(w, "<a %s>", attributes)
	return ast.WalkContinue, err
}

// highlight returns the lines of a text as HTML, in the language of that name or of
// that file. It writes classes, and the page's style sheet has their colours.
func highlight(language, file, text string) ([]string, error) {
	lexer := lexers.Get(language)
	if file != "" {
		lexer = lexers.Match(file)
	}
	if lexer == nil {
		lexer = lexers.Fallback
	}
	tokens, err := chroma.Coalesce(lexer).Tokenise(nil, text)
	if err != nil {
		return nil, fmt.Errorf("highlighting %s%s: %w", language, file, err)
	}
	var lines []string
	for _, line := range chroma.SplitTokensIntoLines(tokens.Tokens()) {
		var b strings.Builder
		for _, token := range line {
			text := html.EscapeString(token.Value)
			if class := chroma.StandardTypes[token.Type]; class != "" {
				text = fmt.Sprintf("<span class=\"%s\">%s</span>", class, text)
			}
			b.WriteString(text)
		}
		lines = append(lines, b.String())
	}
	return lines, nil
}
