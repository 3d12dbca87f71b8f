package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/09-outside/client"
)

// maxSaid is how many bytes of an answer are kept: with some words around them they fit into an Event.
const maxSaid = 900

// maxAnswer is how many bytes of an answer are read. A room has some hundred.
const maxAnswer = 1 << 20

// mostPatience is how many seconds the store is left alone at most: nothing but its answer says that it wants that.
const mostPatience = 3600

// deadline is how long a call to the store may take.
const deadline = 10 * time.Second

// A store is the cold store as all keys see it: they share one token and one rate.
type store struct {
	*client.ClientWithResponses
	token   func() (string, error)
	limiter *rate.Limiter

	mu       sync.Mutex
	patience time.Time // no call before, because the store has asked for it
}

// newStore makes at most perSecond calls a second.
func newStore(url string, perSecond float64, token func() (string, error)) (*store, error) {
	s := &store{token: token, limiter: rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))}
	// A redirect would send the token to somebody else, and a call twice.
	sender := &http.Client{Timeout: deadline, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var err error
	s.ClientWithResponses, err = client.NewClientWithResponses(url, client.WithHTTPClient(doer(func(r *http.Request) (*http.Response, error) { return s.do(sender, r) })))
	return s, err
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// do sends a call when it is its turn. An answer that says no becomes an error.
func (s *store) do(sender *http.Client, r *http.Request) (*http.Response, error) {
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if err := s.patient(); err != nil {
		return nil, err
	}
	if err := s.limiter.Wait(r.Context()); err != nil {
		return nil, err
	}
	if err := s.patient(); err != nil { // another call may have been told so meanwhile
		return nil, err
	}
	answer, err := sender.Do(r)
	if err != nil {
		return nil, err
	}
	answer.Body = body{io.LimitReader(answer.Body, maxAnswer), answer.Body}
	if answer.StatusCode < 300 {
		return answer, nil
	}
	return nil, s.refusal(answer)
}

// A body is that of an answer, of which not all is read.
type body struct {
	io.Reader
	io.Closer
}

// patient returns an error as long as the store wants to be left alone.
func (s *store) patient() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wait := time.Until(s.patience); wait > 0 {
		return &busy{wait}
	}
	return nil
}

// refusal reads an answer that says no.
func (s *store) refusal(answer *http.Response) error {
	said, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("reading the answer of the store: %w", err)
	}
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds > 0 { // after 0, the next try waits as after any failure
		wait := time.Duration(min(seconds, mostPatience)) * time.Second
		s.mu.Lock()
		defer s.mu.Unlock()
		if until := time.Now().Add(wait); until.After(s.patience) { // of several calls under way, the longest wait counts
			s.patience = until
		}
		return &busy{wait}
	}
	r := &refused{code: answer.StatusCode}
	if err := json.Unmarshal(said, r); err != nil {
		r.Message = string(bytes.TrimSpace(said))
	}
	r.Message = loop.Cut(strings.ToValidUTF8(r.Message, ""), maxSaid) // it may be a page in HTML
	return r
}

// busy says that the store wants to be left alone for a while.
type busy struct{ wait time.Duration }

func (b *busy) Error() string { return "the store has asked for patience" }

// refused is an answer that says no: nothing was done.
type refused struct {
	code    int
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (r *refused) Error() string {
	return fmt.Sprintf("the store answers %d %s: %s", r.code, http.StatusText(r.code), r.Message)
}

// forGood returns what the store has said if the same call will meet the same answer until
// somebody changes something. It is empty for every other error.
func forGood(err error) string {
	var r *refused
	if !errors.As(err, &r) {
		return ""
	}
	switch r.code {
	case http.StatusPaymentRequired, http.StatusForbidden, http.StatusConflict, http.StatusUnprocessableEntity:
		return r.Message
	}
	return ""
}

// neverDone is forGood for a rent that may have been sent before: only if the store has looked at the
// request, and at its key, does a refusal say that it was not carried out then, either.
func neverDone(err error) string {
	var r *refused
	if errors.As(err, &r) && (r.code == http.StatusPaymentRequired || r.code == http.StatusUnprocessableEntity) {
		return r.Message
	}
	return ""
}

// gone reports whether the store says that there is no such room. A 404 without its word for that is
// somebody else's, such as a gateway's, who knows nothing about rooms.
func gone(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.code == http.StatusNotFound && r.Reason == "NotFound"
}

// reused reports whether the store says that a key belongs to another request.
func reused(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.code == http.StatusConflict && r.Reason == "KeyReused"
}

// rent asks for a room. The same key means the same room, however often it is sent.
func (s *store) rent(ctx context.Context, key string, want client.RoomRequest) (*client.Room, error) {
	answer, err := s.RentRoomWithResponse(ctx, &client.RentRoomParams{IdempotencyKey: &key}, want)
	if err != nil {
		return nil, err
	}
	if answer.JSON201 != nil {
		return answer.JSON201, nil
	}
	return room(answer.JSON200)
}

func (s *store) room(ctx context.Context, id string) (*client.Room, error) {
	answer, err := s.GetRoomWithResponse(ctx, id)
	if err != nil {
		return nil, err
	}
	return room(answer.JSON200)
}

// of returns the rooms that had a tag a while ago.
func (s *store) of(ctx context.Context, key, value string) ([]client.Room, error) {
	tag := key + "=" + value
	answer, err := s.ListRoomsWithResponse(ctx, &client.ListRoomsParams{Tag: &tag})
	if err != nil {
		return nil, err
	}
	if answer.JSON200 == nil || answer.JSON200.Rooms == nil { // having no rooms is [], or else a room would be left behind
		return nil, errStrange
	}
	return answer.JSON200.Rooms, nil
}

var errStrange = errors.New("the store has sent no room: is that its address?")

func room(r *client.Room) (*client.Room, error) {
	if r == nil || r.Id == "" {
		return nil, errStrange
	}
	return r, nil
}
