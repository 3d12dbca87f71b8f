package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// A Server is the store behind HTTP: for tenants below /v1, and for its owner below /owner.
type Server struct {
	*Store
	faults  []*Fault
	limiter *rate.Limiter
}

// A call is a request of somebody to the store.
type call struct {
	*http.Request
	Entry
}

func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	tenant := func(pattern string, do func(*call) (any, *effect, *Refusal)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.tenant(w, r, do) })
	}
	tenant("GET /v1/rooms", s.list)
	tenant("POST /v1/rooms", func(c *call) (any, *effect, *Refusal) {
		var request Request
		if refusal := c.decode(&request); refusal != nil {
			return nil, nil, refusal
		}
		c.Entry.Request = &request
		return answer(s.rent(c.Key, request))
	})
	tenant("GET /v1/rooms/{id}", func(c *call) (any, *effect, *Refusal) {
		r, refusal := s.room(c.PathValue("id"))
		return r, nil, refusal
	})
	tenant("PATCH /v1/rooms/{id}", func(c *call) (any, *effect, *Refusal) {
		var body struct {
			Celsius *int `json:"celsius"`
		}
		if refusal := c.decode(&body); refusal != nil {
			return nil, nil, refusal
		}
		if body.Celsius == nil {
			return nil, nil, refuse(http.StatusUnprocessableEntity, "Invalid", "celsius is missing")
		}
		return answer(s.change(c.PathValue("id"), *body.Celsius))
	})
	tenant("PUT /v1/rooms/{id}/size", func(c *call) (any, *effect, *Refusal) {
		var body struct {
			Pallets int `json:"pallets"`
		}
		if refusal := c.decode(&body); refusal != nil {
			return nil, nil, refusal
		}
		return answer(s.resize(c.PathValue("id"), body.Pallets))
	})
	tenant("POST /v1/rooms/{id}/close", func(c *call) (any, *effect, *Refusal) { return answer(s.shut(c.PathValue("id"))) })
	tenant("POST /v1/rooms/{id}/open", func(c *call) (any, *effect, *Refusal) { return answer(s.open(c.PathValue("id"))) })
	tenant("DELETE /v1/rooms/{id}", func(c *call) (any, *effect, *Refusal) { return answer(s.giveUp(c.PathValue("id"))) })

	owner := func(pattern string, do func(*call) (any, *effect, *Refusal)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.owner(w, r, do) })
	}
	owner("GET /owner/settings", func(*call) (any, *effect, *Refusal) { return s.settings, nil, nil })
	owner("PATCH /owner/settings", s.set)
	owner("GET /owner/faults", func(*call) (any, *effect, *Refusal) {
		all := []Fault{} // copies, because the next call counts on
		for _, f := range s.faults {
			all = append(all, *f)
		}
		return all, nil, nil
	})
	owner("POST /owner/faults", func(c *call) (any, *effect, *Refusal) {
		var f Fault
		if refusal := c.decode(&f); refusal != nil {
			return nil, nil, refusal
		}
		if refusal := f.check(); refusal != nil {
			return nil, nil, refusal
		}
		s.faults = append(s.faults, &f)
		return f, nil, nil
	})
	owner("DELETE /owner/faults", func(*call) (any, *effect, *Refusal) {
		s.faults = nil
		return struct{}{}, nil, nil
	})
	owner("PATCH /owner/rooms/{id}", func(c *call) (any, *effect, *Refusal) {
		return answer(s.alter(c.PathValue("id"), "changed", func(r *Room) *Refusal {
			id := r.ID
			r.Tags = maps.Clone(r.Tags) // or the past would change, too
			refusal := c.decode(r)
			r.ID = id
			return refusal
		}))
	})
	owner("DELETE /owner/rooms/{id}", func(c *call) (any, *effect, *Refusal) {
		r, refusal := s.room(c.PathValue("id"))
		if refusal != nil {
			return nil, nil, refusal
		}
		r.State, r.GoneAt = Emptying, c.Time
		return r, &effect{"given up", r}, nil
	})
	mux.HandleFunc("GET /owner/ledger", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, s.ledger.file.Name()) })
	return mux
}

// answer is for methods that answer with a room.
func answer(r Room, e *effect, refusal *Refusal) (any, *effect, *Refusal) { return r, e, refusal }

// tenant serves a call of a tenant, with whatever goes wrong.
func (s *Server) tenant(w http.ResponseWriter, r *http.Request, do func(*call) (any, *effect, *Refusal)) {
	s.mu.Lock()
	var fault *Fault
	for _, f := range s.faults {
		if f.strikes(r) {
			fault = f
			break
		}
	}
	s.mu.Unlock()
	if fault != nil {
		switch {
		case fault.Do == "slow":
			select {
			case <-r.Context().Done():
				return // whoever has called does not wait any more
			case <-time.After(time.Duration(fault.Delay)):
			}
		case fault.Do == "answer" && !fault.After:
			if fault.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(fault.RetryAfter))
			}
			do = func(*call) (any, *effect, *Refusal) {
				return nil, nil, fault.refusal()
			}
		case !fault.After:
			do = func(*call) (any, *effect, *Refusal) {
				return nil, nil, refuse(http.StatusBadGateway, "Fault", "nothing was done")
			}
		}
	}
	code, body := s.carryOut("tenant", r, fault, func(c *call) (any, *effect, *Refusal) {
		switch {
		case s.settings.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.settings.Token:
			return nil, nil, refuse(http.StatusUnauthorized, "Unauthorized", "the token is not, or no longer, valid")
		case s.limiter != nil && !s.limiter.AllowN(c.Time, 1):
			w.Header().Set("Retry-After", "1")
			return nil, nil, refuse(http.StatusTooManyRequests, "TooManyRequests", "more than %g calls a second", s.settings.Rate)
		}
		return do(c)
	})
	if fault != nil && fault.Do == "answer" && fault.After {
		code, body = fault.Code, fault.refusal()
	}
	if fault != nil && fault.Do == "silent" {
		<-r.Context().Done()
	}
	if fault != nil && (fault.Do == "silent" || fault.Do == "close") {
		panic(http.ErrAbortHandler) // ends the connection
	}
	reply(w, code, body)
}

// owner serves a call of the store's owner, for whom nothing goes wrong.
func (s *Server) owner(w http.ResponseWriter, r *http.Request, do func(*call) (any, *effect, *Refusal)) {
	code, body := s.carryOut("owner", r, nil, do)
	reply(w, code, body)
}

// carryOut does what a call asks for, and writes it into the ledger.
func (s *Server) carryOut(by string, r *http.Request, fault *Fault, do func(*call) (any, *effect, *Refusal)) (code int, body any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &call{r, Entry{Time: s.now(), By: by, Method: r.Method, Path: r.URL.Path, Key: r.Header.Get("Idempotency-Key"), Code: http.StatusOK}}
	if fault != nil {
		c.Fault = strings.TrimSpace(fault.Do + map[bool]string{true: " after"}[fault.After])
	}
	body, e, refusal := do(c)
	switch {
	case refusal != nil:
		body, c.Code, c.Reason = refusal, refusal.Code, refusal.Reason
	case e != nil:
		c.Effect = e
		if e.Kind == "rented" {
			c.Code = http.StatusCreated
		}
	}
	if r.Method == http.MethodGet && by == "owner" {
		return c.Code, body // looking at the books is not worth an entry
	}
	if err := s.ledger.write(&c.Entry); err != nil {
		return http.StatusInternalServerError, refuse(http.StatusInternalServerError, "Ledger", "the ledger cannot be written, so nothing was done: %v", err)
	}
	s.take(c.Entry)
	return c.Code, body
}

// list returns the rooms, or those with ?tag=KEY=VALUE, as they were a while ago.
func (s *Server) list(c *call) (any, *effect, *Refusal) {
	key, value, tagged := strings.Cut(c.URL.Query().Get("tag"), "=")
	if c.URL.Query().Has("tag") && !tagged {
		return nil, nil, refuse(http.StatusUnprocessableEntity, "Invalid", "tag is %q, and has to be KEY=VALUE", key)
	}
	rooms := s.all(c.Time.Add(-time.Duration(s.settings.Lag)))
	found := rooms[:0]
	for _, r := range rooms {
		if v, ok := r.Tags[key]; !tagged || ok && v == value {
			found = append(found, r)
		}
	}
	return map[string]any{"rooms": found}, nil, nil
}

// set changes settings, and leaves those that are not named.
func (s *Server) set(c *call) (any, *effect, *Refusal) {
	changed := s.settings
	if refusal := c.decode(&changed); refusal != nil {
		return nil, nil, refusal
	}
	s.apply(changed)
	return changed, nil, nil
}

func (s *Server) apply(settings Settings) {
	if settings.Rate != s.settings.Rate {
		s.limiter = nil
		if settings.Rate > 0 {
			s.limiter = rate.NewLimiter(rate.Limit(settings.Rate), max(1, int(settings.Rate)))
		}
	}
	s.settings = settings
}

// decode reads the body of a call.
func (c *call) decode(into any) *Refusal {
	d := json.NewDecoder(http.MaxBytesReader(nil, c.Body, 1<<16))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && !errors.Is(d.Decode(&struct{}{}), io.EOF) {
		err = errors.New("there is more than one object")
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "Malformed", "the body: %v", err)
	}
	return nil
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	data, err := json.Marshal(body)
	if err != nil {
		data = fmt.Appendf(nil, "%q", err)
	}
	_, _ = w.Write(append(data, '\n')) // whoever does not read the answer has lost it
}
