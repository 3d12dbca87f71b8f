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

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
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
	{"it repeats a failure at once", isPatient, "tries"},
	{"it changes what is in the cache", leavesTheCacheAlone, "panic: cache"},
	{"it writes when nothing has changed", writesOnlyChanges, "writes of Deployments"},
	{"it writes the status to the wrong place", reports, "status"},
	{"it acts on stale data", createsOne, "Deployments"},
}

// withABug builds the solution so that the environment variable BUG names a bug
// that it then has again. It is built once for all bugs.
var withABug = []testenv.ProgramOption{
	testenv.AddFile("bug.go", `package main

import "os"

func has(bug string) bool { return os.Getenv("BUG") == bug }
`),
	testenv.Replace("main.go", "			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {", `			if has("a tombstone ends it") {
				_ = obj.(*v1alpha1.Icecream)
			}
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {`),
	testenv.Replace("main.go", "if _, err := deployments.AddEventHandler(", `if has("it does not watch what it depends on") {
	} else if _, err := deployments.AddEventHandler(`),
	testenv.Replace("main.go", "	c.queue.ShutDown()\n", `	if !has("it does not stop") {
		c.queue.ShutDown()
	}
`),
	testenv.Replace("main.go", "		c.queue.AddRateLimited(key)\n", `		if has("it repeats a failure at once") {
			c.queue.Add(key)
		} else {
			c.queue.AddRateLimited(key)
		}
`),
	testenv.Replace("main.go", "	ice := cached.DeepCopy()\n", `	ice := cached
	if !has("it changes what is in the cache") {
		ice = cached.DeepCopy()
	}
`),
	testenv.Replace("main.go", "if *d.Spec.Replicas != *ice.Spec.Replicas {", `if *d.Spec.Replicas != *ice.Spec.Replicas || has("it writes when nothing has changed") {`),
	testenv.Replace("main.go", "	if _, err = c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).UpdateStatus(ctx,",
		`	write := c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).UpdateStatus
	if has("it writes the status to the wrong place") {
		write = c.sweets.IcecreamV1alpha1().Icecreams(key.Namespace).Update
	}
	if _, err = write(ctx,`),
	testenv.Replace("main.go", "Name:            ice.Spec.DeploymentName,", `Name: map[bool]string{false: ice.Spec.DeploymentName}[has("it acts on stale data")],
			GenerateName: map[bool]string{true: ice.Spec.DeploymentName + "-"}[has("it acts on stale data")],`),
}

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
			finds(t, e, e.Program("./06-controller/find-the-bugs/solution", withABug...), bug.name, func(name string) bool { return name == bug.name })
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
type suspect struct {
	*parlour
	bug string // that it is to have
}

func examine(t *testing.T, e *testenv.Env, program, bug string) *suspect {
	t.Helper()
	s := &suspect{newParlour(t, e, program), bug}
	if err := s.icecreams.DeleteCollection(e.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil { // of the last check
		t.Fatal(err)
	}
	return s
}

// start starts the program, and waits until it watches.
func (s *suspect) start(environ []string, args ...string) {
	s.t.Helper()
	if s.running != nil {
		s.t.Fatal("started twice")
	}
	s.running = s.Start(testenv.Command{Path: s.program, Args: append(s.args, args...),
		Env: append([]string{"KUBE_CACHE_MUTATION_DETECTOR=false", "BUG=" + s.bug}, environ...)})
	s.Eventually(30*time.Second, func(context.Context) error {
		for _, resource := range []string{"icecreams", "deployments"} {
			// The first event of an empty watch is the bookmark after the initial state.
			watches := s.requests("watch*", resource)
			if len(watches) == 0 || watches[0].Events == 0 {
				return fmt.Errorf("the program does not watch %s", resource)
			}
		}
		return nil
	})
}

// end kills the program, so that it does not disturb the next check.
func (s *suspect) end() {
	s.t.Helper()
	if s.running.Ended() {
		return
	}
	if err := s.running.Signal(syscall.SIGKILL); err != nil {
		s.t.Error(err)
	}
	<-s.running.Done()
}

// crash returns what the program has said if it has ended.
func (s *suspect) crash() error {
	if !s.running.Ended() {
		return nil
	}
	for line := range strings.Lines(s.running.Stderr()) {
		if strings.HasPrefix(line, "panic: ") {
			return errors.New(strings.TrimSpace(line))
		}
	}
	return fmt.Errorf("the program has ended with exit code %d", s.running.Wait().ExitCode)
}

// owned waits until the Icecream has a Deployment that is none of the others.
func (s *suspect) owned(ice *v1alpha1.Icecream, within time.Duration, others ...appsv1.Deployment) error {
	var last error
	_ = hold(s.parlour, within, func() error {
		if last = s.crash(); last != nil {
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

// all returns the Deployments of an Icecream.
func (s *suspect) all(ice *v1alpha1.Icecream) []appsv1.Deployment {
	s.t.Helper()
	list, err := s.deployments.List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var all []appsv1.Deployment
	for _, d := range list.Items {
		if metav1.IsControlledBy(&d, ice) {
			all = append(all, d)
		}
	}
	return all
}

const soon = 5 * time.Second

func survivesATombstone(s *suspect) error {
	s.start(nil)
	defer s.end()
	ice := s.create("melting", "melting", 0)
	if err := s.owned(ice, soon); err != nil {
		return err
	}
	// While the program cannot watch, history goes by, and the Icecream with it.
	gone := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "icecreams"},
		Fault: faultproxy.ErrorEvent, Code: http.StatusGone})
	again := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list", Resource: "icecreams"}, Fault: faultproxy.Stall, Times: -1})
	s.proxy.Cut(faultproxy.Match{Verb: "watch*", Resource: "icecreams"})
	s.struck(gone)
	if err := s.icecreams.Delete(s.Context(), ice.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	again.Remove()
	ice = s.create("next", "next", 0)
	return s.owned(ice, soon)
}

func replacesADeployment(s *suspect) error {
	s.start(nil)
	defer s.end()
	ice := s.create("replaced", "replaced", 0)
	if err := s.owned(ice, soon); err != nil {
		return err
	}
	// What it still has to do must not bring it back by chance.
	requests, since := -1, time.Now()
	s.Eventually(soon+30*time.Second, func(context.Context) error {
		if n := len(s.writes()); n != requests && time.Since(since) < soon {
			requests = n
			return errors.New("it is still busy")
		}
		return nil
	})
	deleted := s.all(ice)
	for _, d := range deleted {
		if err := s.deployments.Delete(s.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	if err := s.owned(ice, soon, deleted...); err != nil {
		return fmt.Errorf("nobody has replaced the Deployment that was deleted: %w", err)
	}
	return nil
}

func stops(s *suspect) error {
	s.start(nil)
	defer s.end()
	if err := s.owned(s.create("working", "working", 0), soon); err != nil {
		return err
	}
	if err := s.running.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.running.Done():
	case <-time.After(soon):
		return fmt.Errorf("it still runs %s after SIGTERM", soon)
	}
	if r := s.running.Wait(); r.ExitCode != 0 {
		return fmt.Errorf("exit code %d after SIGTERM", r.ExitCode)
	}
	return nil
}

func isPatient(s *suspect) error {
	s.start(nil)
	defer s.end()
	s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	s.create("refused", "refused", 0)
	// 5 ms, doubled with each failure, leave room for nine tries in 1.5 s.
	return hold(s.parlour, 1500*time.Millisecond, func() error {
		if n := len(s.requests("create", "deployments")); n > 30 {
			return fmt.Errorf("%d tries to create the same Deployment, one right after the other", n)
		}
		return nil
	})
}

func leavesTheCacheAlone(s *suspect) error {
	s.start([]string{"KUBE_CACHE_MUTATION_DETECTOR=true"})
	defer s.end()
	ice := s.create("shared", "shared", 1)
	if err := s.owned(ice, soon); err != nil && s.crash() == nil {
		return err
	}
	if err := hold(s.parlour, 2500*time.Millisecond, s.crash); err != nil { // the detector compares once a second
		return fmt.Errorf("the mutation detector has ended it: %w", err)
	}
	return nil
}

func writesOnlyChanges(s *suspect) error {
	s.start(nil, "-resync", shortest.String())
	defer s.end()
	ice := s.create("settled", "settled", 0)
	if err := s.owned(ice, soon); err != nil {
		return err
	}
	writes := func() int { return len(s.requests("update", "deployments")) + len(s.requests("patch", "deployments")) }
	before := writes()
	return hold(s.parlour, 5*shortest/2, func() error {
		if n := writes() - before; n > 0 {
			return fmt.Errorf("%d writes of Deployments that were right already", n)
		}
		return nil
	})
}

func reports(s *suspect) error {
	s.start(nil)
	defer s.end()
	s.create("reported", "reported", 1)
	var last error
	_ = hold(s.parlour, soon, func() error {
		ice, err := s.icecreams.Get(s.Context(), "reported", metav1.GetOptions{})
		if err != nil {
			last = err
			return nil
		}
		if ice.Status.ObservedGeneration == ice.Generation {
			last = nil
			return errors.New("reported")
		}
		last = fmt.Errorf("after %s the status is %+v", soon, ice.Status)
		return nil
	})
	return last
}

func createsOne(s *suspect) error {
	s.start(nil)
	defer s.end()
	behind := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	ice := s.create("single", "single", 0)
	s.struck(behind)
	for look := range 3 {
		s.patch(ice.Name, fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, look))
	}
	return hold(s.parlour, 1500*time.Millisecond, func() error {
		if n := len(s.all(ice)); n != 1 {
			return fmt.Errorf("%d Deployments of one Icecream", n)
		}
		return nil
	})
}
