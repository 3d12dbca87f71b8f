package judge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// outsideCases are those of level 6, as far as the undisturbed run gives them something to strike.
func outsideCases(c *Contract, first *outside, asked string) []*Case {
	cases := []*Case{
		{Name: "answers from outside lost", When: "after the outside had carried out each of its calls once without an answer", inject: each(1, anyChange, loseAnswer)},
		{Name: "no answer from outside", When: "after the outside had carried out one of its calls, and never answered", inject: never},
		{Name: "429 from outside", When: "after the outside had answered each of its calls once with 429 and Retry-After", inject: each(1, anyChange, refuseWith(http.StatusTooManyRequests, crash.RetryAfter)), finally: waitedOutside},
		{Name: "503 from outside", When: "after the outside had answered each of its calls once with 503 and Retry-After", inject: each(1, anyChange, refuseWith(http.StatusServiceUnavailable, crash.RetryAfter)), finally: waitedOutside},
		{Name: "402 from outside", When: "after the outside had refused twice with 402 to make something", inject: each(2, creates, refuseWith(http.StatusPaymentRequired, 0)), finally: patient},
		{Name: "422 from outside", When: "after the outside had refused twice with 422 to make something", inject: each(2, creates, refuseWith(http.StatusUnprocessableEntity, 0)), finally: patient},
		{Name: "outside restarted", When: "after the outside was killed at some of its calls, and started again", inject: restartOutside},
		{Name: "deleted while the answer was lost", When: "after people had deleted it while nobody knew how a call had ended", free: true, play: deleteUnanswered, inject: nothingMore},
	}
	calls := first.made()
	n := groupsOf(asked, len(calls))
	for i := range n {
		cases = append(cases,
			&Case{Name: fmt.Sprintf("killed before a call, %d of %d", i+1, n), When: "after it was killed before one of its calls to the outside", inject: killAtCall(false, i, n)},
			&Case{Name: fmt.Sprintf("killed after a call, %d of %d", i+1, n), When: "after it was killed between one of its calls to the outside and the answer", inject: killAtCall(true, i, n)})
	}
	if slices.ContainsFunc(calls, func(c call) bool { return changesThing(first, &c) }) {
		cases = append(cases, &Case{Name: "409 from outside", When: "after the outside had refused each change twice with 409", inject: each(2, changesThing, refuseWith(http.StatusConflict, 0))})
	}
	if c.Outside.Full != "" {
		cases = append(cases, &Case{Name: "quota used up", When: "after somebody else had used up the quota outside for a while", inject: useUp, finally: patient})
	}
	if c.byHand() {
		cases = append(cases, &Case{Name: "away while somebody works outside", When: "after it was away while somebody changed something outside", around: awayAtHands})
	}
	if c.Outside.Later != "" && len(first.s.reports()) > 0 {
		cases = append(cases, &Case{Name: "status lost, a day later", When: "after the status of all objects was lost, and the outside had forgotten all keys", finally: loseStatusLater})
	}
	for _, c := range cases {
		c.Level, c.more = 6, longestPause
	}
	return cases
}

// nothingMore is for a case whose play strikes by itself.
func nothingMore(*scene) (crash.During, error) { return nil, nil }

// loseAnswer has a call carried out, and nobody learns of it.
func loseAnswer(_ *call, pass func() *reply) *reply {
	pass()
	return nil
}

// byHand says whether people work outside in the scenario.
func (c *Contract) byHand() bool {
	return slices.ContainsFunc(c.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(s Step) bool {
			return s.changes() && c.Outside.is(s.Object.GetAPIVersion(), s.Object.GetKind())
		})
	})
}

// disturb lets something go wrong with the calls from now on.
func (o *outside) disturb(f fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fault = f
}

func anyChange(*outside, *call) bool { return true }

// creates says whether a call is to make a thing.
func creates(o *outside, c *call) bool { return c.method+" "+c.path == o.Create }

// changesThing says whether it is about one that is there.
func changesThing(o *outside, c *call) bool { return !creates(o, c) }

// refuseWith has a call refused, with nothing done.
func refuseWith(code int, retryAfter time.Duration) fault {
	return func(*call, func() *reply) *reply {
		r := &reply{code: code, header: http.Header{"Content-Type": {"application/json"}}, body: fmt.Appendf(nil, `{"reason":"Refused","message":"%s: %s"}`, token, http.StatusText(code))}
		if retryAfter > 0 {
			r.header.Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		}
		return r
	}
}

// each strikes the first calls of those that are the same.
func each(most int, which func(*outside, *call) bool, f fault) injection {
	return func(s *scene) (crash.During, error) {
		var mu sync.Mutex
		tries := map[string]int{}
		s.outside.disturb(func(c *call, pass func() *reply) *reply {
			if !c.changes() || !which(s.outside, c) {
				return pass()
			}
			mu.Lock()
			tries[c.what()]++
			strikes := tries[c.what()] <= most
			mu.Unlock()
			if !strikes || !s.Strike() {
				return pass()
			}
			return f(c, pass)
		})
		return nil, nil
	}
}

// killAtCall kills the controller at every n-th of its calls that change something, and starts it again.
func killAtCall(after bool, i, n int) injection {
	return func(s *scene) (crash.During, error) {
		var mu sync.Mutex
		count := 0
		s.outside.disturb(func(c *call, pass func() *reply) *reply {
			if !c.changes() {
				return pass()
			}
			mu.Lock()
			defer mu.Unlock()
			if c.at.Before(s.program(0).started) {
				return nil // its sender was killed already
			}
			count++
			if (count-1)%max(n, 2) != i || s.ctx.Err() != nil || !s.Strike() {
				return pass()
			}
			if after {
				pass()
			}
			s.kill(0)
			if err := s.launch(0); err != nil {
				s.stop(err)
			}
			return nil
		})
		return nil, nil
	}
}

// never lets a call end only when the controller gives it up.
func never(s *scene) (crash.During, error) {
	wait, once := s.Chance.IntN(3), sync.Mutex{}
	s.outside.disturb(func(c *call, pass func() *reply) *reply {
		once.Lock()
		if c.changes() {
			wait--
		}
		strikes := c.changes() && wait == -1
		once.Unlock()
		answer := pass()
		if !strikes {
			return answer
		}
		s.Strikes.Add(1)
		select {
		case <-c.hangUp:
		case <-s.ctx.Done():
		}
		return nil
	})
	return nil, nil
}

// useUp has somebody else use the quota up until the outside has refused two calls because of that.
func useUp(s *scene) (crash.During, error) {
	if err := s.outside.order(s.ctx, s.outside.Full); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		s.until(ctx, func() bool {
			refused := 0
			for _, c := range s.outside.made() {
				if creates(s.outside, &c) && c.code >= 400 {
					refused++
				}
			}
			s.Strikes.Store(int64(refused))
			return refused >= 2
		})
		return s.outside.order(context.WithoutCancel(ctx), s.outside.Free)
	}, nil
}

// restartOutside kills the service before or after it carries out some calls, and starts it again.
func restartOutside(s *scene) (crash.During, error) {
	var mu sync.Mutex
	wait, away := s.Chance.IntN(2), crash.Between(s.Chance, 0, time.Second)
	s.outside.disturb(func(c *call, pass func() *reply) *reply {
		if !c.changes() {
			return pass()
		}
		mu.Lock()
		defer mu.Unlock()
		if wait--; wait >= 0 || s.ctx.Err() != nil {
			return pass()
		}
		wait = 3
		if s.Strikes.Add(1)%2 == 0 {
			pass()
		}
		s.outside.kill()
		crash.Sleep(s.ctx, away)
		if err := s.outside.start(s.ctx); err != nil {
			s.stop(err)
		}
		return nil
	})
	return nil, nil
}

// awayAtHands has the controller miss what somebody does outside.
func awayAtHands(ctx context.Context, s *scene, step Step, play func() error) error {
	if !step.changes() || !s.contract.Outside.is(step.Object.GetAPIVersion(), step.Object.GetKind()) {
		return play()
	}
	there := Step{Verb: wait, Object: &unstructured.Unstructured{Object: map[string]any{"apiVersion": outsideVersion, "kind": step.Object.GetKind()}}, where: step.where}
	there.Object.SetName(step.Object.GetName())
	if err := s.wait(ctx, there, nil); err != nil { // what is not there yet would not come while it is away
		return err
	}
	s.Strikes.Add(1)
	s.kill(0)
	return errors.Join(play(), s.launch(0))
}

// deleteUnanswered kills the controller when the outside has made something for an object, and deletes
// that object before the controller comes back: nobody has ever seen the answer.
func deleteUnanswered(ctx context.Context, s *scene) error {
	for _, t := range s.contract.Scenario[:min(3, len(s.contract.Scenario))] {
		made := t.Steps[0]
		if made.Verb != apply {
			continue
		}
		struck := make(chan struct{})
		var once sync.Once
		s.outside.disturb(func(c *call, pass func() *reply) *reply {
			if !c.changes() {
				return pass()
			}
			once.Do(func() {
				pass()
				s.kill(0)
				s.Strikes.Add(1)
				close(struck)
			})
			return nil
		})
		if err := s.do(ctx, made, nil); err != nil {
			return err
		}
		select {
		case <-struck:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(s.patience):
			return &failure{kind: waited, step: &made, cause: &made, theirs: true, detail: "  it has called nobody"}
		}
		s.outside.disturb(nil)
		deleted, ended := made, made
		deleted.Verb, ended.Verb = remove, gone
		if err := errors.Join(s.do(ctx, deleted, nil), s.launch(0)); err != nil {
			return err
		}
		if err := s.do(ctx, ended, &deleted); err != nil {
			return err
		}
	}
	return nil
}

// loseStatusLater is a restore from a backup of yesterday.
func loseStatusLater(ctx context.Context, s *scene) error {
	s.kill(0)
	if err := errors.Join(s.outside.order(ctx, s.outside.Later), s.wipe(ctx, ""), s.launch(0)); err != nil {
		return err
	}
	_, err := s.settle(ctx)
	return err
}

// next returns the same call once more.
func next(all []call, i int) *call {
	for j := range all[i+1:] {
		if c := &all[i+1+j]; c.what() == all[i].what() {
			return c
		}
	}
	return nil
}

// waitedOutside fails if a call came again before the time that the outside had asked for.
func waitedOutside(_ context.Context, s *scene) error {
	return s.tooSoon(impatient, crash.RetryAfter, func(c *call) bool {
		return c.code == http.StatusTooManyRequests || c.code == http.StatusServiceUnavailable
	})
}

// patient fails if what was refused was asked for again before the time in the contract.
func patient(_ context.Context, s *scene) error {
	return s.tooSoon(hasty, s.contract.Retry, func(c *call) bool {
		return creates(s.outside, c) && (c.code == http.StatusPaymentRequired || c.code == http.StatusUnprocessableEntity)
	})
}

func (s *scene) tooSoon(k kind, least time.Duration, refused func(*call) bool) error {
	all := s.outside.made()
	for i := range all {
		c := next(all, i)
		if c == nil || !refused(&all[i]) {
			continue
		}
		// What is measured is a little behind what the controller has waited.
		gap := c.at.Sub(all[i].ended)
		if gap >= least-50*time.Millisecond {
			continue
		}
		return &failure{kind: k, outside: true, calls: []call{all[i], *c}, detail: fmt.Sprintf("  %s later, and not %s", gap.Round(time.Millisecond), least)}
	}
	return nil
}

// manyCalls counts what the controller calls the outside for each change that people make.
func (s *scene) manyCalls() *failure {
	all, changes := s.outside.made(), s.contract.changes()
	if len(all) <= changes*s.contract.Calls || s.free {
		return nil
	}
	return &failure{kind: talkative, outside: true, calls: all[max(0, len(all)-3):], detail: fmt.Sprintf("  %d calls for %d changes; the contract's bounds.calls allows %d for each", len(all), changes, s.contract.Calls)}
}

// books fails if the ledger shows what must not be, whatever the end state is like. At the end, nothing
// may be left of an object that is gone.
func (s *scene) books(ctx context.Context) error {
	if s.outside == nil {
		return nil
	}
	lines, err := s.outside.lines(ctx)
	if err != nil {
		return err
	}
	if f := s.outside.double(lines); f != nil {
		if f.kind == twice && s.removedBetween(f.thing.GetName(), f.calls[0].at, f.calls[1].at) {
			f = s.leftBehind(lines, f.calls[0].id, f.thing)
		}
		return f
	}
	objects, err := s.objects(ctx)
	if err != nil {
		return err
	}
	things, err := s.outside.things(ctx)
	if err != nil {
		return err
	}
	for i, t := range things {
		if !objects[t.GetName()] {
			return s.leftBehind(lines, textAt(t.Object, s.outside.ID), &things[i])
		}
	}
	if f := s.manyCalls(); f != nil {
		return f
	}
	return nil
}

// leftBehind is about a thing whose object is gone.
func (s *scene) leftBehind(lines []call, id string, thing *unstructured.Unstructured) *failure {
	return &failure{kind: left, outside: true, detail: "  " + id, thing: thing, calls: about(lines, id), hint: s.whyLeft(id, thing.GetName())}
}

// removedBetween says whether people have deleted the object of a name in between: then the second
// thing is another object's, and the first one was left behind.
func (s *scene) removedBetween(name string, from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.removed, func(r removal) bool { return r.name == name && r.at.After(from) && r.at.Before(to) })
}

// seenOutside is what the ledger says of a failure that people have noticed in the cluster, or nil.
func (s *scene) seenOutside(ctx context.Context, f *failure) *failure {
	if s.outside == nil || f.kind != waited && f.kind != differs && f.kind != restless {
		return nil
	}
	var seen *failure
	if err := s.books(ctx); errors.As(err, &seen) {
		return seen
	}
	ours := f.step != nil && f.cause != nil && s.contract.Outside.is(f.step.Object.GetAPIVersion(), f.step.Object.GetKind()) && f.cause.Object.GetAPIVersion() != outsideVersion
	for _, c := range s.outside.made() {
		if open := time.Since(c.at); c.ended.IsZero() && open > s.contract.Settle {
			return &failure{kind: hangs, outside: true, calls: []call{c}, detail: fmt.Sprintf("  a call that began %s ago", open.Round(time.Second))}
		}
	}
	if f.kind != waited || !ours {
		return nil
	}
	things, err := s.list(ctx, outsideVersion, f.step.Object.GetKind(), f.step.Object.GetName())
	if err != nil || len(things) == 0 {
		return nil
	}
	id := textAt(things[0].Object, s.outside.ID)
	var calls []call
	refused := false
	for _, c := range s.outside.made() {
		if strings.Contains(c.path+"/", "/"+id+"/") {
			refused = refused || c.code >= 400 && c.code < 500
			calls = append(calls, c)
		}
	}
	if !refused {
		return nil
	}
	return &failure{kind: halfway, outside: true, step: f.step, detail: f.detail, calls: calls}
}

// objects are the names of all that people may have made.
func (s *scene) objects(ctx context.Context) (map[string]bool, error) {
	names := map[string]bool{}
	for _, t := range s.contract.Scenario {
		for _, step := range t.Steps {
			if step.Verb != apply || s.contract.Outside.is(step.Object.GetAPIVersion(), step.Object.GetKind()) || names[step.Object.GetName()] {
				continue
			}
			list, err := s.list(ctx, step.Object.GetAPIVersion(), step.Object.GetKind(), "")
			if err != nil {
				return nil, err
			}
			for _, o := range list {
				names[o.GetName()] = true
			}
		}
	}
	return names, nil
}

// about are the lines of the ledger that are about a thing.
func about(lines []call, id string) (all []call) {
	for _, l := range lines {
		if l.id == id {
			all = append(all, l)
		}
	}
	return all
}

// double finds when an object had two things at the same time, and who has changed a stranger's.
func (o *outside) double(lines []call) *failure {
	has := map[string]map[string]call{} // by the name of the object, and by ID
	seen := map[string]bool{}
	for _, l := range lines {
		if l.thing == nil {
			continue
		}
		if o.others[l.id] {
			if seen[l.id] { // the first line is the stranger's own
				return &failure{kind: trespassed, outside: true, detail: o.Kind + " " + l.id, calls: about(lines, l.id)}
			}
			seen[l.id] = true
			continue
		}
		name := o.owner(l.thing)
		if has[name] == nil {
			has[name] = map[string]call{}
		}
		if o.given(l.thing) {
			delete(has[name], l.id)
			continue
		}
		for id, first := range has[name] {
			if id == l.id {
				continue
			}
			f := &failure{kind: twice, outside: true, calls: []call{first, l}, detail: "  " + id + " and " + l.id,
				thing: &unstructured.Unstructured{Object: map[string]any{"kind": o.Kind, "metadata": map[string]any{"name": name}}}}
			f.hint = o.whyTwice(first, l)
			return f
		}
		if _, known := has[name][l.id]; !known {
			has[name][l.id] = l // as it was made
		}
	}
	return nil
}

// whyTwice tells from two lines of the ledger, and from what was asked in between, why a thing was made again.
func (o *outside) whyTwice(first, second call) hint {
	switch {
	case second.key == "":
		return keyless
	case first.key == second.key:
		return forgotten
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	sent := ""
	for _, c := range o.calls {
		if c.key == second.key && c.path == second.path {
			sent = c.body
		}
	}
	for _, c := range o.calls {
		// A list that is for one object names something that the call about that object has, too.
		query, err := url.QueryUnescape(c.query)
		about := err == nil && strings.Contains(sent, query[strings.LastIndexByte(query, '=')+1:])
		if c.method == http.MethodGet && c.path == second.path && about && c.at.After(first.at) && c.at.Before(second.at) {
			return listed
		}
	}
	return otherKey
}

// whyLeft tells from what the controller has sent to both sides why a thing was left behind.
func (s *scene) whyLeft(id, name string) hint {
	holds := func(r faultproxy.Request) bool {
		o := sent(r)
		return o != nil && r.Code/100 == 2 && len(o.GetFinalizers()) > 0
	}
	requests := s.requests(writes)
	held := slices.ContainsFunc(requests, func(r faultproxy.Request) bool { return r.Name == name && holds(r) })
	everHeld := slices.ContainsFunc(requests, holds) || s.undisturbed != nil && slices.ContainsFunc(s.undisturbed.requests(writes), holds)
	noted := slices.ContainsFunc(requests, func(r faultproxy.Request) bool {
		return r.Code/100 == 2 && strings.Contains(string(r.Body), strconv.Quote(id))
	})
	refused := false
	for _, c := range s.outside.made() {
		if strings.Contains(c.path+"/", "/"+id+"/") {
			refused = c.code >= 400
		}
	}
	switch {
	case !everHeld:
		return noFinalizer
	case !held:
		return lateFinalizer
	case refused:
		return refusedEnd
	case !noted:
		return unanswered
	}
	return nothing
}

// diagnosisOutside says what is wrong with what a controller did outside; nothing if it is none of that.
func (c *Case) diagnosisOutside(f *failure, when string) (says, cure string) {
	if !f.outside && f.kind != waited {
		return "", ""
	}
	kind, name := "", ""
	if f.thing != nil {
		kind, name = f.thing.GetKind(), f.thing.GetName()
	}
	switch f.kind {
	case twice:
		why := map[hint]string{
			keyless:   "without an idempotency key, the outside cannot know that it is the same request",
			otherKey:  "it sent the same request with another idempotency key, which has to be written down before the first try",
			listed:    "it looked into a list, which did not show the first one yet, and began again with another key",
			forgotten: "the outside had forgotten the key, and it did not look for what it has there already, to adopt that",
		}[f.hint]
		return fmt.Sprintf("It made a second %s for %q%s: %s.", kind, name, when, why), "once"
	case left:
		why := map[hint]string{
			noFinalizer:   "no finalizer keeps the object until that is given up",
			lateFinalizer: "its finalizer comes after the call, and not before",
			refusedEnd:    "the outside had refused to take it back, and it let the object go all the same",
			unanswered:    "nobody had seen the answer to the call that made it, and it let the object go without asking again",
			nothing:       "it never gave it up",
		}[f.hint]
		cure := "end"
		if f.hint == lateFinalizer || f.hint == unanswered || f.hint == noFinalizer {
			cure = "once"
		}
		return fmt.Sprintf("It left a %s behind%s, although its object %q is gone: %s.", kind, when, name, why), cure
	case trespassed:
		return fmt.Sprintf("It touched somebody else's %s%s: a name proves nothing outside, so it has to look for a mark of its own.", f.detail, when), "end"
	case hangs:
		return fmt.Sprintf("It still waits for an answer%s: without a deadline, a call that nobody answers keeps its worker for ever.", when), "worker"
	case hasty:
		return fmt.Sprintf("It asks again and again for what was refused%s: the answer stays the same until somebody changes something.", when), "refused"
	case impatient:
		return fmt.Sprintf("It came again too early%s: Retry-After asked for %s.", when, crash.RetryAfter), "refused"
	case talkative:
		return "It calls the outside more often than the contract allows: it has to compare before it calls, and to call once.", "refused"
	case restless:
		return fmt.Sprintf("It goes on calling the outside although nothing changes%s.", when), "again"
	case halfway:
		return fmt.Sprintf("It left %s half-changed%s: the outside refused a part of the change, so what was done before has to be taken back.", f.step, when), "refused"
	case waited:
		if f.hint != dead && f.cause != nil && f.cause.Object.GetAPIVersion() == outsideVersion {
			return fmt.Sprintf("It did not put right what somebody had done outside to %s%s: nothing tells it of that, so it has to look from time to time.", f.cause, when), "again"
		}
	}
	return "", ""
}

// line shows a call with the seconds since the start of its case.
func (c call) line(start time.Time) string {
	words := []string{c.method, c.path}
	switch {
	case c.code > 0:
		words = append(words, strconv.Itoa(c.code))
	default:
		words = append(words, "no answer")
	}
	if c.id != "" {
		words = append(words, c.id)
	}
	if c.key != "" {
		words = append(words, "key "+c.key)
	}
	return fmt.Sprintf("%+7.3fs  %s", c.at.Sub(start).Seconds(), strings.Join(words, " "))
}
