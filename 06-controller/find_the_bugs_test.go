package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The bugs of find-the-bugs, in the order of its file. A check looks at what a
// program does to the cluster, so it knows nothing about how a bug was repaired.
var bugs = []struct {
	name  string
	check func(s *suspect) error
	says  string // what the check finds in a program with this bug
}{
	{"a tombstone ends it", survivesATombstone, "panic"},
	{"it does not watch what it depends on", replacesADeployment, "nobody has replaced"},
	{"it does not stop", stops, "still runs"},
	{"it repeats a failure at once", backsOff, "tries"},
	{"it changes what is in the cache", leavesTheCacheAlone, "panic: cache"},
	{"it writes when nothing has changed", writesOnlyChanges, "writes of Deployments"},
	{"it writes the status to the wrong place", reports, "status"},
	{"it acts on stale data", createsOne, "Deployments"},
}

// What a repair can break, or leave out. A program with one of the eight bugs need not pass
// these, so none of them ends the test.
var slips = []struct {
	name     string // of the mistake; empty if it has none
	expected string
	check    func(s *suspect) error
}{
	{"a missed deletion is ignored", "a new Deployment, because the old one was deleted while the watch was interrupted", replacesAMissedDeployment},
	{"a failure is forgotten", "a further try after a create that the API server has answered with 500", triesAgain},
	{"replicas are not followed", "as many replicas of the Deployment as its Icecream says now", followsReplicas},
	{"work is cut off", "the create that was under way at SIGTERM is finished, and then exit code 0", finishes},
	{"", "the availableReplicas of the Deployment in the status of its Icecream", followsTheDeployment},
}

// bugsOfTheSolution put the bugs back.
var bugsOfTheSolution = controllertest.Guards{Program: "./06-controller/find-the-bugs/solution", Without: "without.go", Changes: map[string][]testenv.ProgramOption{
	"a tombstone ends it": {testenv.Replace("main.go", "			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {", `			if without("a tombstone ends it") {
				_ = obj.(*v1alpha1.Icecream)
			}
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {`)},
	"it does not watch what it depends on": {testenv.Replace("main.go", "if _, err := deployments.AddEventHandler(", `if without("it does not watch what it depends on") {
	} else if _, err := deployments.AddEventHandler(`)},
	"it does not stop": {testenv.Replace("main.go", "	c.queue.ShutDown()\n", `	if !without("it does not stop") {
		c.queue.ShutDown()
	}
`)},
	"it repeats a failure at once": {testenv.Replace("main.go", "		c.queue.AddRateLimited(key)\n", `		if without("it repeats a failure at once") {
			c.queue.Add(key)
		} else {
			c.queue.AddRateLimited(key)
		}
`)},
	"it changes what is in the cache": {testenv.Replace("main.go", "	ice := cached.DeepCopy()\n", `	ice := cached
	if !without("it changes what is in the cache") {
		ice = cached.DeepCopy()
	}
`)},
	"it writes when nothing has changed": {testenv.Replace("main.go", "if *d.Spec.Replicas != *ice.Spec.Replicas {", `if *d.Spec.Replicas != *ice.Spec.Replicas || without("it writes when nothing has changed") {`)},
	"it writes the status to the wrong place": {testenv.Replace("main.go", "	if _, err = c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).UpdateStatus(ctx,",
		`	write := c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).UpdateStatus
	if without("it writes the status to the wrong place") {
		write = c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).Update
	}
	if _, err = write(ctx,`)},
	"it acts on stale data": {testenv.Replace("main.go", "Name:            ice.Spec.DeploymentName,", `Name: map[bool]string{false: ice.Spec.DeploymentName}[without("it acts on stale data")],
			GenerateName: map[bool]string{true: ice.Spec.DeploymentName + "-"}[without("it acts on stale data")],`)},
}}

func TestFindTheBugs(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		finds(t, e, e.Program("./06-controller/find-the-bugs"), "", func(string) bool { return true })
	})
	t.Run("solution", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		finds(t, e, e.Program("./06-controller/find-the-bugs/solution"), "", func(string) bool { return false })
	})
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			finds(t, e, bugsOfTheSolution.Build(t, e, bug.name), bug.name, func(name string) bool { return name == bug.name })
		})
	}
}

// finds checks a program for all bugs, and expects to find some of them.
func finds(t *testing.T, e *testenv.Env, program, has string, wanted func(bug string) bool) {
	t.Helper()
	for _, bug := range bugs {
		err := bug.check(examine(t, e, program, has))
		switch {
		case err == nil && wanted(bug.name):
			t.Errorf("not found: %s", bug.name)
		case err != nil && !wanted(bug.name):
			t.Errorf("found by mistake: %s: %v", bug.name, err)
		case err != nil && !strings.Contains(err.Error(), bug.says):
			t.Errorf("found for another reason: %s: %v, want %q", bug.name, err, bug.says)
		}
	}
}

// A suspect is a program that one check looks at.
type suspect struct{ *icecreamTest }

func examine(t *testing.T, e *testenv.Env, program, bug string) *suspect {
	t.Helper()
	s := &suspect{icecreamTestOf(t, e, program)}
	s.Command.Env = []string{"KUBE_CACHE_MUTATION_DETECTOR=false", controllertest.WithoutEnv + "=" + bug}
	// What the last check has left goes at once: watches expects an empty namespace.
	if err := errors.Join(s.icecreams.DeleteCollection(e.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		s.deployments.DeleteCollection(e.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})); err != nil {
		t.Fatal(err)
	}
	return s
}

// watches starts the program, which has no health, and waits until it watches.
func (s *suspect) watches(args ...string) {
	s.T.Helper()
	s.Command.Args = append(s.Command.Args, args...)
	s.Process = s.Runner.Start(s.Command)
	s.Eventually(30*time.Second, func(ctx context.Context) error {
		icecreams, err := s.icecreams.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		deployments, err := s.deployments.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for resource, objects := range map[string]int{"icecreams": len(icecreams.Items), "deployments": len(deployments.Items)} {
			// An event for each object of the initial state, and a bookmark after them.
			watches := s.requests("watch*", resource)
			if len(watches) == 0 || watches[0].Events <= objects {
				return fmt.Errorf("the program has not seen the %d %s that are there", objects, resource)
			}
		}
		return nil
	})
}

// owned waits until the Icecream has a Deployment that is none of the others.
func (s *suspect) owned(ice *v1alpha1.Icecream, within time.Duration, others ...appsv1.Deployment) error {
	var last error
	_ = s.Hold(within, func() error {
		if last = s.Crash(); last != nil {
			return last
		}
		last = fmt.Errorf("%s has no Deployment", ice.Name)
		for _, d := range s.all(ice) {
			if !slices.ContainsFunc(others, func(other appsv1.Deployment) bool { return other.UID == d.UID }) {
				last = nil
				return errors.New("found")
			}
		}
		return nil
	})
	return last
}

// soon is for what a program without the bug does at once, and what nothing shows that
// one with the bug will not do. On a slow machine it is still enough for the first.
const soon = 10 * time.Second

// long is for what every program does.
const long = time.Minute

// caughtUp waits until the program has looked at all that has happened, or has ended.
func (s *suspect) caughtUp() error {
	s.T.Helper()
	return s.lookedAt(s.Crash)
}

func survivesATombstone(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("melting", "melting-cone", 0)
	if err := s.owned(ice, long); err != nil {
		return err
	}
	if err := s.misses("icecreams", func() error { return s.icecreams.Delete(s.Context(), ice.Name, metav1.DeleteOptions{}) }); err != nil {
		return err
	}
	ice = s.create("next", "next-cone", 0)
	return s.owned(ice, long)
}

// misses lets something happen, and history go by, while the program cannot watch a resource.
func (s *suspect) misses(resource string, happens func() error) error {
	s.T.Helper()
	gone := s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: resource},
		Fault: faultproxy.ErrorEvent, Code: http.StatusGone})
	again := s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list", Resource: resource}, Fault: faultproxy.Stall, Times: -1})
	defer again.Remove()
	s.Proxy.Cut(faultproxy.Match{Verb: "watch*", Resource: resource})
	s.Struck(gone, 1)
	return happens()
}

func replacesAMissedDeployment(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("missed", "missed-cone", 0)
	if err := s.owned(ice, long); err != nil {
		return err
	}
	deleted := s.all(ice)
	if err := s.misses("deployments", func() error { return s.deleteAll(deleted) }); err != nil {
		return err
	}
	return s.owned(ice, 3*soon, deleted...)
}

func (s *suspect) deleteAll(deployments []appsv1.Deployment) error {
	for _, d := range deployments {
		if err := s.deployments.Delete(s.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func replacesADeployment(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("replaced", "replaced-cone", 0)
	if err := s.owned(ice, long); err != nil {
		return err
	}
	// What it still has to do must not bring it back by chance.
	if err := s.caughtUp(); err != nil {
		return err
	}
	deleted := s.all(ice)
	if err := s.deleteAll(deleted); err != nil {
		return err
	}
	if err := errors.Join(s.caughtUp(), s.owned(ice, soon, deleted...)); err != nil {
		return fmt.Errorf("nobody has replaced the Deployment that was deleted: %w", err)
	}
	return nil
}

func stops(s *suspect) error {
	s.watches()
	defer s.Kill()
	if err := s.owned(s.create("working", "working-cone", 0), long); err != nil {
		return err
	}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.Process.Done():
	case <-time.After(soon):
		return fmt.Errorf("it still runs %s after SIGTERM", soon)
	}
	if r := s.Process.Wait(); r.ExitCode != 0 {
		return fmt.Errorf("exit code %d after SIGTERM", r.ExitCode)
	}
	return nil
}

func backsOff(s *suspect) error {
	s.watches()
	defer s.Kill()
	s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	s.create("refused", "refused", 0)
	// 5 ms, doubled with each failure, are 1,275 ms between nine tries. Only the time from
	// an answer to the next try counts, which a slow machine can but make longer.
	const tries = 9
	var waited time.Duration
	_ = s.Hold(2*soon, func() error { // one that has not tried so often by then backs off
		waited = 2 * soon
		if all := s.requests("create", "deployments"); len(all) >= tries {
			waited = 0
			for i := range tries - 1 {
				waited += all[i+1].Started.Sub(all[i].Started.Add(all[i].Took))
			}
			return errors.New("enough")
		}
		return s.Crash()
	})
	if waited < time.Second {
		return fmt.Errorf("%d tries to create the same Deployment, with only %s between them", tries, waited.Round(time.Millisecond))
	}
	return s.Crash()
}

func triesAgain(s *suspect) error {
	s.watches()
	defer s.Kill()
	s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusInternalServerError})
	return s.owned(s.create("refused", "refused-cone", 0), long)
}

// holds waits until right returns nil, and returns its last error.
func (s *suspect) holds(within time.Duration, right func() error) (last error) {
	_ = s.Hold(within, func() error {
		if last = errors.Join(s.Crash(), right()); last == nil {
			return errors.New("right")
		}
		return s.Crash()
	})
	return last
}

func followsReplicas(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("growing", "growing-cone", 0)
	if err := s.owned(ice, long); err != nil {
		return err
	}
	s.patch(ice.Name, `{"spec":{"replicas":1}}`)
	return s.holds(3*soon, func() error {
		for _, d := range s.all(ice) {
			if *d.Spec.Replicas != 1 {
				return fmt.Errorf("an Icecream was changed from 0 replicas to 1, and its Deployment has %d", *d.Spec.Replicas)
			}
		}
		return nil
	})
}

// followsTheDeployment waits for a pod, which no request of the program reports.
func followsTheDeployment(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("available", "available-cone", 1)
	if err := s.owned(ice, long); err != nil {
		return err
	}
	if err := s.holds(long, func() error {
		for _, d := range s.all(ice) {
			if d.Status.AvailableReplicas != 1 {
				return fmt.Errorf("the Deployment %s has %d available replicas", d.Name, d.Status.AvailableReplicas)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return s.holds(3*soon, func() error {
		now, err := s.icecreams.Get(s.Context(), ice.Name, metav1.GetOptions{})
		if err == nil && ptr.Deref(now.Status.AvailableReplicas, 0) != 1 {
			err = fmt.Errorf("the Deployment has 1, and the status of the Icecream is %s", asJSON(now.Status))
		}
		return err
	})
}

// finishes tells the program to stop while it creates a Deployment.
func finishes(s *suspect) error {
	s.watches()
	defer s.Kill()
	asked := s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Call, Call: s.Process.TerminateDuring})
	ice := s.create("last", "last-cone", 0)
	select {
	case <-s.Process.Done():
	case <-time.After(long):
		return fmt.Errorf("it still runs, after %d creates", asked.Struck())
	}
	if code := s.Process.ExitCode(); len(s.all(ice)) == 0 || code != 0 {
		return fmt.Errorf("%d Deployments of the Icecream last, and exit code %d", len(s.all(ice)), code)
	}
	return nil
}

func leavesTheCacheAlone(s *suspect) error {
	s.Command.Env = append(s.Command.Env, "KUBE_CACHE_MUTATION_DETECTOR=true")
	s.watches()
	defer s.Kill()
	ice := s.create("shared", "shared-cone", 1)
	if err := s.owned(ice, long); err != nil && s.Crash() == nil {
		return err
	}
	if s.Crash() == nil {
		s.patch(ice.Name, `{"spec":{"replicas":0}}`)
		_ = s.caughtUp() // if it has ended, the next line says so
	}
	// The detector compares once a second, by the program's own clock, and says nothing
	// when all is well.
	if err := s.Hold(5*time.Second, s.Crash); err != nil {
		return fmt.Errorf("the mutation detector has ended it: %w", err)
	}
	return nil
}

func writesOnlyChanges(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("settled", "settled-cone", 0)
	if err := errors.Join(s.owned(ice, long), s.caughtUp()); err != nil {
		return err
	}
	writes := func() int { return len(s.requests("update", "deployments")) + len(s.requests("patch", "deployments")) }
	before := writes()
	s.patch(ice.Name, `{"metadata":{"annotations":{"look":"again"}}}`) // as a resync does
	if err := s.caughtUp(); err != nil {
		return err
	}
	if n := writes() - before; n > 0 {
		return fmt.Errorf("%d writes of Deployments that were right already", n)
	}
	return nil
}

func reports(s *suspect) error {
	s.watches()
	defer s.Kill()
	ice := s.create("reported", "reported-cone", 1)
	if err := errors.Join(s.owned(ice, long), s.caughtUp()); err != nil {
		return err
	}
	ice, err := s.icecreams.Get(s.Context(), ice.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if ice.Status.ObservedGeneration != ice.Generation {
		return fmt.Errorf("when all has been written, the status is %+v", ice.Status)
	}
	return nil
}

func createsOne(s *suspect) error {
	s.watches()
	defer s.Kill()
	behind := s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	s.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Lose})
	ice := s.create("single", "single-cone", 0)
	s.Struck(behind, 1)
	for look := range 3 {
		s.patch(ice.Name, fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, look))
	}
	if err := s.caughtUp(); err != nil {
		return err
	}
	if n := len(s.all(ice)); n != 1 {
		return fmt.Errorf("%d Deployments of one Icecream", n)
	}
	return nil
}
