package judge

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/fatal"
)

const withOutside = good + `outside: {start: x, ledger: /l, kind: Room, thing: effect.room, id: id, name: name, gone: {state: Gone}, key: key, create: POST /rooms}
`

func TestOutsideOfContract(t *testing.T) {
	c, err := load(t, withOutside)
	fatal.If(t, err)
	without, err := load(t, good)
	fatal.If(t, err)
	if c.levels() != 6 || without.levels() != 5 || !c.Outside.is("outside", "Room") || c.Outside.is("v1", "Room") || without.Outside.is("outside", "Room") {
		t.Errorf("%+v", c)
	}
	for name, test := range map[string]struct{ text, want string }{
		"a missing field": {strings.Replace(withOutside, "ledger: /l, ", "", 1), "contract.yaml:7: outside: the outside needs the field ledger"},
		"no fields":       {strings.Replace(withOutside, "{state: Gone}", "x", 1), "contract.yaml:7: outside.gone: it has to be fields"},
		"no path":         {strings.Replace(withOutside, "effect.room", "'a[b'", 1), "contract.yaml:7: outside.thing: "},
		"another kind":    {strings.Replace(withOutside, "end:", "  - gone: {apiVersion: outside, kind: Hall}\nend:", 1), "contract.yaml:5: scenario.one[2].gone: the contract has no outside with a Hall"},
		"none":            {strings.Replace(good, "end:", "  - gone: {apiVersion: outside, kind: Room}\nend:", 1), "contract.yaml:5: scenario.one[2].gone: the contract has no outside with a Room"},
		"made by hand":    {strings.Replace(withOutside, "end:", "  - apply: {apiVersion: outside, kind: Room, metadata: {name: a}}\nend:", 1), "contract.yaml:5: scenario.one[2].apply: only the controller makes a Room"},
		"nobody's hand":   {strings.Replace(withOutside, "end:", "  - delete: {apiVersion: outside, kind: Room, metadata: {name: a}}\nend:", 1), "contract.yaml:5: scenario.one[2].delete: for that, outside needs the field delete"},
		"full for ever":   {strings.Replace(withOutside, "key: key", "full: 'PUT /full'", 1), "contract.yaml:7: outside: full and free belong together"},
	} {
		if _, err := load(t, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", name, err, test.want)
		}
	}
	for name, test := range map[string]struct {
		c    *Contract
		o    Options
		want string
	}{
		"told":         {c, Options{Controller: "x {{.Outside}}", Level: 6}, ""},
		"not told":     {c, Options{Controller: "x", Level: 1}, "pass its address, {{.Outside}}, to the command"},
		"nothing":      {without, Options{Controller: "x", Level: 6}, "LEVEL=6 (survives the outside): the contract"},
		"none to tell": {without, Options{Controller: "x {{.Outside}}", Level: 1}, "{{.Outside}} in CONTROLLER: the contract"},
	} {
		if err := test.c.allows(test.o); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// A service whose ledger is a text, and what has arrived there.
func service(t *testing.T, ledger string) (o *outside, arrived *[]string) {
	t.Helper()
	arrived = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/l" {
			_, _ = io.WriteString(w, ledger)
			return
		}
		*arrived = append(*arrived, r.Method+" "+r.URL.RequestURI())
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(server.Close)
	c, err := load(t, withOutside)
	fatal.If(t, err)
	s := &scene{lab: &lab{contract: c}, Faults: &crash.Faults{}, ns: "n"}
	s.outside = &outside{Outside: c.Outside, s: s, others: map[string]bool{}, address: strings.TrimPrefix(server.URL, "http://")}
	s.outside.wire = httptest.NewServer(s.outside)
	t.Cleanup(s.outside.wire.Close)
	return s.outside, arrived
}

// call sends one through the wire; 0 is for no answer.
func (o *outside) call(t *testing.T, method, path, body string) int {
	t.Helper()
	r, err := http.NewRequest(method, o.wire.URL+path, strings.NewReader(body))
	fatal.If(t, err)
	r.Header.Set("Idempotency-Key", "k")
	answer, err := sender.Do(r)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// Each call that changes something is struck so often, and the same call passes then.
func TestWire(t *testing.T) {
	o, arrived := service(t, "")
	for name, test := range map[string]struct {
		inject injection
		codes  []int // of GET, of POST three times, and of another POST
		arrive int
	}{
		"nothing":       {nothingMore, []int{201, 201, 201, 201, 201}, 5},
		"answers lost":  {each(1, anyChange, loseAnswer), []int{201, 0, 201, 201, 0}, 5},
		"refused twice": {each(2, creates, refuseWith(402, 0)), []int{201, 402, 402, 201, 201}, 3},
		"changes only":  {each(1, changesThing, refuseWith(409, 0)), []int{201, 201, 201, 201, 409}, 4},
	} {
		*arrived = nil
		if _, err := test.inject(o.s); err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct{ method, path string }{{"GET", "/rooms?a=b"}, {"POST", "/rooms"}, {"POST", "/rooms"}, {"POST", "/rooms"}, {"POST", "/rooms/1/close"}} {
			if code := o.call(t, c.method, c.path, "{}"); code != test.codes[i] {
				t.Errorf("%s: call %d was answered with %d, want %d", name, i, code, test.codes[i])
			}
		}
		if len(*arrived) != test.arrive || (*arrived)[0] != "GET /rooms?a=b" {
			t.Errorf("%s: arrived are %q, want %d", name, *arrived, test.arrive)
		}
		o.disturb(nil)
	}
}

// line is one of a ledger.
func ledgerLine(at, path, key, id, name, state string) string {
	return `{"time":"2026-01-01T00:00:` + at + `Z","method":"POST","path":"` + path + `","code":201,"key":"` + key + `","effect":{"room":{"id":"` + id + `","name":"` + name + `","state":"` + state + `"}}}` + "\n"
}

// The ledger says who had two things at the same time, and what was asked in between says why.
func TestDouble(t *testing.T) {
	made := func(at, key, id, state string) string { return ledgerLine(at, "/rooms", key, id, "n/fish", state) }
	for name, test := range map[string]struct {
		ledger string
		asked  *call
		others []string
		want   kind
		hint   hint
		none   bool
	}{
		"one":            {ledger: made("01", "k", "1", "Ready") + made("02", "", "1", "Closed"), none: true},
		"one by one":     {ledger: made("01", "k", "1", "Ready") + made("02", "", "1", "Gone") + made("03", "l", "2", "Ready"), none: true},
		"of others":      {ledger: ledgerLine("01", "/rooms", "", "1", "n/fish", "Ready") + made("02", "k", "2", "Ready"), others: []string{"1"}, none: true},
		"touched":        {ledger: ledgerLine("01", "/rooms", "", "1", "n/fish", "Ready") + made("02", "", "1", "Gone"), others: []string{"1"}, want: trespassed},
		"no key":         {ledger: made("01", "", "1", "Ready") + made("03", "", "2", "Ready"), want: twice, hint: keyless},
		"another key":    {ledger: made("01", "k", "1", "Ready") + made("03", "l", "2", "Ready"), want: twice, hint: otherKey},
		"a forgotten":    {ledger: made("01", "k", "1", "Ready") + made("03", "k", "2", "Ready"), want: twice, hint: forgotten},
		"after a list":   {ledger: made("01", "k", "1", "Ready") + made("03", "l", "2", "Ready"), asked: &call{method: "GET", path: "/rooms"}, want: twice, hint: listed},
		"another list":   {ledger: made("01", "k", "1", "Ready") + made("03", "l", "2", "Ready"), asked: &call{method: "GET", path: "/rooms", query: "tag=of%3Dmeat"}, want: twice, hint: otherKey},
		"its own list":   {ledger: made("01", "k", "1", "Ready") + made("03", "l", "2", "Ready"), asked: &call{method: "GET", path: "/rooms", query: "tag=of%3Dfish"}, want: twice, hint: listed},
		"after one room": {ledger: made("01", "k", "1", "Ready") + made("03", "l", "2", "Ready"), asked: &call{method: "GET", path: "/rooms/1"}, want: twice, hint: otherKey},
	} {
		o, _ := service(t, test.ledger)
		if test.asked != nil {
			test.asked.at = time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)
			o.calls = append(o.calls, test.asked, &call{method: "POST", path: "/rooms", key: "l", body: `{"of":"fish"}`})
		}
		for _, id := range test.others {
			o.others[id] = true
		}
		lines, err := o.lines(t.Context())
		fatal.If(t, err)
		f := o.double(lines)
		if (f == nil) != test.none || f != nil && (f.kind != test.want || f.hint != test.hint) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// What is there are the things of the controller that nobody has given up, as objects.
func TestThings(t *testing.T) {
	o, _ := service(t, ledgerLine("01", "/rooms", "", "1", "n/fish", "Ready")+ledgerLine("02", "/rooms", "", "2", "n/meat", "Ready")+
		ledgerLine("03", "/rooms", "", "2", "n/meat", "Gone")+ledgerLine("04", "/rooms", "", "3", "n/fish", "Ready")+`{"path":"/rooms/1","code":402}`+"\n")
	o.others["1"] = true
	things, err := o.things(t.Context())
	if err != nil || len(things) != 1 || (Step{Object: &things[0]}).String() != "Room fish" || textAt(things[0].Object, o.ID) != "3" {
		t.Errorf("%v, %v", things, err)
	}
}

// What comes again too soon is told from the times of the calls.
func TestTooSoon(t *testing.T) {
	start := time.Now()
	at := func(ms, code int, body string) *call {
		when := start.Add(time.Duration(ms) * time.Millisecond)
		return &call{method: "POST", path: "/rooms", body: body, at: when, ended: when, code: code}
	}
	for name, test := range map[string]struct {
		calls []*call
		soon  bool
	}{
		"at once":       {[]*call{at(0, 402, "a"), at(10, 201, "a")}, true},
		"in time":       {[]*call{at(0, 402, "a"), at(2500, 201, "a")}, false},
		"another":       {[]*call{at(0, 402, "a"), at(10, 201, "b")}, false},
		"carried out":   {[]*call{at(0, 201, "a"), at(10, 201, "a")}, false},
		"once too soon": {[]*call{at(0, 402, "a"), at(2500, 402, "a"), at(2600, 201, "a")}, true},
	} {
		o, _ := service(t, "")
		o.s.contract.Retry = 2 * time.Second
		o.calls = test.calls
		var f *failure
		if err := patient(t.Context(), o.s); errors.As(err, &f) != test.soon || test.soon && f.kind != hasty {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDiagnosisOutside(t *testing.T) {
	c := &Case{When: "after it was killed"}
	for want, f := range map[string]failure{
		"It made a second Room for \"fish\" after it was killed: without an idempotency key": {kind: twice, hint: keyless},
		"with another idempotency key": {kind: twice, hint: otherKey},
		"it looked into a list":        {kind: twice, hint: listed},
		"to adopt that":                {kind: twice, hint: forgotten},
		"It left a Room behind after it was killed, although its object \"fish\" is gone": {kind: left},
		"no finalizer keeps the object":                                   {kind: left, hint: noFinalizer},
		"its finalizer comes after the call":                              {kind: left, hint: lateFinalizer},
		"had refused to take it back":                                     {kind: left, hint: refusedEnd},
		"without asking again":                                            {kind: left, hint: unanswered},
		"It touched somebody else's Room 1":                               {kind: trespassed, detail: "Room 1"},
		"It still waits for an answer after it was killed":                {kind: hangs},
		"It has stopped working":                                          {kind: waited, hint: dead, step: step(wait, "Room", "big"), cause: step(patch, "Room", "big")},
		"It asks again and again for what was refused":                    {kind: hasty},
		"It came again too early after it was killed":                     {kind: impatient},
		"It calls the outside more often":                                 {kind: talkative},
		"It goes on calling the outside":                                  {kind: restless},
		"It left Room big half-changed after it was killed: ":             {kind: halfway, step: step(wait, "Room", "big")},
		"It did not put right what somebody had done outside to Room big": {kind: waited, step: step(wait, "Room", "big"), cause: step(patch, "Room", "big")},
	} {
		f.outside = true
		thing := *step(wait, "Room", "fish").Object
		f.thing = &thing
		if f.cause != nil {
			f.cause.Object.SetAPIVersion(outsideVersion)
		}
		got, cure := c.diagnosis(&f)
		if !strings.Contains(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
		if cures[cure].heading == "" {
			t.Errorf("%s has no cure", want)
		}
	}
}
