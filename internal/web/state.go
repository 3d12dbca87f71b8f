package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"github.com/coder/websocket/wsjson"

	"github.com/k8s-go/workshop/internal/workspace"
)

// A state is what the page remembers: settings, where the learner was, and what their
// commands came to. It is a file, so a reload, another port and a restart lose nothing.
type state struct {
	file string // "" keeps nothing

	mu      sync.Mutex
	version int
	values  map[string]stateValue
	changed chan struct{} // closed at the next change
}

type stateValue struct {
	json    json.RawMessage // null once it was removed
	version int
	kept    bool // in the file
}

const (
	maxValue  = 256 << 10 // bytes
	maxValues = 200
)

var stateName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,60}$`)

// openState reads what an earlier page has left. A file that cannot be understood is moved aside,
// and the problem says so.
func openState(file string) (s *state, problem string, err error) {
	s = &state{file: file, values: map[string]stateValue{}, changed: make(chan struct{})}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || file == "" {
		return s, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading what the page remembers: %w", err)
	}
	values := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &values); err != nil {
		if err := os.Rename(file, file+".broken"); err != nil {
			return nil, "", err
		}
		return s, fmt.Sprintf("What the page remembered cannot be read (%v). It is in %s.broken now, and the page begins anew.", err, file), nil
	}
	for name, value := range values {
		s.values[name] = stateValue{json: value, kept: true}
	}
	return s, "", nil
}

// set remembers a value and tells all windows.
func (s *state) set(name string, value any) error { return s.put(name, value, true) }

// tell tells all windows a value that is true only for as long as the server runs.
func (s *state) tell(name string, value any) error { return s.put(name, value, false) }

func (s *state) put(name string, value any, keep bool) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("remembering %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.values[name]
	switch {
	case there && bytes.Equal(old.json, data):
		return nil
	case !there && len(s.values) >= maxValues:
		return refuse(http.StatusInsufficientStorage, "The page remembers %d things already, and no more fit in.", maxValues)
	}
	s.version++
	s.values[name] = stateValue{data, s.version, keep}
	close(s.changed)
	s.changed = make(chan struct{})
	if !keep || s.file == "" {
		return nil
	}
	return s.save()
}

// save writes the file.
func (s *state) save() error {
	kept := map[string]json.RawMessage{}
	for name, value := range s.values {
		if value.kept && string(value.json) != "null" {
			kept[name] = value.json
		}
	}
	data, err := json.MarshalIndent(kept, "", " ")
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(s.file), 0o755), workspace.WriteWhole(s.file, data, 0o600)); err != nil {
		return fmt.Errorf("keeping what the page remembers: %w", err)
	}
	return nil
}

// get fills in what a name stands for, and leaves it as it is if there is nothing.
func (s *state) get(name string, into any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.Unmarshal(s.values[name].json, into) // a value of somebody else's making is as good as none
}

type stateAnswer struct {
	Version int                        `json:"version"`
	Changed map[string]json.RawMessage `json:"changed"`
}

// since returns what has changed after a version, and waits for it until ctx ends. The
// version of another server means nothing, so a window that brings a later one gets everything.
func (s *state) since(ctx context.Context, after int) stateAnswer {
	for {
		s.mu.Lock()
		if after > s.version {
			after = -1
		}
		answer := stateAnswer{s.version, map[string]json.RawMessage{}}
		for name, value := range s.values {
			if value.version > after {
				answer.Changed[name] = value.json
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if len(answer.Changed) > 0 || after < 0 {
			return answer
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer
		}
	}
}

// getState answers everything that the page remembers.
func (s *Server) getState(*http.Request) (any, error) {
	return s.state.since(context.Background(), -1), nil
}

// followState tells a window of each change after the version that it knows. It is a WebSocket,
// because a browser has only six connections for requests to one server, of all windows together.
func (s *Server) followState(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, "after="+r.URL.Query().Get("after")+" is no version of the page's state.", http.StatusBadRequest)
		return
	}
	conn, err := accept(w, r)
	if err != nil {
		return // the answer is written
	}
	defer conn.CloseNow()
	left := conn.CloseRead(s.terminals.ctx)
	go keepAlive(left, conn)
	for {
		answer := s.state.since(left, after)
		if left.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(left, patience)
		err := wsjson.Write(ctx, conn, answer)
		cancel()
		if err != nil {
			return
		}
		after = answer.Version
	}
}

// putState remembers a value of the page.
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
	return struct{}{}, s.state.set(name, json.RawMessage(data))
}
