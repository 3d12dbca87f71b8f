// Package readme executes the console blocks of a lesson and compares what
// they print with what the lesson says they print.
//
// A block is a fenced code block in the language console. In it, a line that
// starts with "$ " is a command for bash; it goes on over the next line where
// it ends in a backslash, and over following lines that start with "> " (a here
// document, a loop). The lines up to the next command are the output that a
// reader will see, standard output and standard error together. All blocks of
// one README run in order in one shell at the root of the clone.
//
// In an expected output
//
//	...                 alone on a line stands for any number of lines
//	<uid> <time> <rv> … stand for values that differ by nature; see Placeholders
//	two or more spaces  match two or more: the columns of a table move
//	[exit status N]     is the last line after a command that must fail with N
//
// A warning that client-go logs by chance while a program stops is left out.
//
// A block directly after a paragraph that starts with "By hand" in bold is not
// run: the reader sees that it is theirs to do, and the summary counts it.
//
// A code block after a comment that begins with "code:" is an excerpt from a
// file of the clone; see Excerpts.
package readme

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// A Document is a parsed README.
type Document struct {
	Title  string
	Blocks []Block
}

// A Block is one console block.
type Block struct {
	Line     int    // the line of the README with the opening fence, from 1
	Section  string // the heading above it
	ByHand   bool   // for the reader, not for the runner
	Commands []Command
}

// A Command is one command of a block and what it prints.
type Command struct {
	Line     int      // the line of the README with the command, from 1
	Text     string   // what bash gets, without prompts
	Want     []string // expected output lines, without the exit status
	ExitCode int      // expected exit code

	wantStart, wantEnd int // the lines of the expected output, from 0, end excluded
}

var exitStatus = regexp.MustCompile(`^\[exit status (\d+)\]$`)

// Parse reads a README. It fails on a console block that does not start with
// a command, because nothing would be run then.
func Parse(source []byte) (Document, error) {
	var doc Document
	section := ""
	root := goldmark.DefaultParser().Parse(text.NewReader(source))
	err := ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			section = plain(n, source)
			if n.Level == 1 && doc.Title == "" {
				doc.Title = section
			}
		case *ast.FencedCodeBlock:
			if string(n.Language(source)) != "console" || n.Lines().Len() == 0 {
				return ast.WalkContinue, nil
			}
			first := 1 + bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
			block := Block{Line: first - 1, Section: section, ByHand: byHand(n, source)}
			var lines []string
			for i := range n.Lines().Len() {
				seg := n.Lines().At(i)
				lines = append(lines, strings.TrimSuffix(string(seg.Value(source)), "\n"))
			}
			commands, err := parseCommands(lines, first)
			if err != nil {
				return ast.WalkStop, err
			}
			block.Commands = commands
			doc.Blocks = append(doc.Blocks, block)
		}
		return ast.WalkContinue, nil
	})
	return doc, err
}

func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

func byHand(block ast.Node, source []byte) bool {
	p, ok := block.PreviousSibling().(*ast.Paragraph)
	if !ok {
		return false
	}
	bold, ok := p.FirstChild().(*ast.Emphasis)
	return ok && bold.Level == 2 && strings.HasPrefix(plain(bold, source), "By hand")
}

func parseCommands(lines []string, first int) ([]Command, error) {
	var commands []Command
	for i := 0; i < len(lines); {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			return nil, fmt.Errorf("line %d: a console block starts with a command, \"$ command\"; found %q", first+i, lines[i])
		}
		c := Command{Line: first + i}
		script := []string{command}
		for i++; i < len(lines); i++ {
			if strings.HasSuffix(script[len(script)-1], `\`) {
				script = append(script, strings.TrimPrefix(lines[i], "> "))
			} else if more, ok := strings.CutPrefix(lines[i], "> "); ok {
				script = append(script, more)
			} else {
				break
			}
		}
		c.Text = strings.Join(script, "\n")
		c.wantStart = first + i - 1
		for ; i < len(lines) && !strings.HasPrefix(lines[i], "$ "); i++ {
			c.Want = append(c.Want, lines[i])
		}
		c.wantEnd = first + i - 1
		if n := len(c.Want); n > 0 {
			if m := exitStatus.FindStringSubmatch(c.Want[n-1]); m != nil {
				c.ExitCode, _ = strconv.Atoi(m[1])
				c.Want = c.Want[:n-1]
			}
		}
		commands = append(commands, c)
	}
	return commands, nil
}
