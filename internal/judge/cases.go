package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// Levels are what a controller can reach. Each includes those before.
var Levels = []string{1: "works", 2: "survives itself", 3: "survives the wire", 4: "lives with others", 5: "is a good citizen", 6: "survives the outside"}

// A Case is the scenario with one thing going wrong.
type Case struct {
	Name  string
	Level int
	When  string // ends a sentence: "after its watches were cut"

	Before bool          // the first objects are there before the controller
	Copies int           // how many controllers run; one if zero
	Alone  bool          // nothing may run beside it, because it strikes the whole cluster
	free   bool          // what it comes to is not that of the undisturbed run
	long   bool          // most of it is waiting, so it begins before others
	maybe  bool          // there may be nothing for it to strike
	more   time.Duration // people wait so much longer than the contract says

	// inject is called when the controller works and nothing has happened yet. What it
	// returns runs while the people are busy.
	inject injection
	// play is what people do instead of the scenario.
	play func(ctx context.Context, s *scene) error
	// look finds a fault in what the undisturbed run did; nothing is played.
	look func(first *scene) *failure
	// around plays a step.
	around func(ctx context.Context, s *scene, step Step, play func() error) error
	// finally looks at the controller once more when all is calm.
	finally func(ctx context.Context, s *scene) error
}

// longestPause is how long an informer of client-go may wait at most before it asks an API
// server again that was away; see newBackoffManager in its tools/cache/reflector.go.
const longestPause = 30 * time.Second

type injection func(s *scene) (crash.During, error)

const undisturbed = "undisturbed"

// workCases are those of level 1. The first one is what all others are compared with.
func workCases(c *Contract) []*Case {
	cases := []*Case{
		{Name: undisturbed, Level: 1},
		{Name: "objects before the start", Level: 1, When: "although it was there before the controller started", Before: true},
		{Name: "ended and started again", Level: 1, When: "after a SIGTERM and a new start", around: endMidway, finally: restartAtRest},
		{Name: "ended at its start", Level: 1, When: "while it was still starting", finally: endEarly},
	}
	if len(c.Hundred) > 0 {
		cases = append(cases, &Case{Name: "a hundred objects", Level: 1, When: "with a hundred objects at once", free: true, play: hundred})
	}
	return cases
}

// endMidway ends the controller before one step that people take, and starts it again. No
// write begins in between.
func endMidway(ctx context.Context, s *scene, step Step, play func() error) error {
	if !step.changes() || s.Strikes.Load() > 0 || s.Chance.IntN(4) > 0 && step.Verb != remove || !s.Strike() {
		return play()
	}
	if err := s.end(0); err != nil {
		return err
	}
	ended := time.Now()
	err := play()
	crash.Sleep(ctx, 300*time.Millisecond)
	late := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return isWrite(r) && r.Started.After(ended) }})
	if len(late) > 0 {
		return &failure{kind: undead, requests: late}
	}
	return errors.Join(err, s.launch(0))
}

// restartAtRest ends the controller and starts it again, which nobody must notice.
func restartAtRest(ctx context.Context, s *scene) error {
	before := len(s.requests(writes))
	s.Strikes.Add(1)
	if err := s.end(0); err != nil {
		return err
	}
	// Or the watches of the one before would count.
	if err := poll.Until(ctx, 20*time.Millisecond, 10*time.Second, func(context.Context) error {
		if n := s.Proxy.Open(faultproxy.Watches); n > 0 {
			return fmt.Errorf("%d watches of a process that has ended are open", n)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.launch(0); err != nil {
		return err
	}
	if err := s.working(ctx); err != nil {
		return err
	}
	return s.quiet(ctx, before)
}

// endEarly ends the controller while it waits for its first lists. By then it may not yet listen to
// signals, but it must not take the end for an error.
func endEarly(ctx context.Context, s *scene) error {
	if err := s.end(0); err != nil {
		return err
	}
	lists := faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Verb == "list" || strings.HasPrefix(r.Verb, "watch") }}
	slow, err := s.Proxy.Inject(faultproxy.Rule{Match: lists, Fault: faultproxy.Slow, Delay: 2 * time.Second, Times: -1})
	if err != nil {
		return err
	}
	if err := s.launch(0); err != nil {
		return err
	}
	s.Strikes.Add(1)
	err = s.end(0)
	slow.Remove()
	var f *failure
	if errors.As(err, &f) && f.kind == badEnd && f.code == 128+int(syscall.SIGTERM) {
		err = nil // the signal itself has ended it
	}
	return errors.Join(err, s.launch(0), s.working(ctx))
}

// groups is how many cases the kills before, and after, the writes are shared among.
const groups = 5

// ofGroups is the end of such a case's name, or of an expression that asks for it alone.
var ofGroups = regexp.MustCompile(`, \d+ of (\d+)\$?$`)

// groupsOf is how many cases share what has happened so often in the undisturbed run. A case that is asked for by
// its name, as one that is made smaller or played again, has to be found although there is less to do.
func groupsOf(asked string, happened int) int {
	if found := ofGroups.FindStringSubmatch(asked); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil && n <= groups {
			return n
		}
	}
	return min(groups, happened)
}

// selfCases are those of level 2, of which n kill at some of the writes.
func selfCases(c *Contract, n int) (cases []*Case) {
	for i := range n {
		cases = append(cases,
			&Case{Name: fmt.Sprintf("killed before a write, %d of %d", i+1, n), Level: 2, maybe: true,
				When: "after it was killed before one of its writes", inject: kill(faultproxy.Call, i, n)},
			&Case{Name: fmt.Sprintf("killed after a write, %d of %d", i+1, n), Level: 2, maybe: true,
				When: "after it was killed between one of its writes and the answer", inject: kill(faultproxy.CallAnswered, i, n)})
	}
	if c.removes() {
		cases = append(cases, &Case{Name: "away while people delete", Level: 2, When: "after it was away while people deleted", around: awayAtDeletes})
	}
	return append(cases,
		&Case{Name: "two copies", Level: 2, When: "when two copies run at the same time", Copies: 2,
			inject: func(s *scene) (crash.During, error) { s.Strikes.Add(1); return nil, nil }})
}

// kill kills the controller at every n-th of its writes, and starts it again.
func kill(f faultproxy.Fault, i, n int) injection {
	return func(s *scene) (crash.During, error) {
		var mu sync.Mutex
		count := 0
		return nil, s.rule(faultproxy.Rule{Match: writes, Fault: f, Times: -1, Call: func(_ context.Context, r faultproxy.Request) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Started.Before(s.program(0).started) {
				return errors.New("its sender was killed already")
			}
			count++
			if (count-1)%max(n, 2) != i || s.ctx.Err() != nil || !s.Strike() {
				return nil
			}
			s.kill(0)
			return errors.Join(errors.New("its sender was killed"), s.launch(0))
		}})
	}
}

// awayAtDeletes has the controller miss every deletion.
func awayAtDeletes(_ context.Context, s *scene, step Step, play func() error) error {
	if step.Verb != remove || !s.Strike() {
		return play()
	}
	s.kill(0)
	return errors.Join(play(), s.launch(0))
}

// wireCases are those of level 3. In the undisturbed run, watches of these resources have brought news.
func wireCases(c *Contract, watched []string, ownCluster bool) []*Case {
	cases := []*Case{{Name: "watch cut", Level: 3, When: "after its watches were cut", inject: func(s *scene) (crash.During, error) { return s.CutWatches() }}}
	for _, resource := range watched {
		cases = append(cases, &Case{Name: "half-open watch of " + resource, Level: 3, When: "after its watch of " + resource + " had been dead for some seconds without a word",
			inject: halfOpen(resource)})
	}
	cases = append(cases,
		&Case{Name: "410 Gone", Level: 3, When: "after its watches were answered with 410 Gone", inject: expire},
		&Case{Name: "500", Level: 3, When: "after some requests were answered with 500", inject: answer(http.StatusInternalServerError)},
		&Case{Name: "503", Level: 3, When: "after some requests were answered with 503", inject: answer(http.StatusServiceUnavailable)},
		&Case{Name: "504", Level: 3, When: "after some requests were answered with 504", inject: answer(http.StatusGatewayTimeout)},
		&Case{Name: "each write fails once", Level: 3, When: "after each of its writes had failed once with 500", inject: failOnce},
		&Case{Name: "no answer", Level: 3, When: "after a write had got no answer for some seconds", inject: stall},
		&Case{Name: "answer lost", Level: 3, maybe: true, When: "after the answers to some of its writes were lost", inject: loseAnswers},
		&Case{Name: "slow lists", Level: 3, When: "when its lists took seconds", inject: slowLists},
		&Case{Name: "stale cache", Level: 3, When: "when events came late, so that its cache was older than its own writes", inject: lateEvents})
	if c.removes() {
		cases = append(cases, &Case{Name: "DELETED lost", Level: 3, When: "after a deletion that only a new list could show", inject: loseDeletions(watched)})
	}
	if ownCluster {
		cases = append(cases,
			// A proxy whose server is away answers 502; a server that is away answers nothing.
			&Case{Name: "API server restarted", Level: 3, When: "after a restart of the API server", Alone: true, more: longestPause, inject: restart("kube-apiserver", true)},
			&Case{Name: "etcd restarted", Level: 3, When: "after a restart of etcd", Alone: true, more: longestPause, inject: restart("etcd", false)})
	}
	return cases
}

// rule is for one whose function counts the strikes itself.
func (s *scene) rule(r faultproxy.Rule) error {
	_, err := s.Proxy.Inject(r)
	return err
}

// work are the requests that are no part of a watch.
var work = faultproxy.Match{If: func(r faultproxy.Request) bool { return isWrite(r) || asks(r) && r.Verb == "get" && r.Name != "" }}

// strikes waits until an injection has struck, or the people are done.
func (s *scene) strikes(ctx context.Context, i *faultproxy.Injection) {
	s.until(ctx, func() bool { return i.Struck() > 0 })
}

// until waits for a fault to strike, or until the people are done.
func (s *scene) until(ctx context.Context, struck func() bool) {
	_ = poll.Until(ctx, 50*time.Millisecond, 0, func(context.Context) error {
		if !struck() && !s.done() {
			return errors.New("not yet")
		}
		return nil
	}) // at the end of the scene, too; a fault that has not struck is seen there
}

func (s *scene) done() bool {
	select {
	case <-s.peopleDone:
		return true
	default:
		return false
	}
}

// halfOpen keeps back everything from the next event of a watch on, until the connection
// is reset. Nothing tells the client that it is as good as dead.
func halfOpen(resource string) injection {
	match := faultproxy.Match{Verb: "watch*", Resource: resource}
	return func(s *scene) (crash.During, error) {
		err := s.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Hold, Times: -1})
		length := crash.Between(s.Chance, 2*time.Second, 4*time.Second)
		return func(ctx context.Context) error {
			i := s.Injections[0]
			s.strikes(ctx, i)
			crash.Sleep(ctx, length)
			s.Proxy.Cut(match)
			i.Remove()
			return nil
		}, err
	}
}

// expire answers watches as a server does that has forgotten the version.
func expire(s *scene) (crash.During, error) {
	err := s.Inject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: s.watches + 2})
	// A new watch is needed for that answer.
	return s.NewWatches(crash.Between(s.Chance, 0, time.Second), crash.Between(s.Chance, 0, 2*time.Second)), err
}

// loseDeletions hides every deletion until a new list of its resource shows it, as after a
// watch that was broken for so long that the server has forgotten what happened. What the
// controller makes is listed last: after a list of what people make, it looks at all of that
// again, and so would find by chance what is gone.
func loseDeletions(watched []string) injection {
	return func(s *scene) (crash.During, error) {
		wait := map[string]time.Duration{} // after the last deletion
		for _, track := range s.contract.Scenario {
			for _, step := range track.Steps {
				if kind, err := s.mapping(step.Object.GetAPIVersion(), step.Object.GetKind()); err == nil && step.Verb == apply {
					wait[kind.Resource.Resource] = time.Second
				}
			}
		}
		lost, seen, shown := map[string]*faultproxy.Injection{}, map[string]int{}, map[string]int{}
		of := func(resource string) faultproxy.Match { return faultproxy.Match{Verb: "watch*", Resource: resource} }
		for _, resource := range watched {
			if err := s.Inject(faultproxy.Rule{Match: of(resource), Fault: faultproxy.Drop, Event: "DELETED", Times: -1}); err != nil {
				return nil, err
			}
			lost[resource] = s.Injections[len(s.Injections)-1]
		}
		return func(ctx context.Context) error {
			var last time.Time
			for done, hidden := false, true; ctx.Err() == nil && (!done || hidden); crash.Sleep(ctx, 200*time.Millisecond) {
				done, hidden = s.done(), false // before the look, so that there is one afterwards
				for _, resource := range watched {
					struck := lost[resource].Struck()
					if struck > seen[resource] {
						seen[resource], last = struck, time.Now()
					}
					if struck == shown[resource] {
						continue
					}
					hidden = true
					if time.Since(last) < cmp.Or(wait[resource], 3*time.Second) {
						continue
					}
					shown[resource] = struck
					if err := s.Inject(faultproxy.Rule{Match: of(resource), Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: max(1, s.Proxy.Open(of(resource)))}); err != nil {
						return err
					}
					s.Proxy.Cut(of(resource))
				}
			}
			for _, i := range lost {
				i.Remove()
			}
			return nil
		}, nil
	}
}

func answer(code int) injection {
	return func(s *scene) (crash.During, error) { return s.Answer(work, code) }
}

// failOnce lets each write fail, and pass the next time.
func failOnce(s *scene) (crash.During, error) {
	var mu sync.Mutex
	tries, fails := map[string]int{}, map[int]bool{} // by what it does, and by its number
	match := faultproxy.Match{If: func(r faultproxy.Request) bool {
		if !isWrite(r) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if fail, known := fails[r.ID]; known {
			return fail
		}
		what := r.Verb + " " + r.Path
		if o := sent(r); r.Name == "" && o != nil {
			what += " " + o.GetName()
		}
		tries[what]++
		fails[r.ID] = tries[what]%2 == 1
		return fails[r.ID]
	}}
	return nil, s.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
}

// stall keeps two writes for some seconds.
func stall(s *scene) (crash.During, error) {
	err := s.Inject(faultproxy.Rule{Match: writes, Fault: faultproxy.Stall, After: s.Chance.IntN(3), Times: 2})
	return func(ctx context.Context) error {
		s.strikes(ctx, s.Injections[0])
		crash.Sleep(ctx, 4*time.Second)
		s.Injections[0].Remove()
		return nil
	}, err
}

func loseAnswers(s *scene) (crash.During, error) { return nil, s.LoseAnswers(writes) }

// slowLists makes the controller list again, and wait for it.
func slowLists(s *scene) (crash.During, error) {
	lists := faultproxy.Match{If: func(r faultproxy.Request) bool {
		// A watch without a version begins with what there is, so it is the list of whoever lists nothing.
		return r.Verb == "list" || r.Verb == "watch-list" || r.Verb == "watch" && !strings.Contains(r.Query, "resourceVersion=")
	}}
	err := s.Inject(faultproxy.Rule{Match: lists, Fault: faultproxy.Slow, Delay: crash.Between(s.Chance, time.Second, 3*time.Second), Times: 2 * s.watches})
	if err == nil { // not counted: that a list was slow is what counts
		err = s.rule(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: s.watches})
	}
	wait := crash.Between(s.Chance, 0, time.Second)
	return func(ctx context.Context) error {
		crash.Sleep(ctx, wait)
		s.Proxy.Cut(faultproxy.Watches)
		return nil
	}, err
}

func lateEvents(s *scene) (crash.During, error) {
	return nil, s.Inject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Delay, Delay: crash.Between(s.Chance, 150*time.Millisecond, 400*time.Millisecond), Times: 25})
}

// restart kills a component while people are busy, and starts it again. If hidden, nobody answers meanwhile.
func restart(component string, hidden bool) injection {
	return func(s *scene) (crash.During, error) {
		before, away := crash.Between(s.Chance, 0, time.Second), crash.Between(s.Chance, 0, 2*time.Second)
		return func(ctx context.Context) error {
			crash.Sleep(ctx, before)
			if err := s.cluster.Kill(ctx, component); err != nil {
				return err
			}
			s.away.Store(true)
			defer time.AfterFunc(3*time.Second, func() { s.away.Store(false) }) // who has missed it notices that late
			if hidden {
				s.Proxy.Down()
			}
			s.Strikes.Add(1)
			crash.Sleep(ctx, away)
			// Other cases need the cluster, whatever has become of this one.
			if err := s.revive(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			if hidden {
				return s.Proxy.Up()
			}
			return nil
		}, nil
	}
}

// revive starts whatever has ended, and renews what that has confused.
func (l *lab) revive(ctx context.Context) error {
	if err := crash.Revive(ctx, l.cluster); err != nil {
		return err
	}
	return crash.Renew(ctx, l.cluster, l.core)
}
