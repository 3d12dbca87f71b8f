package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// A kind is a way to fail.
type kind int

const (
	waited     kind = iota // something that people wait for has not happened
	differs                // the end state is another one
	restless               // it goes on writing
	trespassed             // it has written to a bystander
	died                   // it has ended by itself
	endless                // it does not end after SIGTERM
	badEnd                 // it ends after SIGTERM with an error
	undead                 // something writes after its end
	unwatched              // it does not open its watches

	overwrote  // what somebody else had written is gone
	zombie     // it makes something for what is being deleted
	holdsUp    // a namespace does not go because of it
	hot        // it repeats what is refused without waiting
	forgetful  // a failure after a success waits as long as if there had been no success
	impatient  // it comes again before the time that it was told
	blind      // an update without a resourceVersion
	anonymous  // a delete without a UID
	silent     // an error that stays is nowhere to be read
	talkative  // it writes more than the contract allows
	busyAtRest // it asks more than the contract allows when nothing happens
	growing    // the more objects there are, the more it needs for each
	dropped    // what was refused is not tried again
	chatty     // it sends Events when nothing happens
	stripped   // somebody else's finalizer is gone
	unfinished // it still writes for the first time what nobody has written before

	twice   // an object has two things outside
	left    // an object is gone, and its thing outside is not
	hangs   // it waits for an answer without end
	hasty   // it repeats what the outside has refused
	halfway // it leaves a thing outside as no one wants it, because a part of a change was refused
)

// A failure is what a controller has done wrong.
type failure struct {
	kind        kind
	step, cause *Step      // what was waited for, and what people did before
	others      []*failure // what else was waited for in vain
	diff        difference
	theirs      bool // the step is about an object that people have made
	code        int  // of an exit
	allowed     string
	hint        hint
	restarted   bool // at rest, just before
	requests    []faultproxy.Request
	detail      string

	outside bool // it is about what is not in Kubernetes
	calls   []call
	thing   *unstructured.Unstructured
}

// A hint is what an investigation has found out.
type hint int

const (
	nothing   hint = iota
	dead           // it looks at nothing any more
	deaf           // what it made has changed, and only a change of the owner wakes it
	stubborn       // not even that makes it look again
	mainPoint      // it writes the status to the main endpoint
	letGo          // it removed its finalizer before it was done
	gaveUp         // a write failed, and it did not try again
	keeps          // it does not let an object go that was deleted

	keyless       // its calls have no idempotency key
	otherKey      // the same request had another key
	listed        // it trusted a list that was late
	forgotten     // the key was forgotten
	noFinalizer   // it never puts a finalizer anywhere
	lateFinalizer // the finalizer was not there yet
	refusedEnd    // the outside did not take the thing back
	unanswered    // nobody ever knew of the thing
)

func (f *failure) Error() string { return fmt.Sprintf("failure %d: %s", f.kind, f.detail) }

// A cure is the section of a lesson that explains how to do it right.
type cure struct{ lesson, heading string }

// cures are named by what they are about.
var cures = map[string]cure{
	"versions":  {"01-curl", "7. Two writers"},
	"status":    {"01-curl", "8. Spec and status"},
	"history":   {"03-informer", "2. Lose the history"},
	"cache":     {"03-informer", "4. Read the cache"},
	"events":    {"03-informer", "5. From an event to a key"},
	"level":     {"06-controller", "1. Let a write fail, and restart"},
	"wiring":    {"06-controller", "2. Wire it"},
	"create":    {"06-controller", "3. Create what is missing"},
	"repair":    {"06-controller", "4. Repair what has changed"},
	"foreign":   {"06-controller", "5. Leave what is foreign"},
	"report":    {"06-controller", "6. Report how it is"},
	"worker":    {"06-controller", "8. Ours, whole"},
	"delete":    {"06-controller", "9. Delete what was yours"},
	"finalizer": {"06-controller", "10. Mark what others own, and take the marks back"},
	"queue":     {"06-controller", "12. Read the loop"},
	"copies":    {"07-in-cluster", "8. Two replicas, one leader"},
	"once":      {"09-outside", "3. Write it down before you do it"},
	"again":     {"09-outside", "4. Ask again"},
	"refused":   {"09-outside", "5. When the outside says no"},
	"end":       {"09-outside", "6. Give it back, or let it be"},
}

func (c cure) String() string { return fmt.Sprintf("%s/README.md, %q", c.lesson, c.heading) }

// diagnosis says in one sentence what a failure comes down to, and names its cure.
func (c *Case) diagnosis(f *failure) (says, cure string) {
	when := ""
	if c.When != "" {
		when = " " + c.When
	}
	if says, cure = c.diagnosisOutside(f, when); says != "" {
		return says, cure
	}
	switch f.kind {
	case waited, differs, restless:
		// Whatever has come of it, this is why.
		if f.hint == nothing && refused(f.requests) {
			return fmt.Sprintf("It goes on creating %s that exist already%s (409 AlreadyExists): it trusts its own memory, and does not ask the API server.", f.requests[0].Resource, when), "create"
		}
	}
	if f.hint == dead {
		return fmt.Sprintf("It has stopped working%s: not even a new object is looked at. An error or a panic must not end a worker.", when), "worker"
	}
	switch f.kind {
	case waited:
		return waitedFor(f, when)
	case differs:
		return differed(f, when)
	case restless:
		return f.wrote(when, c.Copies > 1)
	case unfinished:
		return fmt.Sprintf("It was still at work after %s%s, although it writes nothing twice: it is too slow for so much.", f.detail, when), "worker"
	case trespassed:
		return fmt.Sprintf("It touched somebody else's %s%s: before it writes or deletes, it has to look at the owner reference.", f.detail, when), "foreign"
	case died:
		if strings.Contains(f.detail, "panic: ") {
			return fmt.Sprintf("It panicked%s: one object or answer that it does not expect must not end the process.", when), "history"
		}
		if c.Level < 3 {
			return fmt.Sprintf("It ended by itself with exit code %d%s: a controller runs until it is asked to end.", f.code, when), "wiring"
		}
		return fmt.Sprintf("It ended by itself with exit code %d%s: that is a reason to try again or to list anew, and none to end.", f.code, when), "history"
	case endless:
		return fmt.Sprintf("It did not end within %s of a SIGTERM%s: its workers do not stop, so a node would kill it.", endWithin, when), "wiring"
	case badEnd:
		return fmt.Sprintf("It ended with exit code %d after a SIGTERM%s, and not with %s: that is how a pod is asked to go, and no error.", f.code, when, cmp.Or(f.allowed, "0")), "wiring"
	case undead:
		return "Something of it still wrote after it had ended: a child process, or a request that nobody waited for.", "wiring"
	case unwatched:
		return fmt.Sprintf("It did not open all its watches in time%s.", when), "wiring"
	}
	what := ""
	if f.step != nil {
		what = f.step.String()
	}
	switch f.kind {
	case overwrote:
		return fmt.Sprintf("It overwrote what somebody else had just written to %s: an update has to carry the resourceVersion that it was computed from, and nothing but its own fields may change.", f.detail), "repair"
	case zombie:
		return fmt.Sprintf("It made something for %s%s: it ignores the deletionTimestamp.", what, when), "create"
	case holdsUp:
		return fmt.Sprintf("It held up the deletion of its namespace%s: it has put a finalizer there, and does not remove it when nothing can be created any more.", when), "finalizer"
	case hot:
		return fmt.Sprintf("It repeats at once what fails%s: each failure of an object has to wait longer than the one before (AddRateLimited).", when), "queue"
	case forgetful:
		return fmt.Sprintf("It waits longer and longer%s, although it succeeded in between: the queue has to Forget a key that went well.", when), "queue"
	case impatient:
		return fmt.Sprintf("It came again too early%s: Retry-After asked for %s.", when, crash.RetryAfter), "queue"
	case blind:
		return "It updates without a resourceVersion: what others have written meanwhile is lost, and nobody gets a conflict.", "versions"
	case anonymous:
		return "It deletes by the name alone: an object that was made again under that name would go, too. The UID is a precondition of a delete.", "delete"
	case silent:
		return fmt.Sprintf("It says nothing in the status of %s%s: an error that stays has to be where people look.", what, when), "report"
	case dropped:
		return fmt.Sprintf("It gave up %s%s: when nothing was refused any more, it did not try again. What fails is tried until it works, later each time.", what, when), "queue"
	case chatty:
		return fmt.Sprintf("It goes on sending Events although nothing changes%s: an Event tells of a change, once.", when), "report"
	case stripped:
		return fmt.Sprintf("It let %s go%s: it removes the finalizers of others together with its own.", what, when), "finalizer"
	case talkative:
		return "It writes more often than the contract allows: it has to compare before it writes, and to write once.", "report"
	case busyAtRest:
		return "It goes on asking the API server although nothing happens: caches are there to be read.", "cache"
	case growing:
		return fmt.Sprintf("The more objects there are, the more it needs for each%s.", when), "cache"
	}
	return f.detail, ""
}

// same says whether people wait for something about what they have done something to.
func (f *failure) same() bool {
	return f.cause.Object.GetKind() == f.step.Object.GetKind() && f.cause.Object.GetName() == f.step.Object.GetName()
}

// ofItsOwn says whether that is an object that the controller made, and not one of people's own.
func (f *failure) ofItsOwn() bool { return f.same() && !f.theirs }

// waitedFor is about a step that was waited for in vain, and what people did before it.
func waitedFor(f *failure, when string) (says, cure string) {
	what := f.step.String()
	switch f.hint {
	case mainPoint:
		return fmt.Sprintf("It writes the status of %s to the main endpoint%s, which ignores it: a status subresource has an endpoint of its own (UpdateStatus).", what, when), "status"
	case gaveUp:
		return gaveUpStatus(what, when)
	case letGo:
		return fmt.Sprintf("It let %s go before it had undone its work at %s%s: the finalizer has to be the last thing that it removes.", f.cause, what, when), "finalizer"
	}
	if f.hint == deaf && f.theirs {
		return fmt.Sprintf("It did not report on %s until something else woke it%s: it does not watch what it owns, or missed the event.", what, when), "repair"
	}
	changes := append([]*failure{f}, f.others...)
	if !slices.ContainsFunc(changes, func(o *failure) bool { return o.cause == nil || o.cause.Verb != patch }) {
		theirs := slices.DeleteFunc(changes, (*failure).ofItsOwn) // without the drifts, which say nothing of new objects
		if len(theirs) > 1 && slices.ContainsFunc(theirs, func(o *failure) bool { return o.step.Verb == wait }) {
			return fmt.Sprintf("It did not act when %s was changed, nor at other changes%s: it reacts to new objects only (ADDED, not MODIFIED).", theirs[0].cause, when), "events"
		}
	}
	if f.step.Verb == remove && f.theirs {
		return fmt.Sprintf("People found no %s to delete%s, though they make it: the controller has deleted it, or the step comes too early.", f.step.what(), when), "level"
	}
	if f.step.Verb == remove {
		return fmt.Sprintf("People found no %s to delete%s: it did not make it, or the contract asks for another.", f.step.what(), when), "create"
	}
	if f.cause == nil {
		return fmt.Sprintf("%s never came%s.", what, when), "create"
	}
	same, made := f.same(), f.ofItsOwn()
	switch {
	case f.hint == keeps:
		return fmt.Sprintf("It does not let %s go, which was deleted%s: it has put a finalizer there, and does not remove it.", f.cause, when), "finalizer"
	case f.cause.Verb == remove && f.step.Verb == gone && same:
		return fmt.Sprintf("It does not let %s go, which was deleted%s: it has put a finalizer there, and does not remove it.", what, when), "finalizer"
	case f.cause.Verb == remove && f.step.Verb == gone:
		return fmt.Sprintf("It left %s behind when %s was deleted%s: it ignores deletions, and no owner reference has the garbage collector delete it.", what, f.cause, when), "create"
	case f.cause.Verb == remove && f.hint == stubborn:
		return fmt.Sprintf("It did not make %s again after somebody had deleted it%s, and not even a change of its owner made it look: it takes its memory, or its own status, for the truth.", what, when), "level"
	case f.cause.Verb == remove && (made || f.hint == deaf):
		return fmt.Sprintf("It did not make %s again after somebody had deleted it%s: it does not watch what it owns, or missed the event.", what, when), "repair"
	case f.cause.Verb == remove:
		return fmt.Sprintf("It did not act on the deletion of %s%s.", f.cause, when), "level"
	case f.cause.Verb == patch && made && f.step.Verb == wait:
		return fmt.Sprintf("It did not put right what somebody had changed in %s%s: it does not compare what is with what should be.", what, when), "repair"
	case f.cause.Verb == patch && f.step.Verb == gone:
		return fmt.Sprintf("It kept %s, which is no longer wanted since %s was changed%s: it makes things, and does not take them away.", what, f.cause, when), "delete"
	case f.cause.Verb == patch:
		return fmt.Sprintf("It did not act when %s was changed%s: it missed the change, or compares too little.", f.cause, when), "level"
	case f.step.Verb == gone:
		return fmt.Sprintf("It kept %s%s.", what, when), "delete"
	}
	cure = "create"
	if f.theirs { // so its status
		cure = "report"
	}
	return fmt.Sprintf("It did not do what %s asks for%s: %s is not as it should be.", f.cause, when, what), cure
}

func gaveUpStatus(what, when string) (says, cure string) {
	return fmt.Sprintf("It gave up a status of %s that the API server did not take%s: it took for written what was not, because it had changed the object of the cache, or dropped the error.", what, when), "cache"
}

func differed(f *failure, when string) (says, cure string) {
	d := f.diff
	switch {
	case f.hint == gaveUp:
		return gaveUpStatus(d.changed[0].String(), when)
	case len(d.extra) > 0 && strings.HasSuffix(d.extra[0].Name, "*"):
		return fmt.Sprintf("It made a second %s (%s)%s: it did not find out that the first one exists, because its cache or its memory was older than its own write.", d.extra[0].Kind, d.extra[0].Name, when), "create"
	case len(d.extra) > 0:
		return fmt.Sprintf("It left %s behind%s, which the undisturbed run does not have: it missed that this is no longer wanted.", d.extra[0], when), "level"
	case len(d.missing) > 0:
		return fmt.Sprintf("%s is missing at the end%s: the work was given up, or taken for done.", d.missing[0], when), "level"
	}
	first := d.changed[0]
	return fmt.Sprintf("%s is wrong at the end%s: %s.", first.entry, when, first.fields[0]), "level"
}

// refused says whether several requests are creates of what exists.
func refused(requests []faultproxy.Request) bool {
	return len(requests) > 1 && !slices.ContainsFunc(requests, func(r faultproxy.Request) bool { return r.Verb != "create" || r.Code != http.StatusConflict })
}

// wrote says what is wrong with writes for which there is no reason.
func (f *failure) wrote(when string, copies bool) (says, cure string) {
	cure = "repair"
	if len(f.requests) > 0 && strings.HasSuffix(f.requests[0].Resource, "/status") {
		cure = "report"
	}
	switch {
	case copies:
		return "Two copies go on undoing each other's writes: each has to compare before it writes, and both have to want the same.", "copies"
	case f.restarted:
		return "It writes after a restart although nothing has changed: it has to compare what is with what should be before it writes.", cure
	}
	return fmt.Sprintf("It goes on writing although nothing changes%s: its own write wakes it, or it writes without comparing.", when), cure
}

// details are the lines below the sentence.
func (f *failure) details() (lines []string) {
	for _, e := range f.diff.extra {
		lines = append(lines, "  too many: "+e.String())
	}
	for _, e := range f.diff.missing {
		lines = append(lines, "  missing: "+e.String())
	}
	for _, c := range f.diff.changed {
		for _, field := range c.fields {
			lines = append(lines, fmt.Sprintf("  %s: %s", c.entry, field))
		}
	}
	if f.detail != "" && f.kind != trespassed && f.kind != overwrote && f.kind != unfinished {
		lines = append(lines, strings.Split(f.detail, "\n")...)
	}
	for _, o := range f.others {
		lines = append(lines, o.detail)
	}
	return lines[:min(len(lines), 8)]
}

// evidence are up to three requests that show a failure.
func (s *scene) evidence(f *failure) []faultproxy.Request {
	last := func(m faultproxy.Match) []faultproxy.Request {
		found := s.requests(m)
		return found[max(0, len(found)-3):]
	}
	if len(f.requests) > 0 || f.outside {
		return f.requests[:min(len(f.requests), 3)]
	}
	var version, kind, name string // of the object in question
	switch d := f.diff; {
	case f.step != nil:
		version, kind, name = f.step.Object.GetAPIVersion(), f.step.Object.GetKind(), f.step.Object.GetName()
	case !d.empty():
		e := slices.Concat(d.extra, d.missing, changedEntries(d))[0]
		version, kind, name = e.apiVersion(), e.Kind, e.Name
	}
	if mapping, err := s.mapping(version, kind); kind != "" && err == nil {
		var all, exact []faultproxy.Request
		for _, r := range s.requests(writes) {
			if !concerns(r, mapping) || s.meetsBystander(r, name) {
				continue
			}
			if all = append(all, r); r.Name == name || r.Name == "" && len(f.diff.extra) > 0 {
				exact = append(exact, r)
			}
		}
		all, exact = all[max(0, len(all)-3):], exact[max(0, len(exact)-3):]
		if len(exact) > 0 && !refused(all) {
			return exact
		}
		if len(all) > 0 {
			return all
		}
	}
	if found := last(faultproxy.Match{If: func(r faultproxy.Request) bool { return len(r.Faults) > 0 && r.Resource != "" }}); len(found) > 0 {
		return found
	}
	if found := last(writes); len(found) > 0 {
		return found
	}
	return last(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Resource != "" }})
}

// meetsBystander says whether a create found what is somebody else's under its name, which is no mistake.
func (s *scene) meetsBystander(r faultproxy.Request, wanted string) bool {
	o := sent(r)
	return r.Verb == "create" && r.Code == http.StatusConflict && o != nil && o.GetName() != wanted &&
		slices.ContainsFunc(slices.Collect(maps.Values(s.bystanders)), func(b *unstructured.Unstructured) bool {
			return b.GetName() == o.GetName() && (o.GetKind() == "" || b.GetKind() == o.GetKind())
		})
}

func changedEntries(d difference) (all []entry) {
	for _, c := range d.changed {
		all = append(all, c.entry)
	}
	return all
}

// line shows a request with the seconds since the start of its case.
func line(r faultproxy.Request, start time.Time) string {
	return fmt.Sprintf("%+7.3fs  %s", r.Started.Sub(start).Seconds(), r)
}

// role is the smallest one that the requests needed, as YAML.
func role(name string, requests []faultproxy.Request) string {
	type rule struct{ group, verbs string }
	needs := map[bool]map[schema.GroupResource][]string{false: {}, true: {}} // by whether it is for all namespaces
	for _, r := range requests {
		if r.Resource == "" {
			continue
		}
		verbs := []string{r.Verb}
		switch {
		case r.Verb == "watch-list": // which falls back to a list
			verbs = []string{"list", "watch"}
		case r.Verb == "patch" && r.Code == http.StatusCreated: // an apply of what was not there
			verbs = []string{"patch", "create"}
		}
		where, key := needs[r.Namespace == ""], schema.GroupResource{Group: r.Group, Resource: r.Resource}
		for _, verb := range verbs {
			if !slices.Contains(where[key], verb) {
				where[key] = append(where[key], verb)
			}
		}
	}
	var documents []string
	for _, everywhere := range []bool{false, true} {
		resources := map[rule][]string{}
		for key, verbs := range needs[everywhere] {
			slices.Sort(verbs)
			r := rule{key.Group, strings.Join(verbs, ", ")}
			resources[r] = append(resources[r], key.Resource)
		}
		var lines []string
		for r, names := range resources {
			slices.Sort(names)
			group := r.group
			if group == "" {
				group = `""`
			}
			lines = append(lines, fmt.Sprintf("- {apiGroups: [%s], resources: [%s], verbs: [%s]}", group, strings.Join(names, ", "), r.verbs))
		}
		if len(lines) > 0 {
			slices.Sort(lines)
			kind := map[bool]string{false: "Role", true: "ClusterRole"}[everywhere]
			documents = append(documents, fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nrules:\n%s\n", kind, name, strings.Join(lines, "\n")))
		}
	}
	return strings.Join(documents, "---\n")
}

// investigate asks the controller, which is still running, what a failure comes from.
func (s *scene) investigate(ctx context.Context, f *failure) {
	worked := len(s.requests(writes)) > 0
	switch f.kind {
	case waited:
		f.hint = s.whyWaited(ctx, f)
	case differs:
		if changed := f.diff.changed; len(changed) > 0 && strings.HasPrefix(changed[0].fields[0], "status") && s.lastStatusFailed(changed[0].apiVersion(), changed[0].Kind, changed[0].Name) {
			f.hint = gaveUp
		}
	default:
		return
	}
	if (f.hint == nothing || f.hint == stubborn || f.hint == keeps) && worked && s.lifeless(ctx) {
		f.hint = dead
	}
}

// whyWaited looks for what kept people waiting.
func (s *scene) whyWaited(ctx context.Context, f *failure) hint {
	o := f.step.Object
	status := f.theirs && o.Object["status"] != nil // people wait for a report
	deleted := f.cause != nil && f.cause.Verb == remove && f.step.Verb == wait
	switch {
	case status && s.writesMainOnly(f.step):
		return mainPoint
	case deleted && s.contract.theirs(*f.cause) && s.removedFinalizer(f.cause):
		return letGo
	case f.cause != nil && f.cause.Verb == remove && f.step.Verb == gone && !f.same() && s.isKept(ctx, f.cause):
		return keeps
	case deleted && !s.contract.theirs(*f.cause):
		return s.touch(ctx, f.step)
	case status && s.lastStatusFailed(o.GetAPIVersion(), o.GetKind(), o.GetName()):
		return gaveUp
	case status && f.step.Verb == wait:
		return s.touch(ctx, f.step)
	}
	return nothing
}

// about are the writes to the object that a step is about.
func (s *scene) about(apiVersion, kind, name string) (found []faultproxy.Request, resource string) {
	mapping, err := s.mapping(apiVersion, kind)
	if err != nil {
		return nil, ""
	}
	resource = mapping.Resource.Resource
	return s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		return ownWrite(r) && concerns(r, mapping) && r.Name == name
	}}), resource
}

// writesMainOnly says whether it sends the status, and never to where that is read.
func (s *scene) writesMainOnly(step *Step) bool {
	found, resource := s.about(step.Object.GetAPIVersion(), step.Object.GetKind(), step.Object.GetName())
	status := false
	for _, r := range found {
		if r.Resource != resource {
			return false
		}
		if o := sent(r); o != nil {
			fields, _ := o.Object["status"].(map[string]any)
			status = status || len(fields) > 0 // Go writes status: {} where there is none
		}
	}
	return status
}

// removedFinalizer says whether it has let an object go that was being deleted.
func (s *scene) removedFinalizer(step *Step) bool {
	found, resource := s.about(step.Object.GetAPIVersion(), step.Object.GetKind(), step.Object.GetName())
	at := len(found) - 1
	for ; at >= 0 && found[at].Resource != resource; at-- { // the status is no matter here
	}
	return at >= 0 && (found[at].Verb == "update" || strings.Contains(string(found[at].Body), "finalizers"))
}

// isKept says whether the object of a step was deleted, and is still there.
func (s *scene) isKept(ctx context.Context, step *Step) bool {
	client, err := s.client(step.Object.GetAPIVersion(), step.Object.GetKind())
	if err != nil || step.Object.GetName() == "" {
		return false
	}
	there, err := client.Get(ctx, step.Object.GetName(), metav1.GetOptions{})
	return err == nil && there.GetDeletionTimestamp() != nil && slices.ContainsFunc(there.GetFinalizers(), func(f string) bool {
		return f != hold && f != metav1.FinalizerDeleteDependents && f != metav1.FinalizerOrphanDependents
	})
}

// lastStatusFailed says whether the last status that was sent for an object did not arrive.
func (s *scene) lastStatusFailed(apiVersion, kind, name string) bool {
	found, resource := s.about(apiVersion, kind, name)
	found = slices.DeleteFunc(found, func(r faultproxy.Request) bool { return r.Resource == resource })
	return len(found) > 0 && found[len(found)-1].Code/100 != 2
}

// How long a question to a controller that has failed may take. Whoever looks every few seconds is not dead.
const (
	askFor   = 4 * time.Second
	probeFor = 10 * time.Second
)

// touch changes the owner of what was not made again, and sees whether that helps.
func (s *scene) touch(ctx context.Context, missing *Step) hint {
	at := slices.IndexFunc(s.contract.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(one Step) bool { return one.where == missing.where })
	})
	if at < 0 {
		return nothing
	}
	owner := s.contract.Scenario[at].Steps[0]
	client, err := s.client(owner.Object.GetAPIVersion(), owner.Object.GetKind())
	if err != nil {
		return nothing
	}
	if _, err := client.Patch(ctx, owner.Object.GetName(), types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"look"}}}`, rival), metav1.PatchOptions{FieldManager: people}); err != nil {
		return nothing
	}
	patience := s.patience
	defer func() { s.patience = patience }()
	s.patience = askFor
	if s.wait(ctx, *missing, nil) == nil {
		return deaf
	}
	return stubborn
}

// lifeless makes a new object, and says whether the controller sends nothing at all because of it.
func (s *scene) lifeless(ctx context.Context) bool {
	step := s.contract.Scenario[0].Steps[0]
	if w := cmp.Or(s.undisturbed, s).ward(); w != nil { // one for which there is something to do
		step = w.step
	}
	if step.Verb != apply {
		return false
	}
	step.Object = step.Object.DeepCopy()
	step.Object.SetName("judge-probe")
	since := time.Now()
	if _, err := s.apply(ctx, step); err != nil {
		return false
	}
	return poll.Until(ctx, 100*time.Millisecond, probeFor, func(context.Context) error {
		if len(s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
			return r.Resource != "" && !elects(r) && !strings.HasPrefix(r.Verb, "watch") && r.Started.After(since)
		}})) == 0 {
			return errors.New("no request")
		}
		return nil
	}) != nil && ctx.Err() == nil
}
