package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/pagesocket"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A state is what the page remembers: settings, where the learner was, and what their
// commands came to. It is a file, so a reload, another port and a restart lose nothing.
type state struct {
	file string // "" keeps nothing

	sync.Mutex                            // whoever calls a method holds it
	kept       map[string]json.RawMessage // in the file, unless it is null
	unwritten  bool                       // the file could not be written last
	told       map[string]json.RawMessage // true only for as long as the server runs
	pages      map[*websocket.Conn]struct{}
}

const (
	maxValue  = 256 << 10 // bytes
	maxValues = 200
)

var stateName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,60}$`)

// openState reads what an earlier page has left. A file that cannot be understood is moved aside,
// and the problem says so.
func openState(file string) (s *state, problem string, err error) {
	s = &state{file: file, kept: map[string]json.RawMessage{}, told: map[string]json.RawMessage{}, pages: map[*websocket.Conn]struct{}{}}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || file == "" {
		return s, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading what the page remembers: %w", err)
	}
	kept := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &kept); err != nil {
		problem = fmt.Sprintf("What the page remembered cannot be read (%v). It is in %s.broken now, and the page begins anew.", err, file)
		return s, problem, os.Rename(file, file+".broken")
	}
	maps.Copy(s.kept, kept)
	return s, "", nil
}

// set remembers a value and tells all windows.
func (s *state) set(name string, value json.RawMessage) error {
	if bytes.Equal(s.kept[name], value) && !s.unwritten {
		return nil
	}
	kept := maps.Clone(s.kept)
	kept[name] = value
	maps.DeleteFunc(kept, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	if old := string(s.kept[name]); (old == "" || old == "null") && len(kept) > maxValues {
		return refuse(http.StatusInsufficientStorage, "The page remembers %d things already, and no more fit in.", maxValues)
	}
	s.kept[name] = value
	s.announce(name, value)
	if s.file == "" {
		return nil
	}
	data, _ := json.MarshalIndent(kept, "", " ") // each of them is JSON
	err := errors.Join(os.MkdirAll(filepath.Dir(s.file), 0o755), workspace.WriteWhole(s.file, data, 0o600))
	if s.unwritten = err != nil; err != nil {
		return fmt.Errorf("keeping what the page remembers: %w", err)
	}
	return nil
}

// tell tells all windows a value that is true only for as long as the server runs.
func (s *state) tell(name string, value any) {
	data, _ := json.Marshal(value) // what the server tells is always JSON
	if !bytes.Equal(s.told[name], data) {
		s.told[name] = data
		s.announce(name, data)
	}
}

func (s *state) announce(name string, value json.RawMessage) {
	for p := range s.pages {
		tell(p, stateAnswer{map[string]json.RawMessage{name: value}})
	}
}

// A stateAnswer holds what has changed for a window: at first, everything.
type stateAnswer struct {
	Changed map[string]json.RawMessage `json:"changed"`
}

func (s *state) all() stateAnswer {
	all := maps.Clone(s.kept)
	maps.Copy(all, s.told)
	return stateAnswer{all}
}

func (s *Server) getState(*http.Request) (any, error) {
	s.state.Lock()
	defer s.state.Unlock()
	return s.state.all(), nil
}

// followState tells a window everything, and then each change. It is a WebSocket, because a
// browser has only six connections for requests to one server, of all windows together.
func (s *Server) followState(w http.ResponseWriter, r *http.Request) {
	p, err := pagesocket.Accept(w, r)
	if err != nil {
		return // the answer is written
	}
	defer p.CloseNow()
	s.state.Lock()
	tell(p, s.state.all())
	s.state.pages[p] = struct{}{}
	s.state.Unlock()
	pagesocket.KeepAlive(p.CloseRead(s.terminals.ctx), p)
	s.state.Lock()
	defer s.state.Unlock()
	delete(s.state.pages, p)
}

func (s *Server) putState(r *http.Request) (any, error) {
	name := r.PathValue("name")
	if !stateName.MatchString(name) {
		return nil, refuse(http.StatusBadRequest, "The page cannot remember anything by the name %q.", name)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxValue+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxValue:
		return nil, refuse(http.StatusRequestEntityTooLarge, "%s has more than %d KiB, which is too much to remember.", name, maxValue>>10)
	case !json.Valid(data):
		return nil, refuse(http.StatusBadRequest, "%s is not JSON.", name)
	}
	s.state.Lock()
	defer s.state.Unlock()
	err = s.state.set(name, data)
	if name == trainerPlace {
		s.move()
	}
	return struct{}{}, err
}
