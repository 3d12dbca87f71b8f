package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"
)

// A Room is what people rent. All of its fields are in the answers; openapi.yaml describes them.
type Room struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"` // what its tenant calls it; several may have the same
	Tags    map[string]string `json:"tags"`
	Pallets int               `json:"pallets"`
	Celsius int               `json:"celsius"`
	State   State             `json:"state"`
	Locked  bool              `json:"locked"` // goods are in it that nobody may take out, so it cannot be given up

	// What is about to happen, as long as the time for it has not come.
	ReadyAt time.Time `json:"readyAt,omitzero"`
	GoneAt  time.Time `json:"goneAt,omitzero"`
}

// A State says what a room is good for.
type State string

const (
	Preparing State = "Preparing" // it is being cooled down
	Ready     State = "Ready"
	Closed    State = "Closed"   // nobody can get in, so its size can be changed
	Emptying  State = "Emptying" // it has been given up, and will be gone
)

// A Request is what somebody wants a room to be like.
type Request struct {
	Name    string            `json:"name"`
	Tags    map[string]string `json:"tags,omitempty"`
	Pallets int               `json:"pallets"`
	Celsius int               `json:"celsius"`
}

// A Refusal is an answer that says no, and has changed nothing.
type Refusal struct {
	Code    int    `json:"-"`
	Reason  string `json:"reason"` // one word for programs
	Message string `json:"message"`
}

func (r *Refusal) Error() string { return r.Message }

func refuse(code int, reason, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Settings are what the owner of the store can change while it is open.
type Settings struct {
	Quota int `json:"quota"` // pallets in all rooms together
	// Lag is by how much lists are late.
	Lag Duration `json:"lag"`
	// Remembered is for how long the same Idempotency-Key means the same request.
	Remembered Duration `json:"remembered"`
	// Prepare is how long a room takes to be ready, and Empty to be gone.
	Prepare Duration `json:"prepare"`
	Empty   Duration `json:"empty"`
	Rate    float64  `json:"rate"`  // calls a second, for all tenants together; 0 for any number
	Token   string   `json:"token"` // what tenants have to show
}

// remembered is the request that somebody has made with a key.
type remembered struct {
	Request
	room string
	at   time.Time
}

// A Store is the state that the ledger has led to.
type Store struct {
	mu       sync.Mutex
	settings Settings
	keys     map[string]remembered
	history  []Entry // those with an effect
	numbered int
	ledger   *Ledger
	now      func() time.Time
}

// today fills in what time has done to a room; false if it is gone.
func (r Room) today(now time.Time) (Room, bool) {
	if r.State == Preparing && !now.Before(r.ReadyAt) {
		r.State, r.ReadyAt = Ready, time.Time{}
	}
	return r, r.State != Emptying || now.Before(r.GoneAt)
}

// all returns the rooms that are there, by ID, as they were known at some time.
func (s *Store) all(at time.Time) []Room {
	known := map[string]Room{}
	for _, e := range s.history {
		if !e.Time.After(at) {
			known[e.Effect.Room.ID] = e.Effect.Room
		}
	}
	rooms := []Room{}
	for _, r := range known {
		if r, there := r.today(at); there {
			rooms = append(rooms, r)
		}
	}
	slices.SortFunc(rooms, func(a, b Room) int { return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) })
	return rooms
}

// room returns one that is there.
func (s *Store) room(id string) (Room, *Refusal) {
	for _, r := range s.all(s.now()) {
		if r.ID == id {
			return r, nil
		}
	}
	return Room{}, refuse(http.StatusNotFound, "NotFound", "there is no room %s", id)
}

// fits asks whether a room may have that many pallets. The quota is about all rooms that are there, also those that are being emptied.
func (s *Store) fits(id string, pallets int) *Refusal {
	taken, others := 0, ""
	if id != "" {
		others = " by other rooms"
	}
	for _, r := range s.all(s.now()) {
		if r.ID != id {
			taken += r.Pallets
		}
	}
	if taken+pallets > s.settings.Quota {
		return refuse(http.StatusPaymentRequired, "QuotaExceeded", "%d of %d pallets are taken%s, so there is no room for %d", taken, s.settings.Quota, others, pallets)
	}
	return nil
}

func (r Request) check() *Refusal {
	switch {
	case r.Pallets < 1 || r.Pallets > 100:
		return refuse(http.StatusUnprocessableEntity, "Invalid", "pallets is %d, and has to be from 1 to 100", r.Pallets)
	case r.Celsius < -30 || r.Celsius > 8:
		return refuse(http.StatusUnprocessableEntity, "Invalid", "celsius is %d, and has to be from -30 to 8", r.Celsius)
	}
	return nil
}

// An effect is what a call has changed: the room as it is now.
type effect struct {
	Kind string `json:"kind"` // rented, changed, closed, resized, opened, given up, gone
	Room Room   `json:"room"`
}

// rent gives a room to somebody, or again the one that the same key has led to.
func (s *Store) rent(key string, request Request) (Room, *effect, *Refusal) {
	if old, ok := s.keys[key]; key != "" && ok && s.now().Sub(old.at) < time.Duration(s.settings.Remembered) {
		if !reflect.DeepEqual(old.Request, request) {
			return Room{}, nil, refuse(http.StatusConflict, "KeyReused", "the Idempotency-Key %s belongs to another request", key)
		}
		r, refusal := s.room(old.room)
		return r, nil, refusal
	}
	if refusal := cmp.Or(request.check(), s.fits("", request.Pallets)); refusal != nil {
		return Room{}, nil, refusal
	}
	r := Room{ID: fmt.Sprint("room-", s.numbered+1), Name: request.Name, Tags: maps.Clone(request.Tags), Pallets: request.Pallets, Celsius: request.Celsius,
		State: Preparing, ReadyAt: s.now().Add(time.Duration(s.settings.Prepare))}
	return r, &effect{"rented", r}, nil
}

// change sets the temperature.
func (s *Store) change(id string, celsius int) (Room, *effect, *Refusal) {
	return s.alter(id, "changed", func(r *Room) *Refusal {
		r.Celsius = celsius
		return Request{Pallets: r.Pallets, Celsius: celsius}.check()
	})
}

func (s *Store) shut(id string) (Room, *effect, *Refusal) {
	return s.alter(id, "closed", func(r *Room) *Refusal {
		if r.State == Preparing {
			return refuse(http.StatusConflict, "NotReady", "%s is still being cooled down", id)
		}
		r.State = Closed
		return nil
	})
}

func (s *Store) resize(id string, pallets int) (Room, *effect, *Refusal) {
	return s.alter(id, "resized", func(r *Room) *Refusal {
		if r.State != Closed {
			return refuse(http.StatusConflict, "NotClosed", "%s is %s: close it first", id, r.State)
		}
		r.Pallets = pallets
		return cmp.Or(Request{Pallets: pallets, Celsius: r.Celsius}.check(), s.fits(id, pallets))
	})
}

func (s *Store) open(id string) (Room, *effect, *Refusal) {
	return s.alter(id, "opened", func(r *Room) *Refusal {
		if r.State == Closed {
			r.State = Ready
		}
		return nil
	})
}

func (s *Store) giveUp(id string) (Room, *effect, *Refusal) {
	return s.alter(id, "given up", func(r *Room) *Refusal {
		if r.Locked {
			return refuse(http.StatusConflict, "Locked", "goods are in %s that nobody may take out", id)
		}
		r.State, r.GoneAt = Emptying, s.now().Add(time.Duration(s.settings.Empty))
		return nil
	})
}

// alter changes a room, unless it is being emptied. What changes nothing has no effect.
func (s *Store) alter(id, kind string, f func(*Room) *Refusal) (Room, *effect, *Refusal) {
	r, refusal := s.room(id)
	if refusal != nil {
		return Room{}, nil, refusal
	}
	if r.State == Emptying {
		if kind == "given up" {
			return r, nil, nil
		}
		return Room{}, nil, refuse(http.StatusConflict, "Emptying", "%s has been given up", id)
	}
	before := r
	if refusal := f(&r); refusal != nil {
		return Room{}, nil, refusal
	}
	if reflect.DeepEqual(before, r) {
		return r, nil, nil
	}
	return r, &effect{kind, r}, nil
}

// take makes an effect true, also when the ledger is read again after a restart.
func (s *Store) take(e Entry) {
	if e.Effect == nil {
		return
	}
	if e.Effect.Kind == "rented" {
		s.numbered++
		if e.Key != "" {
			s.keys[e.Key] = remembered{*e.Request, e.Effect.Room.ID, e.Time}
		}
	}
	s.history = append(s.history, e)
}
