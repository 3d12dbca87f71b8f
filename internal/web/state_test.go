package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket/wsjson"

	"github.com/k8s-go/workshop/internal/fatal"
)

// remembered returns what the page gets at its start.
func (c *client) remembered() map[string]json.RawMessage {
	c.t.Helper()
	var all stateAnswer
	if code, text := c.call("GET", "/api/state", "", &all); code != http.StatusOK {
		c.t.Fatalf("what the page remembers: %d %s", code, text)
	}
	return all.Changed
}

func (c *client) put(name, value string) {
	c.t.Helper()
	if code, text := c.call("PUT", "/api/state/"+name, value, nil); code != http.StatusOK {
		c.t.Fatalf("remembering %s: %d %s", name, code, text)
	}
}

// A restart, on another port, loses neither a setting nor what a command came to.
func TestStateOutlivesAServer(t *testing.T) {
	ws, file := clone(t, "$ echo one\none\n$ echo two\nthree"), filepath.Join(t.TempDir(), "page.json")
	options := Options{Workspace: ws, Env: os.Environ(), State: file}
	t.Run("before", func(t *testing.T) {
		c := serve(t, options)
		c.put("theme", `"dark"`)
		c.put("gone", `1`)
		c.put("gone", `null`)
		s := c.terminal()
		for command := range 2 {
			s.run(1, 1, command+1)
			s.until("result")
		}
	})
	c := serve(t, options)
	now := c.remembered()
	if string(now["theme"]) != `"dark"` || now["gone"] != nil {
		t.Errorf("after a restart the page remembers %s", now)
	}
	outcomes := map[string]message{}
	fatal.If(t, json.Unmarshal(now["outcomes-1"], &outcomes))
	one, two := outcomes["1/1"], outcomes["1/2"]
	if one.Type != "" || !*one.OK || one.Difference != "" || *two.OK || !strings.Contains(two.Difference, `expects "three"`) {
		t.Errorf("after a restart the outcomes are %+v", outcomes)
	}
	if command, err := c.s.command(1, 1, 1); err != nil || one.Hash != hashOf(command.Text) {
		t.Errorf("the outcome is about the command %s (%v)", one.Hash, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
}

// A file that cannot be read is moved aside, and nothing of it is lost.
func TestStateThatIsBroken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.json")
	fatal.If(t, os.WriteFile(file, []byte(`{"theme": "da`), 0o600))
	s, problem, err := openState(file)
	if err != nil || !strings.Contains(problem, file+".broken") || len(s.kept) != 0 {
		t.Fatalf("%v, %q, %v", err, problem, s.kept)
	}
	if data, err := os.ReadFile(file + ".broken"); err != nil || string(data) != `{"theme": "da` {
		t.Errorf("set aside: %q, %v", data, err)
	}
	if err := s.set("theme", json.RawMessage(`"light"`)); err != nil {
		t.Error(err)
	}
}

// What could not be written is written as soon as it can be, also if it is the same.
func TestStateIsWrittenLater(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	fatal.If(t, os.WriteFile(folder, nil, 0o644)) // a file in its place
	s, _, err := openState("")
	fatal.If(t, err)
	s.file = filepath.Join(folder, "page.json")
	draft := json.RawMessage(`"mine"`)
	for range 2 {
		if err := s.set("draft", draft); err == nil {
			t.Error("it says that it is kept")
		}
	}
	fatal.If(t, os.Remove(folder))
	fatal.If(t, s.set("draft", draft))
	if now, _, err := openState(s.file); err != nil || string(now.kept["draft"]) != `"mine"` {
		t.Errorf("kept: %s, %v", now.kept, err)
	}
}

// Each window hears what there is, and then what another one changes, once.
func TestStateIsTold(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	c.put("theme", `"dark"`)
	listen := func() (heard func() stateAnswer) {
		conn, _, err := c.dial("/api/state/ws", c.base)
		fatal.If(t, err)
		t.Cleanup(func() { _ = conn.CloseNow() })
		return func() (a stateAnswer) {
			t.Helper()
			fatal.If(t, wsjson.Read(t.Context(), conn, &a))
			return a
		}
	}
	heard := listen()
	if a := heard(); string(a.Changed["theme"]) != `"dark"` {
		t.Errorf("at first: %s", a.Changed)
	}
	c.put("theme", `"dark"`) // no change
	c.put("size", `115`)
	if a := heard(); len(a.Changed) != 1 || string(a.Changed["size"]) != "115" {
		t.Errorf("then: %s", a.Changed)
	}
	// What the server tells is true only while it runs.
	c.s.state.Lock()
	c.s.state.tell("cluster", Cluster{Name: "kwok"})
	c.s.state.Unlock()
	if a := heard(); slices.Sorted(maps.Keys(a.Changed))[0] != "cluster" {
		t.Errorf("at last: %s", a.Changed)
	}
	// A window that comes back hears everything.
	if a := listen()(); len(a.Changed) != 3 {
		t.Errorf("another window: %s", a.Changed)
	}
}

// What cannot be remembered is refused, each with its reason.
func TestStateRefuses(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), State: filepath.Join(t.TempDir(), "page.json")})
	for _, tc := range []struct {
		name, value, says string
		code              int
	}{
		{"Theme", `1`, "by the name", http.StatusBadRequest},
		{"a%2Fb", `1`, "by the name", http.StatusBadRequest},
		{"theme", `{`, "not JSON", http.StatusBadRequest},
		{"theme", `"` + strings.Repeat("x", maxValue) + `"`, "too much", http.StatusRequestEntityTooLarge},
	} {
		if code, text := c.call("PUT", "/api/state/"+tc.name, tc.value, nil); code != tc.code || !strings.Contains(text, tc.says) {
			t.Errorf("%s = %.20s: %d %s", tc.name, tc.value, code, text)
		}
	}
	c.put("gone", `1`)
	c.put("gone", `null`) // which makes room again
	for i := range maxValues {
		c.put(fmt.Sprintf("n%d", i), `1`)
	}
	if code, text := c.call("PUT", "/api/state/more", `1`, nil); code != http.StatusInsufficientStorage || !strings.Contains(text, "no more") {
		t.Errorf("one too many: %d %s", code, text)
	}
	now := c.remembered()
	delete(now, "gone")
	if len(now) != maxValues {
		t.Error("a refused value was remembered")
	}
}
