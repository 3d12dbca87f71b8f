package faultproxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Fault is something to go wrong.
type Fault string

// Faults that strike a request before it is forwarded.
const (
	Answer     Fault = "answer"      // Code is answered, as a Status; the server gets nothing
	ErrorEvent Fault = "error-event" // a watch is answered with 200 and one ERROR event of Code: so the server says 410 Expired
	End        Fault = "end"         // a watch is answered with 200 and ends without an event, as when its time is over
	Rewind     Fault = "rewind"      // a watch reaches the server with resourceVersion 1, and the server says what it says to that
	Slow       Fault = "slow"        // forwarded after Delay
	Stall      Fault = "stall"       // forwarded when the injection is removed
	Call       Fault = "call"        // forwarded when the function Call has returned
)

// Faults that strike when the server has answered, and so has done what it was asked.
const (
	Lose         Fault = "lose"          // the connection is reset before the answer
	CallAnswered Fault = "call-answered" // the client gets the answer when the function Call has returned
)

// Faults that strike an event of a watch. No network loses one event and
// delivers the next; but a buggy proxy or client does, and what follows is the same.
const (
	Drop  Fault = "drop"  // the event does not arrive
	Delay Fault = "delay" // it and all later ones of that watch arrive later by Delay
	Hold  Fault = "hold"  // nothing arrives from it on until the injection is removed; the connection stays open
	Cut   Fault = "cut"   // the connection is reset instead
)

// Unreachable is recorded for a request that Down ended.
const Unreachable Fault = "unreachable"

// A Rule says what is to happen to which requests or events.
type Rule struct {
	Match
	Event  string // for faults of events: the type, such as DELETED; a pattern
	Object string // for faults of events: the object's name; a pattern

	Fault Fault
	After int // so many matching requests or events pass first
	Times int // then so many are struck; once if zero, all if negative

	Code       int                 // for Answer and ErrorEvent
	Reason     metav1.StatusReason // for Answer: another one than that of the Code
	RetryAfter time.Duration       // for Answer: the header, in whole seconds; none if zero
	Delay      time.Duration       // for Slow and Delay

	// Call is the function for Call and CallAnswered. If it returns an error, the
	// connection is reset instead. It must return when its context ends: with
	// the client, and at the latest with the proxy.
	Call func(context.Context, Request) error
}

func (r Rule) check() error {
	for _, err := range []error{r.Match.check(), checkPattern(r.Event), checkPattern(r.Object)} {
		if err != nil {
			return err
		}
	}
	switch r.Fault {
	case Answer, ErrorEvent:
		if r.Code < 400 || r.Code > 599 {
			return fmt.Errorf("fault %s: code %d is not an error", r.Fault, r.Code)
		}
	case Slow, Delay:
		if r.Delay <= 0 {
			return fmt.Errorf("fault %s needs a delay", r.Fault)
		}
	case Call, CallAnswered:
		if r.Call == nil {
			return fmt.Errorf("fault %s needs a function, and so a program in Go", r.Fault)
		}
	case End, Rewind, Stall, Lose, Drop, Hold, Cut:
	default:
		return fmt.Errorf("fault %q is not known", r.Fault)
	}
	return nil
}

// A stage is where a fault strikes.
type stage int

const (
	atRequest stage = iota
	atAnswer
	atEvent
)

func (f Fault) stage() stage {
	switch f {
	case Drop, Delay, Hold, Cut:
		return atEvent
	case Lose, CallAnswered:
		return atAnswer
	}
	return atRequest
}

// An Injection is a rule at work.
type Injection struct {
	rule    Rule
	proxy   *Proxy
	removed chan struct{}
	seen    int
	struck  int
}

// String says which requests the rule is for, such as "patch pods".
func (i *Injection) String() string { return strings.TrimSpace(i.rule.Verb + " " + i.rule.Resource) }

// Inject puts a rule to work. Several rules can strike the same request, in
// the order in which they were injected; an event is struck by the first.
func (p *Proxy) Inject(rule Rule) (*Injection, error) {
	if err := rule.check(); err != nil {
		return nil, err
	}
	if rule.Times == 0 {
		rule.Times = 1
	}
	i := &Injection{rule: rule, proxy: p, removed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, i)
	return i, nil
}

// Struck returns how often the fault has happened.
func (i *Injection) Struck() int {
	i.proxy.mu.Lock()
	defer i.proxy.mu.Unlock()
	return i.struck
}

// Remove ends the injection; what it stalls or holds goes on. A function that it has called is not waited for.
func (i *Injection) Remove() {
	p := i.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, rule := range p.rules {
		if rule == i {
			p.rules = append(p.rules[:at:at], p.rules[at+1:]...)
			close(i.removed)
			return
		}
	}
}

// Active returns the faults that can still strike, in the order in which they were
// injected, and Unreachable if the server is down.
func (p *Proxy) Active() []Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var active []Fault
	if p.listener == nil {
		active = append(active, Unreachable)
	}
	for _, i := range p.rules {
		if i.rule.Times < 0 || i.struck < i.rule.Times {
			active = append(active, i.rule.Fault)
		}
	}
	return active
}

// Clear removes all injections.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.rules {
		close(i.removed)
	}
	p.rules = nil
}

// rulesAt returns the rules of a stage, in their order.
func (p *Proxy) rulesAt(s stage) []*Injection {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rules []*Injection
	for _, i := range p.rules {
		if i.rule.Fault.stage() == s {
			rules = append(rules, i)
		}
	}
	return rules
}

// strikes counts a match and reports whether the rule strikes it.
func (i *Injection) strikes(x *exchange, e Event) bool {
	p := i.proxy
	p.mu.Lock()
	now := x.now()
	p.mu.Unlock()
	// Without the lock: the rule may ask a function of the test's.
	if !i.rule.matches(now) || !matches(i.rule.Event, e.Type) || !matches(i.rule.Object, e.Name) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-i.removed: // meanwhile
		return false
	default:
	}
	i.seen++
	if i.seen <= i.rule.After || i.rule.Times > 0 && i.struck >= i.rule.Times {
		return false
	}
	i.struck++
	x.Faults = append(x.Faults, i.rule.Fault)
	p.tell(Observation{Moment: FaultStruck, Fault: i.rule.Fault, Event: e}, x)
	return true
}

// call calls the rule's function.
func (i *Injection) call(ctx context.Context, x *exchange) error {
	i.proxy.mu.Lock()
	now := x.now()
	i.proxy.mu.Unlock()
	return i.rule.Call(ctx, now)
}

// strikeRequest does to a request what the rules say and reports whether it
// has thereby been answered.
func (p *Proxy) strikeRequest(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	ctx := r.Context()
	for _, i := range p.rulesAt(atRequest) {
		if f := i.rule.Fault; (f == ErrorEvent || f == End || f == Rewind) && !x.watch() {
			continue
		}
		if !i.strikes(x, Event{}) {
			continue
		}
		switch i.rule.Fault {
		case Slow:
			p.pause(ctx, time.After(i.rule.Delay), nil)
		case Stall:
			p.pause(ctx, nil, i.removed)
		case Call:
			if i.call(ctx, x) != nil {
				p.abort(x)
			}
		case Rewind:
			query := r.URL.Query()
			query.Set("resourceVersion", "1")
			query.Del("resourceVersionMatch")
			query.Del("sendInitialEvents")
			r.URL.RawQuery = query.Encode()
		case Answer:
			if i.rule.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(i.rule.RetryAfter/time.Second)))
			}
			s := status(i.rule.Code, i.rule.RetryAfter)
			s.Reason = cmp.Or(i.rule.Reason, s.Reason)
			p.write(w, x, i.rule.Code, s)
			return true
		case ErrorEvent:
			p.write(w, x, http.StatusOK, map[string]any{"type": "ERROR", "object": status(i.rule.Code, 0)})
			return true
		case End:
			p.write(w, x, http.StatusOK, nil)
			return true
		}
		if ctx.Err() != nil { // the client or the proxy has ended meanwhile: nothing is left to strike or to forward
			panic(http.ErrAbortHandler)
		}
	}
	return false
}

// strikeAnswer does what the rules say before the client hears of the answer.
func (p *Proxy) strikeAnswer(ctx context.Context, x *exchange) error {
	for _, i := range p.rulesAt(atAnswer) {
		if i.strikes(x, Event{}) && (i.rule.Fault == Lose || i.call(ctx, x) != nil) {
			return errReset
		}
	}
	return nil
}

// pause waits for either channel or the end of the request, which is also that of the proxy.
func (p *Proxy) pause(ctx context.Context, after <-chan time.Time, removed <-chan struct{}) {
	select {
	case <-after:
	case <-removed:
	case <-ctx.Done():
	}
}

func (p *Proxy) write(w http.ResponseWriter, x *exchange, code int, body any) {
	p.mu.Lock()
	x.Code = code
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if body == nil {
		return
	}
	if x.watch() && code == http.StatusOK {
		p.passed(x, Event{Type: "ERROR", Kind: "Status"})
	}
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}

// status is the API server's own form of an error.
func status(code int, retryAfter time.Duration) metav1.Status {
	reason := map[int]metav1.StatusReason{
		400: metav1.StatusReasonBadRequest, 401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden,
		404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict, 410: metav1.StatusReasonExpired,
		422: metav1.StatusReasonInvalid, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError,
		503: metav1.StatusReasonServiceUnavailable, 504: metav1.StatusReasonTimeout,
	}[code]
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: fmt.Sprintf("injected by faultproxy: %s", http.StatusText(code)),
	}
	if retryAfter > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter / time.Second)}
	}
	return s
}

// An eventFilter is the body of a watch, from which faults take or hold back events.
type eventFilter struct {
	ctx    context.Context
	body   io.ReadCloser
	lines  *bufio.Scanner
	p      *Proxy
	x      *exchange
	output bytes.Buffer // what may go to the client
}

func newEventFilter(ctx context.Context, body io.ReadCloser, p *Proxy, x *exchange) io.ReadCloser {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	return &eventFilter{ctx: ctx, body: body, lines: lines, p: p, x: x}
}

// maxEvent is how long an event may be: as long as a body. A longer one ends the watch.
const maxEvent = maxBody

func (f *eventFilter) Close() error { return f.body.Close() }

// Read reads from one event at a time, so that an event is never late because
// of the next one.
func (f *eventFilter) Read(b []byte) (int, error) {
	for f.output.Len() == 0 {
		if !f.lines.Scan() {
			return 0, cmp.Or(f.lines.Err(), io.EOF)
		}
		if line := f.lines.Bytes(); len(bytes.TrimSpace(line)) > 0 {
			if err := f.strike(line); err != nil {
				return 0, err
			}
		}
	}
	return f.output.Read(b)
}

func (f *eventFilter) strike(line []byte) error {
	event, err := parse(line)
	if err != nil {
		return err
	}
	for _, i := range f.p.rulesAt(atEvent) {
		if !i.strikes(f.x, event) {
			continue
		}
		switch i.rule.Fault {
		case Drop:
			return nil
		case Delay:
			f.p.pause(f.ctx, time.After(i.rule.Delay), nil)
		case Hold:
			f.p.pause(f.ctx, nil, i.removed)
		case Cut:
			f.p.hangUp(f.x)
			return errReset
		}
		if err := f.ctx.Err(); err != nil {
			return err
		}
		break // the first rule that strikes is the only one
	}
	f.output.Write(line)
	f.output.WriteByte('\n')
	f.p.passed(f.x, event)
	return nil
}

func (p *Proxy) passed(x *exchange, e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.Events++
	p.tell(Observation{Moment: EventPassed, Event: e}, x)
}

// meta is what the proxy reads of an object.
type meta struct {
	Kind     string
	Metadata struct{ Namespace, Name, ResourceVersion string }
}

func parse(line []byte) (Event, error) {
	var event struct {
		Type   string
		Object struct {
			meta
			Rows json.RawMessage // of a Table, as kubectl get asks for
		}
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return Event{}, fmt.Errorf("the server's watch is not JSON: %w", err)
	}
	o := event.Object.meta
	var rows []struct{ Object meta }
	if o.Kind == "Table" {
		_ = json.Unmarshal(event.Object.Rows, &rows) // what has none is no event of a Table
	}
	if len(rows) > 0 {
		version := o.Metadata.ResourceVersion
		if o = rows[0].Object; o.Metadata.ResourceVersion == "" {
			o.Metadata.ResourceVersion = version
		}
	}
	return Event{Type: event.Type, Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, ResourceVersion: o.Metadata.ResourceVersion}, nil
}
