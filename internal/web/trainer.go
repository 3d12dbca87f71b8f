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
	scriptPart  = regexp.MustCompile(`^### (.*) · (\d+) minutes`)
	questionRow = regexp.MustCompile(`^\| \*\*(before|after):\*\* ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
)

// parseTrainers finds a step's part of TRAINERS.md. An error shows the line that it cannot understand.
func parseTrainers(text string, step int) (notes stepNotes, err error) {
	_, part, found := strings.Cut(text, fmt.Sprintf("\n## Step %02d:", step))
	if !found {
		return notes, refuse(http.StatusNotFound, "TRAINERS.md has nothing about step %d.", step)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	_, part, _ = strings.Cut(part, "\n") // the rest of the heading
	notes.Scripts = []script{}
	var last *script
	inTable := false
	for line := range strings.Lines(part) {
		text := strings.TrimSuffix(line, "\n")
		heading, row := scriptPart.FindStringSubmatch(text), questionRow.FindStringSubmatch(text)
		switch {
		case heading != nil:
			minutes, _ := strconv.Atoi(heading[2]) // the pattern lets only numbers through
			notes.Scripts = append(notes.Scripts, script{Title: strings.ReplaceAll(heading[1], "`", ""), Minutes: minutes, Questions: []question{}})
			last = &notes.Scripts[len(notes.Scripts)-1]
		case strings.HasPrefix(text, "### "):
			return notes, fmt.Errorf("TRAINERS.md, %q: a section's heading ends with its minutes, such as \"### Watch · 10 minutes\"", text)
		case last != nil && strings.HasPrefix(text, ">"):
			last.Say += strings.TrimPrefix(strings.TrimPrefix(line, ">"), " ")
		case strings.HasPrefix(text, "| ask |"):
			inTable = true
		case inTable && strings.HasPrefix(text, "|---"):
		case inTable && row != nil && last != nil:
			last.Questions = append(last.Questions, question{row[1], row[2], row[3], row[4]})
		case inTable && text != "":
			return notes, fmt.Errorf("TRAINERS.md, %q: a row of questions is | **before:** or **after:** and the question | what is often heard | the answer |", text)
		default:
			inTable = false
			notes.About += line
		}
	}
	return notes, nil
}

// trainer answers what TRAINERS.md has for a step.
func (s *Server) trainer(step workspace.Step, _ *http.Request) (any, error) {
	source, err := os.ReadFile(filepath.Join(s.options.Workspace.Root, "TRAINERS.md"))
	if err != nil {
		return nil, fmt.Errorf("the trainer's notes: %w", err)
	}
	notes, err := parseTrainers(string(source), step.Number)
	if err != nil {
		return nil, err
	}
	texts := []*string{&notes.About}
	for i := range notes.Scripts {
		texts = append(texts, &notes.Scripts[i].Say)
		for j := range notes.Scripts[i].Questions {
			q := &notes.Scripts[i].Questions[j]
			texts = append(texts, &q.Ask, &q.Wrong, &q.Answer)
		}
	}
	md := markdown(&lessonRenderer{step: workspace.Step{Number: step.Number}}) // whose links begin at the root
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
