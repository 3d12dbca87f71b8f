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
	htmlformatter "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	htmlrenderer "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"

	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

type lessonPage struct {
	Step  int    `json:"step"`
	Title string `json:"title"`
	HTML  string `json:"html"`
}

func (s *Server) steps(*http.Request) (any, error) {
	steps, err := s.options.Workspace.Steps()
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	for _, step := range steps {
		_, blocks, err := s.read(step)
		if refused := (problem{}); err != nil && !errors.As(err, &refused) { // a step that this person cannot do has its row all the same
			return nil, err
		}
		hashes := map[string]string{} // of its commands, by their places
		for i, block := range blocks {
			for j, c := range block.Commands {
				if !block.ByHand {
					hashes[fmt.Sprintf("%d/%d", i+1, j+1)] = hashOf(c.Text)
				}
			}
		}
		rows = append(rows, map[string]any{"step": step.Number, "dir": step.Name, "title": step.Title, "commands": len(hashes), "hashes": hashes})
	}
	return rows, nil
}

// read returns what a step has to read, its lesson and its reference, and the blocks of
// commands of both.
func (s *Server) read(step workspace.Step) (sources [][]byte, blocks []readme.Block, err error) {
	files, err := s.options.Prefix.Documents(s.options.Workspace, step)
	if err != nil {
		return nil, nil, problem{http.StatusConflict, err}
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		doc, err := readme.Parse(source)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		sources, blocks = append(sources, source), append(blocks, doc.Blocks...)
	}
	return sources, blocks, nil
}

// command returns a command of a step. Blocks and commands count from 1.
func (s *Server) command(number, block, command int) (c readme.Command, err error) {
	step, err := s.options.Workspace.Step(strconv.Itoa(number))
	if err != nil {
		return c, err
	}
	_, blocks, err := s.read(step)
	if err != nil {
		return c, err
	}
	if block < 1 || block > len(blocks) || command < 1 || command > len(blocks[block-1].Commands) {
		return c, fmt.Errorf("step %d has no command %d in a block %d", number, command, block)
	}
	return blocks[block-1].Commands[command-1], nil
}

// hashOf is how the page says which text it shows, of a command or of a file.
func hashOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// lesson renders a step: its lesson, and below it its reference.
func (s *Server) lesson(step workspace.Step, _ *http.Request) (any, error) {
	sources, blocks, err := s.read(step)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	md := markdown(&lessonRenderer{step: step, blocks: blocks}, parser.WithAutoHeadingID())
	ids := parser.NewContext().IDs() // of both, so that no heading has the id of another
	for i, source := range sources {
		if i > 0 {
			b.WriteString("<hr>\n<div id=\"reference\"></div>\n")
		}
		if err := md.Convert(source, &b, parser.WithContext(parser.NewContext(parser.WithIDs(ids)))); err != nil {
			return nil, fmt.Errorf("%s: %w", step.Name, err)
		}
	}
	return lessonPage{step.Number, step.Title, b.String()}, nil
}

// glossary renders the terms of all lessons.
func (s *Server) glossary(*http.Request) (any, error) {
	source, err := os.ReadFile(filepath.Join(s.options.Workspace.Root, "GLOSSARY.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var b bytes.Buffer
	err = markdown(&lessonRenderer{}).Convert(source, &b)
	return map[string]string{"html": b.String()}, err
}

// A lessonRenderer renders what a lesson has that other documents do not have.
type lessonRenderer struct {
	step   workspace.Step
	blocks []readme.Block
	shown  int // blocks so far
}

// markdown renders the clone's documents. The lessons use <details>, and what a clone holds is run anyway.
func markdown(r *lessonRenderer, options ...parser.Option) goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(options...),
		goldmark.WithRendererOptions(htmlrenderer.WithUnsafe(), renderer.WithNodeRenderers(util.Prioritized(r, 100))))
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
	if n.Lines().Len() == 0 {
		return ast.WalkSkipChildren, nil
	}
	language, text := string(n.Language(source)), string(n.Lines().Value(source))
	switch language {
	case "console":
		line := bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
		if r.shown == len(r.blocks) || r.blocks[r.shown].Line != line {
			return ast.WalkStop, fmt.Errorf("line %d: the runner does not know this block", line)
		}
		r.shown++
		return ast.WalkSkipChildren, r.console(w, r.shown, r.blocks[r.shown-1])
	case "mermaid":
		_, err := fmt.Fprintf(w, "<figure class=\"diagram\">%s</figure>\n", diagram(text))
		return ast.WalkSkipChildren, err
	}
	highlighted, err := highlight(lexers.Get(language), text)
	if err != nil {
		return ast.WalkStop, err
	}
	_, err = fmt.Fprintf(w, "<pre class=\"code\"><code>%s</code></pre>\n", strings.Join(highlighted, ""))
	return ast.WalkSkipChildren, err
}

// console renders the commands of a block, each with what it prints.
func (r *lessonRenderer) console(w util.BufWriter, number int, block readme.Block) error {
	for i, c := range block.Commands {
		highlighted, err := highlight(lexers.Get("bash"), c.Text)
		if err != nil {
			return err
		}
		if block.ByHand {
			fmt.Fprintf(w, "<div class=\"by-hand\"><pre><code>%s</code></pre></div>\n", strings.Join(highlighted, ""))
		} else {
			fmt.Fprintf(w, "<div class=\"run\" data-step=\"%d\" data-block=\"%d\" data-command=\"%d\" data-hash=\"%s\"><button type=\"button\" class=\"run-button\">Run</button>"+
				"<pre><code>%s</code></pre><div class=\"outcome\" hidden></div></div>\n", r.step.Number, number, i+1, hashOf(c.Text), strings.Join(highlighted, ""))
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
	lessonFile   = regexp.MustCompile(`^0*(\d+)-[a-z-]+/(?:README|(reference))\.md$`)
)

// link makes of a link to a file of the clone one that the page opens beside the lesson.
func (r *lessonRenderer) link(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		_, err := w.WriteString("</a>")
		return ast.WalkContinue, err
	}
	href, attributes := string(node.(*ast.Link).Destination), ""
	target, fragment, _ := strings.Cut(href, "#")
	file := path.Join(r.step.Name, target)
	switch {
	case strings.Contains(target, ":"):
		attributes = ` target="_blank" rel="noopener noreferrer"`
	case target == "", target == "README.md":
		href = "#" + fragment
	case target == "reference.md":
		href = "#" + cmp.Or(fragment, "reference")
	case filepath.IsLocal(file):
		if m := lessonFile.FindStringSubmatch(file); m != nil {
			attributes = fmt.Sprintf(` class="file" data-step="%s"`, m[1])
			href = strings.TrimSuffix("/?step="+m[1]+"#"+cmp.Or(fragment, m[2]), "#")
			break
		}
		attributes = fmt.Sprintf(` class="file" data-path="%s"`, html.EscapeString(file))
		href = fmt.Sprintf("/?step=%d&file=%s", r.step.Number, url.QueryEscape(file))
		if m := lineFragment.FindStringSubmatch(fragment); m != nil {
			attributes += fmt.Sprintf(` data-line="%s"`, m[1])
			href += "&line=" + m[1]
		}
	}
	_, err := fmt.Fprintf(w, `<a href="%s"%s>`, html.EscapeString(href), attributes)
	return ast.WalkContinue, err
}

// formatter writes classes, and the page's style sheet has their colours.
var formatter = htmlformatter.New(htmlformatter.WithClasses(true), htmlformatter.PreventSurroundingPre(true))

// highlight returns the lines of a text as HTML.
func highlight(lexer chroma.Lexer, text string) (lines []string, err error) {
	if lexer == nil {
		lexer = lexers.Fallback
	}
	tokens, err := chroma.Coalesce(lexer).Tokenise(nil, text)
	if err != nil {
		return nil, fmt.Errorf("highlighting: %w", err)
	}
	for _, line := range chroma.SplitTokensIntoLines(tokens.Tokens()) {
		var b strings.Builder
		err = errors.Join(err, formatter.Format(&b, &chroma.Style{}, chroma.Literator(line...)))
		lines = append(lines, b.String())
	}
	return lines, err
}
