package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

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

// teach writes the trainer's place to a file, and reads that of another one, until its caller ends it.
func (s *Server) teach(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	if s.options.Place != "" {
		work.Go(func() { s.writePlaces(ctx) })
	}
	if s.options.Follow != "" {
		work.Go(func() { s.readPlaces(ctx) })
	}
	return func() { cancel(); work.Wait() }
}

func (s *Server) writePlaces(ctx context.Context) {
	for after := -1; ctx.Err() == nil; {
		answer := s.state.since(ctx, after)
		after = answer.Version
		var p place
		if value, ok := answer.Changed[trainerPlace]; !ok || json.Unmarshal(value, &p) != nil || p.Step == 0 {
			continue
		}
		trouble := ""
		if err := writePlace(s.options.Place, p); err != nil {
			trouble = fmt.Sprintf("Nobody can follow you: %v.", err)
		}
		_ = s.state.tell("trainer-trouble", trouble) // a full state has said so already
	}
}

// writePlace replaces the file.
func writePlace(file string, p place) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return workspace.WriteWhole(file, append(data, '\n'), 0o644)
}

func (s *Server) readPlaces(ctx context.Context) {
	tick := time.NewTicker(time.Second) // polled, because the file may come from another machine
	defer tick.Stop()
	for {
		if p, trouble := s.readPlace(); trouble != "" {
			_ = s.state.tell(trainerFollow, map[string]string{"trouble": trouble})
		} else {
			_ = s.state.tell(trainerFollow, p)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// decodePlace reads a place that is not larger than one can be.
func decodePlace(f *os.File) (p place, err error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return p, errors.Join(err, errors.New("not a file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPlace+1))
	if err == nil && len(data) > maxPlace {
		err = errors.New("too large")
	}
	return p, errors.Join(err, json.Unmarshal(data, &p))
}

// readPlace reads a file that anybody may have written. What is wrong with it is a sentence for the learner.
func (s *Server) readPlace() (p place, trouble string) {
	file := s.options.Follow
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe that nobody writes holds nothing up
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Sprintf("The trainer has not begun: there is no file %s yet.", file)
	}
	if err == nil {
		defer f.Close()
		p, err = decodePlace(f)
	}
	if err == nil {
		_, err = s.options.Workspace.Step(strconv.Itoa(p.Step))
	}
	if err != nil || !headingID.MatchString(p.ID) {
		return p, fmt.Sprintf("The file %s does not say where the trainer is.", file)
	}
	p.Title = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, p.Title)
	return p, ""
}
