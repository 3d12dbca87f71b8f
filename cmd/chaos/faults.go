package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// A fault is something to go wrong in a scene.
type fault struct {
	name   string
	order  int // in the table
	detail string
	baited bool // the bait begins unspared, see policies.go
	write  int  // a kill strikes this write of the scene, counted from 1

	// inject is called, by the subject's name, when the controller works and
	// nothing has happened yet. What it returns runs while the people are busy.
	inject map[string]injection
}

type injection func(s *scene) (during func(ctx context.Context) error, err error)

func (f *fault) title() string { return f.name + f.detail }

// both is for a fault that is the same for both controllers.
func both(i injection) map[string]injection {
	return map[string]injection{healthCheckPolicy.name: i, icecream.name: i}
}

// each is for one that is not; nil if it cannot happen to one of them.
func each(policies, icecreams injection) map[string]injection {
	return map[string]injection{healthCheckPolicy.name: policies, icecream.name: icecreams}
}

// hook calls f before requests are forwarded. It strikes if f returns true.
func (s *scene) hook(match faultproxy.Match, after, times int, f func(ctx context.Context, r faultproxy.Request) bool) error {
	_, err := s.Proxy.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Call, After: after, Times: times,
		Call: func(_ context.Context, r faultproxy.Request) error {
			if f(s.ctx, r) { // and not that of the request: what it has begun is not left half done
				s.Strikes.Add(1)
			}
			return nil
		}})
	return err
}

// requestsOfWork are what the workers send; what informers send is not among them.
var requestsOfWork = faultproxy.Match{If: func(r faultproxy.Request) bool {
	return r.Resource != "events" && (r.Write() || r.Verb == "get" || r.Resource == "pods/eviction")
}}

var undisturbedRun = &fault{name: "undisturbed"}

var clockJump = &fault{name: "clock jumps", inject: each(jumpClock, nil)} // icecream compares no times

// faults are those that strike one scene, and leave the others alone.
var faults = numbered(
	&fault{name: "watch cut", inject: both(func(s *scene) (func(context.Context) error, error) { return s.CutWatches() })},
	&fault{name: "half-open watch", baited: true, inject: each(halfOpenPods, halfOpenAny)},
	&fault{name: "410 Expired", inject: both(expire)},
	&fault{name: "409 storm of a rival", inject: both(storm)},
	&fault{name: "429 with Retry-After", inject: both(tooMany)},
	&fault{name: "500", inject: both(answer(http.StatusInternalServerError))},
	&fault{name: "503", inject: both(answer(http.StatusServiceUnavailable))},
	&fault{name: "answer lost after commit", inject: both(loseAnswers)},
	&fault{name: "slow server", inject: both(slow)},
	&fault{name: "made again under its name", baited: true, inject: each(replacePods, replaceIcecreams)},
	&fault{name: "label A to B to A", inject: each(toggleLabels, toggleReplicas)},
	&fault{name: "label A to B before the status", baited: true, inject: each(spareBait, nil)},
	clockJump,
)

func numbered(all ...*fault) []*fault {
	for i, f := range all {
		f.order = i + 1
	}
	return all
}

// halfOpenPods lets the controller go on with a picture of the pods in which the
// bait is not spared.
func halfOpenPods(s *scene) (func(context.Context) error, error) {
	match := faultproxy.Match{Verb: "watch*", Resource: "pods"}
	during, err := s.hold(match)
	if err != nil {
		return nil, err
	}
	return during, s.label(context.Background(), bait, keep, "yes")
}

func halfOpenAny(s *scene) (func(context.Context) error, error) {
	return s.hold(faultproxy.Match{Verb: "watch*", Resource: []string{"icecreams", "deployments", "pods"}[s.Chance.IntN(3)]})
}

// hold keeps back everything from the next event of a watch on, until the
// connection is reset. Nothing tells the client that it is as good as dead.
func (s *scene) hold(match faultproxy.Match) (func(context.Context) error, error) {
	i, err := s.Proxy.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Hold, Times: -1})
	if err != nil {
		return nil, err
	}
	s.Injections = append(s.Injections, i)
	length := crash.Between(s.Chance, 2*time.Second, 5*time.Second)
	return func(ctx context.Context) error {
		// It lasts from the first event that was kept back.
		if err := poll.Until(ctx, 50*time.Millisecond, time.Minute, func(context.Context) error {
			if i.Struck() == 0 {
				return errors.New("no event was kept back")
			}
			return nil
		}); err != nil {
			return err
		}
		crash.Sleep(ctx, length)
		s.Proxy.Cut(match)
		i.Remove()
		return nil
	}, nil
}

// expire answers watches as a server does that has forgotten the version.
func expire(s *scene) (func(context.Context) error, error) {
	err := s.Inject(
		faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: 3},
		// Only one that goes on from a version: a rewound watch-list could never end its list. A cluster
		// as young as this one may send the old events again instead of 410, which is harder still.
		faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.Rewind, After: 3, Times: 2})
	// A new watch is needed for that answer.
	return s.NewWatches(crash.Between(s.Chance, 0, time.Second), crash.Between(s.Chance, 0, 2*time.Second)), err
}

// storm has a rival write each object just before the controller does.
func storm(s *scene) (func(context.Context) error, error) {
	n := 0
	err := s.hook(writes, s.Chance.IntN(2), 8, func(ctx context.Context, r faultproxy.Request) bool {
		s.mu.Lock()
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, rival, n)
		s.mu.Unlock()
		options := metav1.PatchOptions{FieldManager: "rival"}
		var err error
		switch resource, _, _ := strings.Cut(r.Resource, "/"); {
		case resource == "healthcheckpolicies":
			_, err = s.objects.PolicyV1alpha1().HealthCheckPolicies(s.ns).Patch(ctx, r.Name, types.MergePatchType, patch, options)
		case resource == "icecreams":
			_, err = s.objects.IcecreamV1alpha1().Icecreams(s.ns).Patch(ctx, r.Name, types.MergePatchType, patch, options)
		case resource == "deployments" && r.Name != "":
			_, err = s.client.AppsV1().Deployments(s.ns).Patch(ctx, r.Name, types.MergePatchType, patch, options)
		case resource == "pods":
			_, err = s.client.CoreV1().Pods(s.ns).Patch(ctx, r.Name, types.MergePatchType, patch, options)
		default:
			return false
		}
		return err == nil
	})
	s.checks = append(s.checks, func() error {
		if len(s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Code == http.StatusConflict }})) == 0 {
			return errors.New("the rival has caused no 409")
		}
		return nil
	})
	return nil, err
}

func tooMany(s *scene) (func(context.Context) error, error) {
	s.checks = append(s.checks, func() error {
		all := s.requests(requestsOfWork)
		for i, struck := range all {
			if !slices.Contains(struck.Faults, faultproxy.Answer) || struck.Name == "" {
				continue // one that creates does not say in its path what it is about
			}
			end := struck.Started.Add(struck.Took + crash.RetryAfter)
			for _, r := range all[i+1:] {
				if r.Verb == struck.Verb && r.Path == struck.Path && r.Query == struck.Query && r.Started.Before(end) {
					return fmt.Errorf("%s was told to wait %s, and came again %s before that ended", struck, crash.RetryAfter, end.Sub(r.Started))
				}
			}
		}
		return nil
	})
	return nil, s.TooMany(requestsOfWork)
}

func answer(code int) injection {
	return func(s *scene) (func(context.Context) error, error) { return s.Answer(requestsOfWork, code) }
}

func loseAnswers(s *scene) (func(context.Context) error, error) { return nil, s.LoseAnswers(writes) }

func slow(s *scene) (func(context.Context) error, error) {
	return nil, s.Inject(
		faultproxy.Rule{Match: requestsOfWork, Fault: faultproxy.Slow, Delay: crash.Between(s.Chance, 50*time.Millisecond, 400*time.Millisecond), Times: -1},
		faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Delay, Delay: crash.Between(s.Chance, 50*time.Millisecond, 300*time.Millisecond), Times: 25},
		// One eviction takes longer than the time between two.
		faultproxy.Rule{Match: faultproxy.Match{Resource: "pods/eviction", If: faultproxy.Request.Write}, Fault: faultproxy.Slow,
			Delay: crash.Between(s.Chance, 2*time.Second, 3*time.Second), After: s.Chance.IntN(2)})
}

// replacePods exchanges the bait for a pod that is spared, just before its
// eviction, and hides from the controller that another pod was deleted before it
// was made again.
func replacePods(s *scene) (func(context.Context) error, error) {
	_, replaced, _ := s.roles()
	err := s.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "pods"}, Fault: faultproxy.Drop, Event: "DELETED", Object: replaced})
	return nil, errors.Join(err, s.hook(faultproxy.Match{Resource: "pods/eviction", Name: bait, If: faultproxy.Request.Write}, 0, 1,
		func(ctx context.Context, _ faultproxy.Request) bool {
			old, err := s.client.CoreV1().Pods(s.ns).Get(ctx, bait, metav1.GetOptions{})
			if err != nil {
				return false
			}
			again := pod(bait, "kill", false)
			again.OwnerReferences = old.OwnerReferences
			again.Labels[keep] = "yes"
			return s.replace(ctx, again) == nil
		}))
}

func replaceIcecreams(s *scene) (func(context.Context) error, error) {
	err := s.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Drop, Event: "DELETED", Object: "again"})
	return nil, errors.Join(err, s.hook(faultproxy.Match{Verb: "create", Resource: "deployments"}, 0, 4, func(ctx context.Context, _ faultproxy.Request) bool {
		if _, err := s.objects.IcecreamV1alpha1().Icecreams(s.ns).Get(ctx, "again", metav1.GetOptions{}); err != nil {
			return false // not made yet
		}
		return s.replaceIcecream(ctx, "again") == nil
	}))
}

// toggleLabels changes a pod and changes it back between the controller's look
// at it and its request about it.
func toggleLabels(s *scene) (func(context.Context) error, error) {
	toggle := func(key, value, back string) func(context.Context, faultproxy.Request) bool {
		return func(ctx context.Context, r faultproxy.Request) bool {
			return s.label(ctx, r.Name, key, value) == nil && s.label(ctx, r.Name, key, back) == nil
		}
	}
	moves, _, _ := s.roles()
	return nil, errors.Join(
		s.hook(faultproxy.Match{Resource: "pods/eviction", Name: victims(s)[s.Chance.IntN(len(victims(s)))], If: faultproxy.Request.Write}, 0, 2, toggle(keep, "yes", "")),
		s.hook(faultproxy.Match{Verb: "patch", Resource: "pods", If: func(r faultproxy.Request) bool { return r.Name != moves }}, s.Chance.IntN(4), 3, toggle("app", "other", "mark")))
}

func toggleReplicas(s *scene) (func(context.Context) error, error) {
	return nil, s.hook(faultproxy.Match{Verb: "update", Resource: "icecreams/status", Name: "scaled"}, s.Chance.IntN(2), 3, func(ctx context.Context, _ faultproxy.Request) bool {
		d, err := s.client.AppsV1().Deployments(s.ns).Get(ctx, "scaled", metav1.GetOptions{})
		return err == nil && s.drift(ctx, "scaled", 5) == nil && s.drift(ctx, "scaled", int(*d.Spec.Replicas)) == nil
	})
}

// spareBait spares the bait when the controller has judged it, and is about to
// write that it will evict it.
func spareBait(s *scene) (func(context.Context) error, error) {
	return nil, s.hook(faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies/status", Name: "kill"}, 0, 1, func(ctx context.Context, _ faultproxy.Request) bool {
		return s.label(ctx, bait, keep, "yes") == nil
	})
}

// jumpClock sets the clock of the controller back, then forward, then right.
func jumpClock(s *scene) (func(context.Context) error, error) {
	set := func(offset string) error {
		next := s.clock() + ".next"
		return errors.Join(os.WriteFile(next, []byte(offset), 0o644), os.Rename(next, s.clock()))
	}
	s.early = 1 // by the clock that was set forward, the time is over
	offsets, waits := []string{"3h", "-2h", "1h", "0s"}, make([]time.Duration, 4)
	for i := range waits {
		waits[i] = crash.Between(s.Chance, 500*time.Millisecond, 4*time.Second)
	}
	err := set(offsets[0])
	return func(ctx context.Context) error {
		for i := range offsets[1:] {
			crash.Sleep(ctx, waits[i])
			if err := set(offsets[i+1]); err != nil {
				return err
			}
		}
		return nil
	}, err
}

// kills returns two faults for each write of an undisturbed run: the controller
// is killed before it reaches the server, or after it was carried out and before
// the answer. After that it is started again.
func kills(written []faultproxy.Request) []*fault {
	var all []*fault
	for i, r := range written {
		write := i + 1
		detail := fmt.Sprintf(" %d, %s %s", write, r.Verb, r.Resource)
		rule := func(f faultproxy.Fault) injection {
			return func(s *scene) (func(context.Context) error, error) {
				// The new process outlives the request, and ends with the scene.
				return nil, s.Inject(faultproxy.Rule{Match: writes, Fault: f, After: write - 1, Call: func(context.Context, faultproxy.Request) error {
					return errors.Join(errors.New("its sender was killed"), s.crash(s.ctx))
				}})
			}
		}
		all = append(all,
			&fault{name: "killed before write", order: 50, detail: detail, write: write, inject: both(rule(faultproxy.Call))},
			&fault{name: "killed after write", order: 51, detail: detail, write: write, inject: both(rule(faultproxy.CallAnswered))})
	}
	return all
}

// A restart is a fault that strikes everything in the cluster.
type restart struct {
	name    string
	order   int
	restart func(ctx context.Context, l *lab, chance *rand.Rand, proxies []*faultproxy.Proxy) error
}

func (r restart) fault() *fault { return &fault{name: r.name, order: r.order} }

var restarts = []restart{
	// A proxy whose server is away answers 502; a server that is away answers nothing.
	{"API server restarted", 60, func(ctx context.Context, l *lab, chance *rand.Rand, proxies []*faultproxy.Proxy) error {
		return l.restart(ctx, chance, "kube-apiserver", proxies...)
	}},
	{"etcd restarted", 61, func(ctx context.Context, l *lab, chance *rand.Rand, _ []*faultproxy.Proxy) error {
		return l.restart(ctx, chance, "etcd")
	}},
}

// restart kills a component while everybody is busy, and starts it again. Meanwhile
// nobody answers at the given proxies.
func (l *lab) restart(ctx context.Context, chance *rand.Rand, component string, proxies ...*faultproxy.Proxy) error {
	crash.Sleep(ctx, crash.Between(chance, 0, 2*time.Second))
	if err := l.cluster.Kill(ctx, component); err != nil {
		return err
	}
	for _, p := range proxies {
		p.Down()
	}
	crash.Sleep(ctx, crash.Between(chance, 0, 2*time.Second))
	if err := crash.Revive(ctx, l.cluster); err != nil {
		return err
	}
	if err := poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		_, err := l.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}); err != nil {
		return err
	}
	for _, p := range proxies {
		if err := p.Up(); err != nil {
			return fmt.Errorf("opening a proxy again: %w", err)
		}
	}
	return crash.Renew(ctx, l.cluster, l.client)
}

// A blow strikes several scenes at once, when all of them are at work.
type blow struct {
	scenes   int
	arrivals chan *faultproxy.Proxy // of a scene that is at work, or nil from one that has ended
	done     chan struct{}
	err      error
}

func newBlow(scenes int) *blow {
	return &blow{scenes: scenes, arrivals: make(chan *faultproxy.Proxy, 2*scenes), done: make(chan struct{})}
}

// ready says that a scene is at work, left that it has ended, maybe early.
func (b *blow) ready(p *faultproxy.Proxy) { b.arrivals <- p }
func (b *blow) left()                     { b.arrivals <- nil }

func (b *blow) strike(ctx context.Context, f func(proxies []*faultproxy.Proxy) error) {
	defer close(b.done)
	var proxies []*faultproxy.Proxy
	for range b.scenes {
		select {
		case p := <-b.arrivals:
			if p != nil {
				proxies = append(proxies, p)
			}
		case <-ctx.Done():
			b.err = ctx.Err()
			return
		}
	}
	b.err = f(proxies)
}

// wait returns how often the blow has struck.
func (b *blow) wait(ctx context.Context) (int, error) {
	select {
	case <-b.done:
		if b.err != nil {
			return 0, fmt.Errorf("restarting a component: %w", b.err)
		}
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
