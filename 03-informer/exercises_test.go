package informer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"repair": checkRepair, "informer": checkInformer, "index": checkIndex,
		"watch": checkWatch, "create": checkCreate, "restore": checkRestore, "calm": checkCalm,
	})
}

// A learner is one run of a task's program behind a proxy.
type learner struct {
	*check.C
	program string
	proxy   *testenv.Proxy
	*testenv.Process
}

func newLearner(c *check.C, options ...testenv.ProgramOption) *learner {
	return &learner{C: c, program: c.Program(options...), proxy: c.Proxy()}
}

func (l *learner) command(args, environ []string) testenv.Command {
	return testenv.Command{Path: l.program, Env: environ, Args: append([]string{"-kubeconfig", l.proxy.Kubeconfig, "-namespace", l.Namespace}, args...)}
}

var errEnded = errors.New("the program has ended")

func patience() time.Duration { return check.Patience(10 * time.Second) }

// until waits until f returns nil, or the program ends: then it returns errEnded.
func (l *learner) until(timeout time.Duration, f func(ctx context.Context) error) error {
	l.T.Helper()
	return l.Until(timeout, func(ctx context.Context) error {
		ended := l.Ended() // before f: what the program did last counts
		err := f(ctx)
		if err != nil && ended {
			return poll.Stop(errEnded)
		}
		return err
	})
}

// endsWithin waits for the end of the program.
func (l *learner) endsWithin(timeout time.Duration) bool {
	l.T.Helper()
	return errors.Is(l.until(timeout, func(context.Context) error { return errors.New("it runs") }), errEnded)
}

// printed waits until the program has printed a text.
func (l *learner) printed(text string) error {
	l.T.Helper()
	return l.until(patience(), func(context.Context) error {
		if !strings.Contains(l.Stdout(), text) {
			return errors.New("it is not in the output")
		}
		return nil
	})
}

// mustPrint is printed for what no known mistake prevents.
func (l *learner) mustPrint(text string) {
	l.T.Helper()
	if err := l.printed(text); err != nil {
		l.Fail(fmt.Sprintf("the output has %q", text), l.output(err))
	}
}

// output says how the program stands, with the end of what it has printed.
func (l *learner) output(err error) string {
	var b strings.Builder
	if errors.Is(err, errEnded) {
		fmt.Fprintf(&b, "the program has ended with exit code %d", l.ExitCode())
	} else {
		b.WriteString("the program still runs")
	}
	for _, text := range []string{l.Stdout(), l.Stderr()} {
		b.WriteString("\n  " + strings.ReplaceAll(proc.LastLines(text, 8), "\n", "\n  "))
	}
	return b.String()
}

func (l *learner) set(name, v string) { l.T.Helper(); set(l.T, l.Env, name, v) }
func (l *learner) remove(name string) { l.T.Helper(); remove(l.T, l.Env, name) }
func (l *learner) struck(i *faultproxy.Injection) error {
	l.T.Helper()
	return l.until(patience(), func(context.Context) error {
		if i.Struck() == 0 {
			return errors.New("no such request")
		}
		return nil
	})
}

// truth is what the namespace holds, as a program prints its mirror.
func (l *learner) truth() map[string]string {
	l.T.Helper()
	list, err := l.Client.CoreV1().ConfigMaps(l.Namespace).List(l.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	l.Must(err)
	m := map[string]string{}
	for _, cm := range list.Items {
		m[cm.Name] = cm.Data["v"]
	}
	return m
}

// endedWell waits for the end of a program with -until end, and returns its mirror.
func (l *learner) endedWell() map[string]string {
	l.T.Helper()
	l.set("end", "1")
	if !l.endsWithin(patience()) {
		l.Fail("the program ends when the ConfigMap end appears", l.output(nil))
	}
	if l.ExitCode() != 0 {
		l.Fail("exit code 0", l.output(errEnded))
	}
	for line := range strings.Lines(l.Stdout()) {
		if content, ok := strings.CutPrefix(line, "mirror:"); ok {
			m := map[string]string{}
			for _, pair := range strings.Fields(content) {
				name, v, _ := strings.Cut(pair, "=")
				m[name] = v
			}
			return m
		}
	}
	l.Fail("the program prints its mirror in the end", l.output(errEnded))
	return nil
}

func content(m map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, name+"="+m[name])
	}
	return strings.Join(all, " ")
}

// checkRepair cuts the watch five times, lets history be gone, and deletes
// something each time before the program can watch again. Then events change the mirror
// once more, which no list mends. At last, what it waits for appears while it cannot see it.
func checkRepair(c *check.C) {
	l := newLearner(c)
	for i := range 5 {
		l.set(fmt.Sprintf("doomed-%d", i), "1")
	}
	for _, name := range []string{"doomed-410", "last", "changed", "removed"} {
		l.set(name, "1")
	}
	lists := faultproxy.Match{Verb: "list", Resource: "configmaps", If: func(r faultproxy.Request) bool { return !strings.Contains(r.Query, "continue=") }} // further pages are of the same list
	// watching waits for one more watch than before.
	watching := func(before int, expected string) {
		if err := l.until(patience(), func(context.Context) error {
			if len(l.proxy.Requests(faultproxy.Watches)) <= before {
				return errors.New("no watch")
			}
			return nil
		}); err != nil {
			l.Fail(expected, l.output(err))
		}
	}
	// start waits for the first watch: a change before the list would be no event, because the watch begins at the list's version.
	start := func(until string) {
		before := len(l.proxy.Requests(faultproxy.Watches))
		l.Process = l.Start(l.command([]string{"-until", until}, nil))
		watching(before, "a watch after the first list")
	}
	start("end")
	naive := false
	for i := range 5 {
		l.set("round", fmt.Sprint(i))
		l.mustPrint(fmt.Sprintf("round=%d\n", i))
		last, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Get(l.Context(), "round", metav1.GetOptions{})
		l.Must(err)
		deletion := i == 2 // is the last event; its version is a later one
		if deletion {
			l.remove("last")
			l.mustPrint("DELETED last=1\n")
		}
		listed := l.proxy.Count(lists)
		stall := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Stall, Times: -1})
		l.proxy.Cut(faultproxy.Watches)
		if err := l.struck(stall); err != nil {
			l.Fail("a new watch after the connection was cut", l.output(err))
		}
		if l.proxy.Count(lists) > listed {
			l.Mistake("lists at every reconnect", "one request after a cut: a watch", "a list, and then a watch")
		}
		watches := l.proxy.Requests(faultproxy.Watches)
		query, err := url.ParseQuery(watches[len(watches)-1].Query)
		l.Must(err)
		version, expected := query.Get("resourceVersion"), "a watch from resourceVersion "+last.ResourceVersion+", that of the last event"
		if deletion {
			expected = "a watch from the resourceVersion of the last event, DELETED last=1"
		}
		if version == "" || version == "0" {
			naive = true // the mirror shows what comes of it
		} else if newer, err := resourceversion.CompareResourceVersion(version, last.ResourceVersion); err != nil || newer < 0 || newer == 0 && deletion {
			l.Mistake("outdated version", expected, "a watch from resourceVersion "+version)
		}
		l.remove(fmt.Sprintf("doomed-%d", i))
		caughtUp(l.T, l.Env)
		stall.Remove()
	}

	// A request that fails is no reason to end, nor to forget the version.
	const failures = 4
	failure := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: failures})
	l.proxy.Cut(faultproxy.Watches)
	err := l.until(patience(), func(context.Context) error {
		if failure.Struck() < failures {
			return errors.New("no such request")
		}
		return nil
	})
	l.set("round", "500")
	if err == nil {
		err = l.printed("round=500\n")
	}
	again := fmt.Sprintf("another watch after each of the %d that were answered by 500", failures)
	switch {
	case errors.Is(err, errEnded) && failure.Struck() > 0:
		l.Mistake("ends at a failure", again, l.output(err))
	case err != nil:
		l.Fail(again+", and round=500", l.output(err))
	}
	// Nor is a watch that ends at once, without an event.
	empty := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.End, Times: 2})
	l.proxy.Cut(faultproxy.Watches)
	if err := l.until(patience(), func(context.Context) error {
		if empty.Struck() < 2 {
			return errors.New("no such request")
		}
		return nil
	}); err != nil {
		l.Fail("another watch after one that has ended at once", l.output(err))
	}

	l.set("round", "410")
	l.mustPrint("round=410\n")
	l.paused()
	resumes := func(r faultproxy.Request) bool {
		query, err := url.ParseQuery(r.Query)
		return r.Verb == "watch" && err == nil && query.Get("resourceVersion") != "" && query.Get("resourceVersion") != "0"
	}
	// lose takes the history away, and holds the list that should follow. A watch without a version never gets a 410.
	lose := func(how faultproxy.Fault) (gone, stall *faultproxy.Injection) {
		gone = l.proxy.MustInject(faultproxy.Rule{Fault: how, Code: 410, Times: -1, Match: faultproxy.Match{If: resumes}})
		stall = l.proxy.MustInject(faultproxy.Rule{Match: lists, Fault: faultproxy.Stall, Times: -1})
		l.proxy.Cut(faultproxy.Watches)
		return gone, stall
	}
	begins := faultproxy.Match{Verb: "watch*", If: func(r faultproxy.Request) bool { return !resumes(r) }}
	begun := l.proxy.Count(begins)
	gone, stall := lose(faultproxy.ErrorEvent)
	err = l.until(patience(), func(context.Context) error {
		if stall.Struck() == 0 && gone.Struck() < 3 && l.proxy.Count(begins) == begun {
			return errors.New("it has not asked for the state")
		}
		return nil
	})
	again = "a list after 410 Gone"
	switch {
	case errors.Is(err, errEnded) && gone.Struck() > 0:
		l.Mistake("ends at 410", again, l.output(err))
	case err != nil:
		l.Fail(again, l.output(err))
	case stall.Struck() == 0 && gone.Struck() >= 3:
		l.Mistake("ignores the 410", again, "three watches from the same resourceVersion, each answered by 410 Gone")
	}
	naive = naive || stall.Struck() == 0 // a new watch, and no list
	l.remove("doomed-410")
	caughtUp(l.T, l.Env)
	open := len(l.proxy.Requests(faultproxy.Watches))
	gone.Remove()
	stall.Remove()
	if !naive {
		watching(open, "a watch after the list")
		// What is selected away must not get into the mirror by its event. The cluster may not have it.
		_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(l.Context(), "kube-root-ca.crt", types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"1"}}}`), metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			l.Must(err)
		}
		l.set("changed", "2")
		l.mustPrint("MODIFIED changed=2\n")
		l.remove("removed")
		l.mustPrint("DELETED removed=1\n")
	}

	mirror, truth := l.endedWell(), l.truth()
	expected, held := "mirror: "+content(truth), "mirror: "+content(mirror)
	ghosts, applied := maps.Clone(mirror), maps.Clone(mirror)
	delete(ghosts, "doomed-410")
	delete(applied, "removed")
	applied["changed"], applied["end"] = truth["changed"], truth["end"]
	switch {
	case maps.Equal(mirror, truth):
	case naive:
		l.Mistake("ghost", expected, held)
	case maps.Equal(ghosts, truth):
		l.Mistake("list not compared", expected, held)
	case maps.Equal(applied, truth):
		l.Mistake("events not applied", expected, held)
	default:
		l.Fail(expected, held)
	}
	if n := l.proxy.Count(lists); n > 2 {
		l.Failf("two lists, at the start and after the 410", "%d lists", n)
	}

	// What appears while the history is lost is in the list, and no event tells of it. This time
	// the watch does not even begin: the answer is 410 itself.
	start("late")
	failure = l.proxy.MustInject(faultproxy.Rule{Match: lists, Fault: faultproxy.Answer, Code: http.StatusInternalServerError})
	gone, stall = lose(faultproxy.Answer)
	switch err := l.struck(stall); {
	case err != nil && gone.Struck() > 1:
		l.Mistake("ignores the answer 410", again, fmt.Sprintf("%d watches from the same resourceVersion, each answered by 410 Gone", gone.Struck()))
	case errors.Is(err, errEnded) && failure.Struck() > 0:
		l.Mistake("ends at a failure", "another list after one that was answered by 500", l.output(err))
	case err != nil:
		l.Fail(again, l.output(err))
	}
	l.paused()
	l.set("late", "1")
	caughtUp(l.T, l.Env)
	gone.Remove()
	stall.Remove()
	if !l.endsWithin(patience()) {
		l.Mistake("until only in events", "the program ends: the list after 410 Gone has the ConfigMap late", "it watches on")
	}

	start("never")
	l.Must(l.Signal(syscall.SIGTERM))
	if !l.endsWithin(toEnd()) {
		l.Mistake("goes on after sigterm", "an end after SIGTERM", l.output(nil))
	}
	if code := l.ExitCode(); code != 0 {
		l.Fail("exit code 0 after SIGTERM: that its context has ended is no error of watch", fmt.Sprintf("exit code %d: %s", code, l.output(nil)))
	}
}

// toEnd is how long a program may take to end, for which it needs no more than milliseconds.
func toEnd() time.Duration { return min(patience(), 20*time.Second) }

// paused ends the check if the program has not waited before it repeated a request that was
// answered by 500, or ended at once. It is to wait for a second, of which this asks half.
func (l *learner) paused() {
	l.T.Helper()
	all := l.proxy.Requests(faultproxy.Match{})
	for i, r := range all[:len(all)-1] {
		pause := between(r, all[i+1])
		if pause >= time.Second/2 {
			continue
		}
		expected, held := "a pause of a second between "+r.String()+" and the next request", pause.Round(time.Millisecond).String()
		switch {
		case r.Code == http.StatusInternalServerError:
			l.Mistake("no pause", expected, held)
		case slices.Contains(r.Faults, faultproxy.End):
			l.Mistake("no pause after an empty watch", expected, held)
		}
	}
}

// startsFactory is where a factory, or an informer by itself, is started.
var startsFactory = regexp.MustCompile(`\.(Start|Run)(WithContext)?\(`)

// checkInformer holds the first answer back, and deletes objects of which the
// informer learns only by reading the state again.
func checkInformer(c *check.C) {
	l := newPortLearner(c)
	there := []string{"a", "b", "plain", "doomed", "doomed-too"}
	for _, name := range there {
		l.mirrored(name, "true")
	}
	l.mirrored("other", "false")
	services := faultproxy.Match{Resource: "services"}
	stall := l.proxy.MustInject(faultproxy.Rule{Match: services, Fault: faultproxy.Stall, Times: -1})
	l.start()
	silence := min(patience(), 20*time.Second) // nothing else shows that no request will come
	switch err := l.until(silence, func(context.Context) error {
		if stall.Struck() == 0 {
			return errors.New("no request")
		}
		return nil
	}); {
	case errors.Is(err, errEnded):
		l.connected(err)
		l.Fail("a program that runs until SIGTERM", l.output(err))
	case err != nil:
		const expected = "a request by which the informer reads Services"
		held := "no request within " + silence.String()
		source, err := os.ReadFile(l.Path("main.go"))
		l.Must(err)
		if start := startsFactory.FindIndex(source); start == nil || bytes.Contains(source[start[0]:], []byte(".Informer()")) {
			l.Mistake("asked for after start", expected, held)
		}
		l.Fail(expected, held) // it may only be slow
	}
	// What a slow program prints later than this is seen below, by its place.
	switch err := l.until(2*time.Second, func(context.Context) error {
		if !strings.Contains(l.Stdout(), "watching") {
			return errors.New("it waits, as it should")
		}
		return nil
	}); {
	case err == nil:
		l.Mistake("read before sync", "nothing is printed before the API server has answered", l.output(err))
	case errors.Is(err, errEnded):
		l.Fail("the program waits for the API server", l.output(err))
	}
	stall.Remove()
	l.mustPrint("watching\n")
	for _, r := range l.proxy.Requests(services) {
		query, err := url.ParseQuery(r.Query)
		l.Must(err)
		if r.Namespace != l.Namespace {
			l.Mistake("all namespaces", "requests for the namespace "+l.Namespace, "a request for "+r.Path)
		}
		if !strings.Contains(query.Get("labelSelector"), "mirror") {
			l.Mistake("selects too late", "requests with the labelSelector mirror=true", "a request without one")
		}
	}
	before, _, _ := strings.Cut(l.Stdout(), "watching\n")
	for _, name := range there { // a slow program that does not wait says so later, but all the same too early
		if !strings.Contains(before, "ADDED "+name+"\n") {
			l.mustPrint("ADDED " + name + "\n")
			l.Mistake("read before sync", "watching, after ADDED for each Service that is there", l.output(nil))
		}
	}
	asked := map[string]int{} // an informer has a list and a watch, or a watch that begins with the state
	for _, verb := range reads(l.proxy, "services") {
		if asked[verb]++; asked[verb] > 1 {
			l.Mistake("two informers", "one informer for both handlers", fmt.Sprintf("two requests of the verb %s", verb))
		}
	}
	l.touch("a")
	l.mustPrint("MODIFIED a\n")
	l.Must(l.Client.CoreV1().Services(l.Namespace).Delete(l.Context(), "plain", metav1.DeleteOptions{}))
	l.mustPrint("DELETED plain\n")

	l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: 410})
	again := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{If: func(r faultproxy.Request) bool {
		return r.Verb == "list" || r.Verb == "watch-list"
	}}, Fault: faultproxy.Stall, Times: -1})
	l.proxy.Cut(faultproxy.Watches)
	if err := l.struck(again); err != nil {
		l.Fail("the informer reads the state again after 410 Gone", l.output(err))
	}
	for _, name := range []string{"doomed", "doomed-too"} {
		l.Must(l.Client.CoreV1().Services(l.Namespace).Delete(l.Context(), name, metav1.DeleteOptions{}))
	}
	again.Remove()
	l.mirrored("later", "true")
	err := l.printed("ADDED later\n")
	if err == nil { // later may be in the state, of which nobody knows the order; this is not
		l.touch("later")
		err = l.printed("MODIFIED later\n")
	}
	const gone, too = "DELETED doomed\n", "DELETED doomed-too\n"
	switch {
	case errors.Is(err, errEnded) && strings.Contains(l.Stderr(), "DeletedFinalStateUnknown"):
		_, crash, _ := strings.Cut(l.Stderr(), "interface conversion:")
		crash, _, _ = strings.Cut(crash, "\n")
		l.Mistake("tombstone panics", strings.TrimSpace(gone), "panic: interface conversion:"+crash)
	case err != nil:
		l.Fail("the output has ADDED later and MODIFIED later", l.output(err))
	case !strings.Contains(l.Stdout(), gone) || !strings.Contains(l.Stdout(), too):
		l.Mistake("tombstone ignored", strings.TrimSpace(gone), l.output(nil))
	}

	l.mirrored("end", "true")
	if err := l.until(patience(), func(context.Context) error {
		if _, counted, ok := strings.Cut(l.Stdout(), "changes:"); !ok || !strings.Contains(counted, "\n") {
			return errors.New("it does not say how many changes there were")
		}
		return nil
	}); err != nil {
		l.Fail("mirror: and changes:, when the Service end appears", l.output(err))
	}
	err = l.until(toEnd(), func(context.Context) error {
		if open := l.proxy.Open(services); open > 0 {
			return fmt.Errorf("%d watches of Services are open", open)
		}
		return nil
	})
	switch {
	case l.Ended():
		l.Fail("a program that runs until SIGTERM", l.output(errEnded))
	case err != nil:
		l.Mistake("not stopped", "no watch of Services, after mirror: is printed", err.Error())
	case l.endsWithin(time.Second): // it has nothing to do any more; that it waits is no event
		l.Fail("a program that runs until SIGTERM", l.output(errEnded))
	}
	changes, printed, mirror := 0, 0, ""
	for line := range strings.Lines(l.Stdout()) {
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "ADDED", "MODIFIED", "DELETED":
			printed++
		case "mirror:":
			mirror = strings.Join(slices.Sorted(slices.Values(strings.Fields(rest))), " ")
		case "changes:":
			if _, err := fmt.Sscan(rest, &changes); err != nil {
				l.Fail("changes: and a number", strings.TrimSpace(line))
			}
		}
	}
	if want := "a b end later"; mirror != want {
		l.Fail("mirror: "+want, "mirror: "+mirror)
	}
	if changes != printed && changes != printed-1 { // the last one may come after the end
		l.Failf(fmt.Sprintf("changes: %d, as many as the first handler has printed", printed), "%d", changes)
	}
	l.Must(l.Signal(syscall.SIGTERM))
	switch {
	case !l.endsWithin(patience()):
		l.Fail("an end after SIGTERM", l.output(nil))
	case l.ExitCode() != 0:
		l.Fail("exit code 0 after SIGTERM", l.output(errEnded))
	}

	// A stop is a stop, also while the cache is empty.
	stall = l.proxy.MustInject(faultproxy.Rule{Match: services, Fault: faultproxy.Stall, Times: -1})
	l.start()
	if err := l.struck(stall); err != nil {
		l.Fail("a request by which the informer reads Services", l.output(err))
	}
	l.Must(l.Signal(syscall.SIGTERM))
	switch {
	case !l.endsWithin(patience()):
		l.Fail("an end after SIGTERM, while the cache is not filled", l.output(nil))
	case l.ExitCode() != 0:
		l.Mistake("ends with an error", "exit code 0 after SIGTERM, while the cache is not filled", l.output(errEnded))
	}

	// Now the Service end is there from the start.
	stall.Remove()
	l.start()
	l.mustPrint("ADDED end\n")
	if err := l.printed("changes:"); err != nil {
		l.Mistake("only what comes later", "mirror: and changes:, because the Service end is there already", l.output(err))
	}
	_ = l.Signal(os.Kill) // it may have ended
	<-l.Done()

	// And now there is none, and none comes.
	l.Must(l.Client.CoreV1().Services(l.Namespace).Delete(l.Context(), "end", metav1.DeleteOptions{}))
	l.start()
	l.mustPrint("watching\n")
	l.Must(l.Signal(syscall.SIGTERM))
	switch {
	case !l.endsWithin(toEnd()):
		l.Mistake("waits for end only", "an end after SIGTERM, while there is no Service end", l.output(nil))
	case l.ExitCode() != 0:
		l.Fail("exit code 0 after SIGTERM, while there is no Service end", l.output(errEnded))
	}
}

// otherTypes calls the index functions with an object that is no pod, and with a pod, which they are not to change.
const otherTypes = `package main

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func init() {
	if os.Getenv("CHECK_OTHER_TYPES") == "" {
		return
	}
	for _, f := range []cache.IndexFunc{nodeOf, appAndTierOf} {
		keys, err := f(&corev1.Node{})
		fmt.Printf("%q %v\n", keys, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-7", Labels: map[string]string{"app": "shop", "tier": "web"}}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	was := pod.DeepCopy()
	for _, f := range []cache.IndexFunc{nodeOf, appAndTierOf} {
		_, _ = f(pod)
	}
	if !equality.Semantic.DeepEqual(was, pod) {
		fmt.Printf("the pod has now the labels %v, the annotations %v and the node %q\n", pod.Labels, pod.Annotations, pod.Spec.NodeName)
	}
	os.Exit(0)
}
`

func checkIndex(c *check.C) {
	l := newLearner(c, testenv.AddFile("zz_check.go", otherTypes))
	r := l.Run(l.command(nil, nil))
	if _, crash, ok := strings.Cut(r.Stderr, "unable to calculate an index entry"); ok {
		crash, _, _ = strings.Cut(crash, "\n")
		l.Mistake("error for a pod without a node", "no key and no error", "panic: unable to calculate an index entry"+crash)
	}
	if r.ExitCode != 0 {
		l.Failf("exit code 0", "exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	nodeA, nodeB := "node-a."+l.Namespace, "node-b."+l.Namespace
	lines := strings.Split(r.Stdout, "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "keys of node:") && strings.Contains(line, `""`) {
			l.Mistake("unscheduled pod under an empty key", fmt.Sprintf("keys of node: [%q %q]", nodeA, nodeB), line)
		}
		keys, ok := strings.CutPrefix(line, "keys of app and tier: ")
		other := strings.NewReplacer(`"shop"`, "", `"blog"`, "", `"web"`, "", `"db"`, "").Replace(keys) // what is no value of a label
		if ok && keys != "[]" && strings.Trim(other, "[ ]") == "" {
			l.Mistake("one label", `keys of app and tier: ["blog/db" "blog/web" "shop/db" "shop/web"]`, line)
		}
	}
	for _, lookup := range []struct{ what, fields, labels string }{
		{"node " + nodeA, "spec.nodeName=" + nodeA, ""}, {"node " + nodeB, "spec.nodeName=" + nodeB, ""},
		{"app and tier shop/web", "", "app=shop,tier=web"}, {"app and tier shop/db", "", "app=shop,tier=db"}, {"app and tier blog/db", "", "app=blog,tier=db"},
	} {
		list, err := l.Client.CoreV1().Pods(l.Namespace).List(l.Context(), metav1.ListOptions{FieldSelector: lookup.fields, LabelSelector: lookup.labels})
		l.Must(err)
		want := lookup.what + ":"
		for _, pod := range list.Items {
			want += " " + pod.Name
		}
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, lookup.what+":") })
		if i < 0 || lines[i] != want {
			l.Fail(want, "the output\n"+r.Stdout)
		}
	}
	if got := reads(l.proxy, "pods"); len(got) != 1 {
		l.Failf("one request for the state, and none for a look-up", "%v", got)
	}
	r = l.Run(l.command(nil, []string{"CHECK_OTHER_TYPES=1"}))
	if _, crash, ok := strings.Cut(r.Stderr, "interface conversion:"); ok {
		crash, _, _ = strings.Cut(crash, "\n")
		l.Mistake("unchecked assertion", "no key for a Node", "panic: interface conversion:"+crash)
	}
	if _, changed, ok := strings.Cut(r.Stdout, "the pod has now "); ok {
		l.Mistake("pod changed", "a pod as it was, with the labels map[app:shop tier:web]", strings.TrimSpace(changed))
	}
	none := 0 // beside what the learner prints
	for line := range strings.Lines(r.Stdout) {
		if line == "[] <nil>\n" {
			none++
		}
	}
	if r.ExitCode != 0 || none != 2 {
		l.Failf("no keys and no errors for a Node", "%s%s", r.Stdout, r.Stderr)
	}
}

// underWay are the requests that wait for an answer.
var underWay = faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Took == 0 && !strings.HasPrefix(r.Verb, "watch") }}

// between is how long a program waits between an answer and its next request. On a slow
// machine that can but become longer.
func between(first, next faultproxy.Request) time.Duration {
	return next.Started.Sub(first.Started.Add(first.Took))
}
