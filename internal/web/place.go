package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/k8s-go/workshop/internal/workspace"
)

// A place is where a trainer is, as it is in a file for the learners' pages.
type place struct {
	Step  int    `json:"step"`
	Title string `json:"title"` // of the section
	ID    string `json:"id"`    // of its heading
}

const (
	trainerPlace  = "trainer-place"  // in the page's state: where this page's trainer is
	trainerFollow = "trainer-follow" // and where the trainer is whom this page may follow
	maxPlace      = 4 << 10
)

// headingID is how a lesson names a heading: the page puts it into its address, where other words may have a meaning.
var headingID = regexp.MustCompile(`^[a-z0-9-]*$`)

// writePlaces writes where this page's trainer is to the file that others follow, after each move until ctx
// ends. It locks nothing meanwhile: the file may be on a share that hangs.
func (s *Server) writePlaces(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			select {
			case <-s.moved: // while the last one was written
			default:
				return
			}
		case <-s.moved:
		}
		s.state.Lock()
		p := s.state.kept[trainerPlace]
		s.state.Unlock()
		if p == nil {
			continue
		}
		trouble := ""
		if err := workspace.WriteWhole(s.options.Place, p, 0o644); err != nil {
			trouble = fmt.Sprintf("Nobody can follow you: %v.", err)
		}
		s.state.Lock()
		s.state.tell("trainer-trouble", trouble)
		s.state.Unlock()
	}
}

// move has the place written soon, as it is then.
func (s *Server) move() {
	select {
	case s.moved <- struct{}{}:
	default: // it will be anyway
	}
}

// trainersPlace is where the trainer is whom this page may follow. Anybody may have written that file:
// what is wrong with it is a sentence for the learner.
func (s *Server) trainersPlace(context.Context) any {
	p, err := readPlace(s.options.Follow)
	trouble := func(format string) any { return map[string]string{"trouble": fmt.Sprintf(format, s.options.Follow)} }
	if errors.Is(err, fs.ErrNotExist) {
		return trouble("The trainer has not begun: there is no file %s yet.")
	}
	if err == nil {
		_, err = s.options.Workspace.Step(strconv.Itoa(p.Step))
	}
	if err != nil || !headingID.MatchString(p.ID) {
		return trouble("The file %s does not say where the trainer is.")
	}
	p.Title = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, p.Title)
	return p
}

func readPlace(file string) (p place, err error) {
	data, _, err := workspace.ReadForeign(file, maxPlace)
	if err != nil {
		return p, err
	}
	err = json.NewDecoder(bytes.NewReader(data)).Decode(&p) // what follows does not matter
	return p, err
}
