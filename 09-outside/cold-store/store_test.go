package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
)

// A house is a store whose time stands still, behind HTTP.
type house struct {
	*Server
	t      *testing.T
	ledger string
	url    string
	now    time.Time
}

// newHouse opens a store with what a ledger says.
func newHouse(t *testing.T, ledger string, now time.Time) *house {
	t.Helper()
	h := &house{t: t, ledger: ledger, now: now}
	h.Server = &Server{Store: &Store{keys: map[string]remembered{}, now: func() time.Time { return h.now }}}
	var err error
	if h.Server.ledger, err = openLedger(ledger, h.take); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Server.ledger.file.Close(); err != nil {
			t.Error(err)
		}
	})
	h.apply(Settings{Quota: 20, Remembered: Duration(24 * time.Hour), Prepare: Duration(time.Second), Empty: Duration(time.Second)})
	server := httptest.NewServer(h.Handler())
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func open(t *testing.T) *house {
	t.Helper()
	return newHouse(t, filepath.Join(t.TempDir(), "ledger"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
}

// try makes a call, and returns the answer's code and body.
func (h *house) try(method, path, key, body string) (int, string, error) {
	r, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	transport := &http.Transport{DisableKeepAlives: true} // or it would send a lost call again
	answer, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return 0, "", err
	}
	data, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(data), errors.Join(err, answer.Body.Close())
}

// call wants an answer with that code.
func (h *house) call(want int, method, path, key, body string) string {
	h.t.Helper()
	code, said, err := h.try(method, path, key, body)
	if err != nil || code != want {
		h.t.Fatalf("%s %s: %d %s (%v), want %d", method, path, code, said, err, want)
	}
	return said
}

// lost wants no answer.
func (h *house) lost(method, path, key, body string) {
	h.t.Helper()
	if code, said, err := h.try(method, path, key, body); err == nil {
		h.t.Fatalf("%s %s: %d %s, want no answer", method, path, code, said)
	}
}

// id is the room in an answer.
func (h *house) id(said string) string {
	h.t.Helper()
	var r Room
	if err := json.Unmarshal([]byte(said), &r); err != nil || r.ID == "" {
		h.t.Fatalf("%s is no room (%v)", said, err)
	}
	return r.ID
}

const four = `{"name": "fish", "pallets": 4, "celsius": -18, "tags": {"of": "fish"}}`

// The same key means the same room until it is forgotten, and no other request.
func TestKeys(t *testing.T) {
	h := open(t)
	first := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "k", four))
	if again := h.id(h.call(http.StatusOK, "POST", "/v1/rooms", "k", four)); again != first {
		t.Errorf("the same key has led to %s and %s", first, again)
	}
	if said := h.call(http.StatusConflict, "POST", "/v1/rooms", "k", strings.Replace(four, "4", "5", 1)); !strings.Contains(said, "KeyReused") {
		t.Error(said)
	}
	h.now = h.now.Add(24*time.Hour - time.Second)
	h.call(http.StatusOK, "POST", "/v1/rooms", "k", four)
	h.now = h.now.Add(time.Second)
	if later := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "k", four)); later == first {
		t.Error("a day later, the key is still known")
	}
	h.call(http.StatusCreated, "POST", "/v1/rooms", "", four) // without a key, each call is a new one
	h.call(http.StatusCreated, "POST", "/v1/rooms", "", four)
}

// The key of a room that is gone does not lead to another one.
func TestKeyOfWhatIsGone(t *testing.T) {
	h := open(t)
	first := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "k", four))
	h.call(http.StatusOK, "DELETE", "/v1/rooms/"+first, "", "")
	h.now = h.now.Add(time.Second)
	h.call(http.StatusNotFound, "POST", "/v1/rooms", "k", four)
}

// A list is as late as the owner says, and a look at one room never is.
func TestLateLists(t *testing.T) {
	h := open(t)
	h.call(http.StatusOK, "PATCH", "/owner/settings", "", `{"lag": "5s"}`)
	list := func() int {
		var rooms struct{ Rooms []Room }
		fatal.If(t, json.Unmarshal([]byte(h.call(http.StatusOK, "GET", "/v1/rooms?tag=of=fish", "", "")), &rooms))
		return len(rooms.Rooms)
	}
	id := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "", four))
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {4 * time.Second, 0}, {time.Second, 1}} {
		h.now = h.now.Add(step.after)
		if n := list(); n != step.want {
			t.Errorf("%s later, the list has %d rooms, want %d", step.after, n, step.want)
		}
		h.call(http.StatusOK, "GET", "/v1/rooms/"+id, "", "")
	}
	h.call(http.StatusOK, "DELETE", "/v1/rooms/"+id, "", "")
	h.now = h.now.Add(2 * time.Second)
	if h.call(http.StatusNotFound, "GET", "/v1/rooms/"+id, "", ""); list() != 1 {
		t.Error("the list knows at once that the room is gone")
	}
	h.now = h.now.Add(5 * time.Second)
	if list() != 0 {
		t.Error("the list never shows that the room is gone")
	}
}

// A store that was killed knows all that it has answered. The line that it was writing then is nobody's.
func TestLedgerIsOpenedAgain(t *testing.T) {
	h := open(t)
	id := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "k", four))
	h.call(http.StatusCreated, "POST", "/v1/rooms", "", `{"name": "meat", "pallets": 5, "celsius": -18}`)
	h.call(http.StatusPaymentRequired, "POST", "/v1/rooms", "", `{"name": "ice", "pallets": 12, "celsius": -18}`)
	data, err := os.ReadFile(h.ledger)
	fatal.If(t, err)
	torn := filepath.Join(t.TempDir(), "ledger")
	fatal.If(t, os.WriteFile(torn, append(data, `{"number":4,"effect":{"kind":"rented","room":{"id":"room-3","name":"`+strings.Repeat("x", 1000)...), 0o600))
	now := newHouse(t, torn, h.now.Add(2*time.Second))
	if again := now.id(now.call(http.StatusOK, "POST", "/v1/rooms", "k", four)); again != id {
		t.Errorf("after the restart, the key leads to %s, want %s", again, id)
	}
	if next := now.id(now.call(http.StatusCreated, "POST", "/v1/rooms", "", four)); next != "room-3" {
		t.Errorf("the next room is %s, want room-3", next)
	}
	for i, line := range bytes.Split(bytes.TrimSpace([]byte(now.call(http.StatusOK, "GET", "/owner/ledger", "", ""))), []byte("\n")) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil || e.Number != i+1 {
			t.Errorf("line %d of the ledger is %s (%v)", i+1, line, err)
		}
	}
}

// A broken line in the middle is said, and not passed over.
func TestBrokenLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	fatal.If(t, os.WriteFile(path, []byte("{}\nno\n{}\n"), 0o600))
	if _, err := openLedger(path, func(Entry) {}); err == nil || !strings.Contains(err.Error(), "ledger:2:") {
		t.Errorf("error %v", err)
	}
}

// A fault strikes the calls that it is for, as often as it says, before or after they are carried out.
func TestFaults(t *testing.T) {
	h := open(t)
	for i, step := range []struct {
		fault string
		lost  bool
		code  int
		rooms int // afterwards
	}{
		{fault: `{"method": "POST", "do": "close"}`, lost: true},
		{fault: `{"method": "POST", "do": "close", "after": true}`, lost: true, rooms: 1},
		{fault: `{"method": "POST", "do": "answer", "code": 503, "retryAfter": 2}`, code: 503, rooms: 1},
		{fault: `{"method": "POST", "do": "answer", "code": 503, "after": true}`, code: 503, rooms: 2},
		{fault: `{"method": "DELETE", "do": "close"}`, code: 201, rooms: 3},
		{fault: `{"path": "/v1/rooms/*/size", "do": "close"}`, code: 201, rooms: 4},
		{fault: `{"method": "POST", "do": "slow", "delay": "1ms"}`, code: 201, rooms: 5},
	} {
		h.call(http.StatusOK, "DELETE", "/owner/faults", "", "")
		h.call(http.StatusOK, "POST", "/owner/faults", "", step.fault)
		body := fmt.Sprintf(`{"name": "%d", "pallets": 1, "celsius": 0}`, i)
		if step.lost {
			h.lost("POST", "/v1/rooms", "", body)
		} else {
			h.call(step.code, "POST", "/v1/rooms", "", body)
		}
		if n := len(h.all(h.now)); n != step.rooms {
			t.Errorf("%s: %d rooms, want %d", step.fault, n, step.rooms)
		}
	}
	h.call(http.StatusOK, "DELETE", "/owner/faults", "", "")
	h.call(http.StatusOK, "POST", "/owner/faults", "", `{"changes": true, "skip": 1, "times": 2, "do": "answer", "code": 500}`)
	for i, want := range []int{200, 500, 500, 200} {
		h.call(http.StatusOK, "GET", "/v1/rooms", "", "") // is none of those
		h.call(want, "PATCH", "/v1/rooms/room-1", "", fmt.Sprintf(`{"celsius": %d}`, -i))
	}
	for _, bad := range []string{`{"do": "explode"}`, `{"do": "answer"}`, `{"do": "slow"}`, `{"do": "slow", "delay": "1s", "after": true}`, `{"do": "close", "path": "["}`} {
		h.call(http.StatusUnprocessableEntity, "POST", "/owner/faults", "", bad)
	}
}

// What is refused has changed nothing.
func TestRefusals(t *testing.T) {
	h := open(t)
	id := h.id(h.call(http.StatusCreated, "POST", "/v1/rooms", "", four))
	room := "/v1/rooms/" + id
	h.call(http.StatusConflict, "POST", room+"/close", "", "") // it is still being cooled down
	h.now = h.now.Add(time.Second)
	h.call(http.StatusConflict, "PUT", room+"/size", "", `{"pallets": 5}`) // it is open
	h.call(http.StatusOK, "POST", room+"/close", "", "")
	h.call(http.StatusPaymentRequired, "PUT", room+"/size", "", `{"pallets": 21}`)
	h.call(http.StatusUnprocessableEntity, "PUT", room+"/size", "", `{"pallets": 0}`)
	h.call(http.StatusUnprocessableEntity, "PATCH", room, "", `{"celsius": 9}`)
	h.call(http.StatusOK, "PATCH", "/owner/rooms/"+id, "", `{"locked": true}`)
	h.call(http.StatusConflict, "DELETE", room, "", "")
	h.call(http.StatusNotFound, "GET", "/v1/rooms/room-9", "", "")
	h.call(http.StatusBadRequest, "POST", "/v1/rooms", "", `{"colour": "blue"}`)
	r, refusal := h.room(id)
	if refusal != nil || r.Pallets != 4 || r.Celsius != -18 || r.State != Closed {
		t.Errorf("the room is %+v (%v)", r, refusal)
	}
	h.call(http.StatusOK, "PATCH", "/owner/settings", "", `{"token": "secret"}`)
	h.call(http.StatusUnauthorized, "GET", room, "", "")
}
