package web

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"

	"github.com/k8s-go/workshop/internal/board"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A script is what TRAINERS.md has for a section of a lesson: what to say, and what to ask.
type script struct {
	Title     string     `json:"title"` // of the section, without its number
	Minutes   int        `json:"minutes"`
	Say       string     `json:"say"` // as HTML, like the texts of its questions
	Questions []question `json:"questions"`
}

type question struct {
	When   string `json:"when"` // before or after the block
	Ask    string `json:"ask"`
	Wrong  string `json:"wrong"` // what rooms answer
	Answer string `json:"answer"`
}

// stepNotes are the part of TRAINERS.md about a step.
type stepNotes struct {
	About   string   `json:"about"` // as HTML: what is in no script, and the exercises
	Scripts []script `json:"scripts"`
}

var (
	stepPart    = regexp.MustCompile(`^## Step (\d\d):`)
	scriptPart  = regexp.MustCompile(`^### (.*) · (\d+) minutes`)
	questionRow = regexp.MustCompile(`^\| \*\*(before|after):\*\* ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
)

// parseTrainers finds a step's part of TRAINERS.md. An error names the line that it cannot understand.
func parseTrainers(text string, step int) (notes stepNotes, err error) {
	notes.Scripts = []script{}
	var about strings.Builder
	within, inTable, found := false, false, false
	for i, line := range strings.Split(text, "\n") {
		wrong := func(format string, args ...any) (stepNotes, error) {
			return notes, fmt.Errorf("TRAINERS.md, line %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		if strings.HasPrefix(line, "## ") {
			part := stepPart.FindStringSubmatch(line)
			within = part != nil && part[1] == fmt.Sprintf("%02d", step)
			found = found || within
			continue
		}
		if !within {
			continue
		}
		var last *script
		if len(notes.Scripts) > 0 {
			last = &notes.Scripts[len(notes.Scripts)-1]
		}
		switch row := questionRow.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "### "):
			heading := scriptPart.FindStringSubmatch(line)
			if heading == nil {
				return wrong("a section's heading ends with its minutes, such as \"### Watch · 10 minutes\"")
			}
			minutes, _ := strconv.Atoi(heading[2]) // the pattern lets only numbers through
			notes.Scripts = append(notes.Scripts, script{Title: strings.ReplaceAll(heading[1], "`", ""), Minutes: minutes, Questions: []question{}})
		case last != nil && strings.HasPrefix(line, ">"):
			last.Say += strings.TrimPrefix(strings.TrimPrefix(line, ">"), " ") + "\n"
		case strings.HasPrefix(line, "| ask |"):
			inTable = true
		case inTable && strings.HasPrefix(line, "|---"):
		case inTable && row != nil && last != nil:
			last.Questions = append(last.Questions, question{row[1], row[2], row[3], row[4]})
		case inTable && line != "":
			return wrong("a row of questions is | **before:** or **after:** and the question | what is often heard | the answer |")
		default:
			inTable = false
			about.WriteString(line + "\n")
		}
	}
	notes.About = about.String()
	if !found {
		return notes, refuse(http.StatusNotFound, "TRAINERS.md has nothing about step %d.", step)
	}
	return notes, nil
}

// trainer answers what TRAINERS.md has for a step.
func (s *Server) trainer(r *http.Request) (any, error) {
	step, err := s.options.Workspace.Step(r.PathValue("step"))
	if err != nil {
		return nil, problem{http.StatusNotFound, err}
	}
	text, err := os.ReadFile(filepath.Join(s.options.Workspace.Root, "TRAINERS.md"))
	if err != nil {
		return nil, fmt.Errorf("the trainer's notes: %w", err)
	}
	notes, err := parseTrainers(string(text), step.Number)
	if err != nil {
		return nil, err
	}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(
		renderer.WithNodeRenderers(util.Prioritized(&lessonRenderer{step: workspace.Step{Number: step.Number}}, 100))))
	texts := []*string{&notes.About}
	for i := range notes.Scripts {
		texts = append(texts, &notes.Scripts[i].Say)
		for j := range notes.Scripts[i].Questions {
			q := &notes.Scripts[i].Questions[j]
			texts = append(texts, &q.Ask, &q.Wrong, &q.Answer)
		}
	}
	for _, text := range texts {
		var b bytes.Buffer
		err = errors.Join(err, md.Convert([]byte(*text), &b))
		*text = b.String()
	}
	return notes, err
}

// board answers what make board shows.
func (s *Server) board(*http.Request) (any, error) {
	text := "To see the room here, end make web, and start it with the folder of the learners' files: make web DIR=share. TRAINERS.md says under The board how the files get there."
	if s.options.Board != "" {
		text = board.Table(s.options.Board)
	}
	return map[string]any{"text": text, "table": s.options.Board != ""}, nil
}
