package informer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The centre of the step: three programs keep a mirror of the same ConfigMaps
// under the same faults. Watching naively ends wrong and does not know it, the
// RetryWatcher mends cuts and ends at 410, the informer ends right.
func TestThreeProgramsUnderTheSameFaults(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	set(t, e, "kept", "0")
	for i := range 5 {
		set(t, e, fmt.Sprintf("doomed-%d", i), "1")
	}
	set(t, e, "doomed-410", "1")
	set(t, e, "doomed-down", "1")

	names := []string{"naive-watch", "retry-watch", "shared-informer"}
	running := map[string]*testenv.Process{}
	for _, name := range names {
		running[name] = e.Start(testenv.Command{
			Path: program(t, e, name), Timeout: 3 * time.Minute,
			Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", e.Namespace, "-until", "end"},
		})
	}
	// by is the watches of one program.
	by := func(verb, name string) faultproxy.Match {
		return faultproxy.Match{Verb: verb, Resource: "configmaps", UserAgent: "*" + name + "/*"}
	}
	// all waits until every program that runs has an open watch and has printed what is given.
	all := func(line string) {
		t.Helper()
		e.Eventually(time.Minute, func(context.Context) error {
			for name, r := range running {
				if p.Open(by("watch*", name)) != 1 || !strings.Contains(r.Stdout(), line) {
					return fmt.Errorf("%s has %d watches open and has not printed %q:\n%s%s", name, p.Open(by("watch*", name)), line, r.Stdout(), r.Stderr())
				}
			}
			return nil
		})
	}
	// whileBlind cuts all watches and lets nobody watch again before change has
	// been made. The rules strike who watches again, in the order given.
	whileBlind := func(change func(), rules ...faultproxy.Rule) (injected []*faultproxy.Injection) {
		t.Helper()
		stall := p.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Stall, Times: -1})
		for _, rule := range rules {
			injected = append(injected, p.MustInject(rule))
		}
		if n := p.Cut(faultproxy.Watches); n != len(running) {
			t.Fatalf("%d watches cut, want %d", n, len(running))
		}
		e.Eventually(time.Minute, func(context.Context) error {
			if n := stall.Struck(); n < len(running) {
				return fmt.Errorf("%d of %d programs have asked for a new watch", n, len(running))
			}
			return nil
		})
		change()
		caughtUp(t, e)
		stall.Remove()
		return injected
	}

	// Five cuts; each time something is made, changed and deleted meanwhile.
	all("LISTED kept=0")
	for i := range 5 {
		set(t, e, "round", fmt.Sprint(i)) // a watch without any event would be a different case
		all(fmt.Sprintf("round=%d\n", i))
		whileBlind(func() {
			remove(t, e, fmt.Sprintf("doomed-%d", i))
			set(t, e, "kept", fmt.Sprint(i+1))
			set(t, e, fmt.Sprintf("made-%d", i), "1")
		})
		all(fmt.Sprintf("ADDED made-%d=1\n", i))
	}

	// An event that reaches nobody.
	drop := p.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Object: "dropped", Fault: faultproxy.Drop, Times: 3})
	set(t, e, "dropped", "1")
	set(t, e, "later", "1")
	all("ADDED later=1\n")
	if n := drop.Struck(); n != 3 {
		t.Fatalf("%d events dropped, want one for each program", n)
	}
	for name, r := range running {
		if strings.Contains(r.Stdout(), "dropped") {
			t.Fatalf("%s has seen the event that was dropped", name)
		}
	}

	// History is gone, once for each program.
	var expired []faultproxy.Rule
	for _, name := range names {
		expired = append(expired, faultproxy.Rule{Match: by("watch", name), Fault: faultproxy.ErrorEvent, Code: 410})
	}
	gone := whileBlind(func() { remove(t, e, "doomed-410") }, expired...)
	retry := running["retry-watch"].Wait()
	delete(running, "retry-watch")
	if retry.ExitCode != 1 || !strings.Contains(retry.Stderr, "the watch has ended for good, Expired") {
		t.Errorf("retry-watch: exit code %d, want 1 because of the 410\n%s", retry.ExitCode, retry.Stderr)
	}
	all("ADDED dropped=1\n") // the lists of both that go on have it
	for i, injection := range gone {
		if injection.Struck() != 1 {
			t.Errorf("%s got %d answers 410", names[i], injection.Struck())
		}
	}

	// The server cannot be reached for a while. (To restart the shared one is
	// not for a test to do.)
	set(t, e, "before-down", "1")
	all("ADDED before-down=1\n")
	p.Down()
	remove(t, e, "doomed-down")
	set(t, e, "kept", "end")
	caughtUp(t, e)
	fatal.If(t, p.Up())
	down := 0
	for _, r := range p.Requests(faultproxy.Watches) {
		if slices.Contains(r.Faults, faultproxy.Unreachable) {
			down++
		}
	}
	if down != 2 {
		t.Errorf("%d watches were open when the server went away, want 2", down)
	}
	all("kept=end\n")
	set(t, e, "end", "1")

	naive, informer := running["naive-watch"].Wait(), running["shared-informer"].Wait()
	if naive.ExitCode != 0 || informer.ExitCode != 0 {
		t.Errorf("exit codes: naive-watch %d, shared-informer %d\n%s%s", naive.ExitCode, informer.ExitCode, naive.Stderr, informer.Stderr)
	}
	truth := map[string]string{}
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	fatal.If(t, err)
	for _, cm := range list.Items {
		truth[cm.Name] = cm.Data["v"]
	}
	if diff := cmp.Diff(truth, mirror(t, informer)); diff != "" {
		t.Errorf("shared-informer's mirror (-cluster +mirror):\n%s", diff)
	}
	ghosts := maps.Clone(truth)
	for _, name := range []string{"doomed-0", "doomed-1", "doomed-2", "doomed-3", "doomed-4", "doomed-410", "doomed-down"} {
		ghosts[name] = "1"
	}
	if diff := cmp.Diff(ghosts, mirror(t, naive)); diff != "" {
		t.Errorf("naive-watch's mirror, which should have kept all that was deleted while it was blind (-want +mirror):\n%s", diff)
	}
	// All of the cuts mended; the dropped event not, and there it stops.
	want := map[string]string{"kept": "5", "round": "4", "later": "1", "doomed-410": "1", "doomed-down": "1",
		"made-0": "1", "made-1": "1", "made-2": "1", "made-3": "1", "made-4": "1"}
	if diff := cmp.Diff(want, mirror(t, retry)); diff != "" {
		t.Errorf("retry-watch's mirror (-want +mirror):\n%s", diff)
	}

	for name, want := range map[string]struct{ list, watchList, cuts int }{
		"naive-watch":     {1, 0, 6},
		"retry-watch":     {1, 0, 6},
		"shared-informer": {0, 2, 6}, // at the start, and because of the 410; not because of a cut
	} {
		cuts := 0
		for _, r := range p.Requests(by("watch*", name)) {
			if slices.Contains(r.Faults, faultproxy.Cut) {
				cuts++
			}
		}
		list, watchList := p.Count(by("list", name)), p.Count(by("watch-list", name))
		if list != want.list || watchList != want.watchList || cuts != want.cuts {
			t.Errorf("%s: %d lists, %d watch-lists, %d cuts; want %+v", name, list, watchList, cuts, want)
		}
	}
}

// mirror parses the last line of a program's mirror.
func mirror(t *testing.T, r testenv.Result) map[string]string {
	t.Helper()
	for line := range strings.Lines(r.Stdout) {
		if content, ok := strings.CutPrefix(line, "mirror:"); ok {
			m := map[string]string{}
			for _, pair := range strings.Fields(content) {
				name, value, _ := strings.Cut(pair, "=")
				m[name] = value
			}
			return m
		}
	}
	t.Errorf("no mirror in\n%s", r.Stdout)
	return nil
}
