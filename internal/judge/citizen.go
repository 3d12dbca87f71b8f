package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// citizenCases are those of level 5. Some of them only look at what the undisturbed run did.
func citizenCases(first *scene) []*Case {
	cases := []*Case{
		{Name: "updates carry a resourceVersion", Level: 5, look: blindUpdates},
		{Name: "deletes name a UID", Level: 5, look: blindDeletes},
		{Name: "writes for each change", Level: 5, look: manyWrites},
		{Name: "requests at rest", Level: 5, When: fmt.Sprintf("in %s in which nobody did anything", leftAlone), long: true, finally: restlessReads},
		{Name: "at rest", Level: 5, When: fmt.Sprintf("in %s in which nobody did anything", leftAlone), long: true, finally: restful},
		{Name: "Retry-After", Level: 5, When: "after 429 Too Many Requests", inject: tooMany, finally: waitedAsTold},
	}
	if first.ward() != nil {
		cases = append(cases,
			&Case{Name: "refused for good", Level: 5, When: "while an admission policy refused what it creates", free: true, play: refuseForGood},
			&Case{Name: "fails now and then", Level: 5, When: "after its writes had failed now and then", free: true, play: failNowAndThen})
	}
	if len(first.contract.Hundred) > 0 {
		cases = append(cases, &Case{Name: "a thousand objects", Level: 5, Alone: true, When: "with a thousand objects", free: true, play: thousand})
	}
	return cases
}

// blindUpdates looks for a PUT that overwrites whatever is there.
func blindUpdates(first *scene) *failure {
	return first.unguarded("update", blind, func(o *unstructured.Unstructured) bool { return o.GetResourceVersion() != "" })
}

// blindDeletes looks for a DELETE that strikes whatever has the name by now.
func blindDeletes(first *scene) *failure {
	return first.unguarded("delete", anonymous, guardedDelete)
}

func guardedDelete(options *unstructured.Unstructured) bool {
	uid, _, _ := unstructured.NestedString(options.Object, "preconditions", "uid")
	version, _, _ := unstructured.NestedString(options.Object, "preconditions", "resourceVersion")
	return uid != "" || version != ""
}

// unguarded looks for writes that no precondition guards.
func (s *scene) unguarded(verb string, k kind, guarded func(sent *unstructured.Unstructured) bool) *failure {
	found := s.requests(faultproxy.Match{Verb: verb, If: func(r faultproxy.Request) bool {
		if !isWrite(r) || r.Code/100 != 2 {
			return false
		}
		o := sent(r)
		return o == nil && len(r.Body) == 0 || o != nil && !guarded(o)
	}})
	if len(found) == 0 {
		return nil
	}
	return &failure{kind: k, detail: fmt.Sprintf("  %d of them", len(found)), requests: found}
}

// manyWrites counts what the controller writes for each change that people make.
func manyWrites(first *scene) *failure {
	changes, n := first.contract.changes(), len(first.requests(writes))
	if n <= changes*first.contract.Writes {
		return nil
	}
	return &failure{kind: talkative, detail: fmt.Sprintf("  %d writes for %d changes; the contract's bounds.writes allows %d for each", n, changes, first.contract.Writes)}
}

// restlessReads counts what it asks for when nothing happens any more: after the events of the last
// writes, and for so long that who asks every few seconds is heard.
func restlessReads(ctx context.Context, s *scene) error {
	crash.Sleep(ctx, 2*time.Second)
	since := time.Now()
	crash.Sleep(ctx, leftAlone)
	asked := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Started.After(since) && asks(r) }})
	minute := float64(len(asked)) / leftAlone.Minutes()
	if minute <= float64(s.contract.Requests) {
		return ctx.Err()
	}
	return &failure{kind: busyAtRest, requests: asked, detail: fmt.Sprintf("  %.0f requests a minute; the contract's bounds.requests allows %d", minute, s.contract.Requests)}
}

// What a controller may do when nobody does anything. A few Events may be late.
const (
	leftAlone  = 20 * time.Second
	mostEvents = 10
)

// restful fails if an object is written again and again although nothing happens, or if Events are.
func restful(ctx context.Context, s *scene) error {
	since := time.Now()
	crash.Sleep(ctx, max(leftAlone, s.contract.Calm))
	var events []faultproxy.Request
	written := map[string][]faultproxy.Request{}
	for _, r := range s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Code/100 == 2 && r.Started.After(since) }}) {
		switch key := r.Verb + " " + r.Path; {
		case r.Resource == "events":
			events = append(events, r)
		case isWrite(r):
			if written[key] = append(written[key], r); len(written[key]) > 1 {
				return &failure{kind: restless, requests: written[key], detail: fmt.Sprintf("  %s: twice within %s", key, leftAlone)}
			}
		}
	}
	if len(events) > mostEvents {
		return &failure{kind: chatty, requests: events, detail: fmt.Sprintf("  %d Events", len(events))}
	}
	return ctx.Err()
}

func tooMany(s *scene) (crash.During, error) { return nil, s.TooMany(work) }

// waitedAsTold fails if a request came again before the time that the server had asked for.
func waitedAsTold(_ context.Context, s *scene) error {
	all := s.requests(work)
	for i, told := range all {
		if told.Code != http.StatusTooManyRequests || !slices.Contains(told.Faults, faultproxy.Answer) {
			continue
		}
		end := told.Started.Add(told.Took + crash.RetryAfter)
		for _, r := range all[i+1:] {
			// The clocks of both sides are the same one; what is measured is a little behind it.
			if r.Verb == told.Verb && r.Path == told.Path && string(r.Body) == string(told.Body) && r.Started.Before(end.Add(-50*time.Millisecond)) {
				return &failure{kind: impatient, requests: []faultproxy.Request{told, r}, detail: fmt.Sprintf("  %s later", r.Started.Sub(told.Started).Round(time.Millisecond))}
			}
		}
	}
	return nil
}

// A ward is an object that people make, and for which the controller makes another one.
type ward struct {
	step    Step
	request faultproxy.Request // by which it was made
}

// ward finds one in what the undisturbed run did: the first of the contract.
func (s *scene) ward() *ward {
	made := s.made()
	for _, t := range s.contract.Scenario {
		step := t.Steps[0]
		if step.Verb != apply {
			continue
		}
		for _, r := range made {
			o := sent(r)
			if o == nil {
				continue
			}
			for _, owner := range o.GetOwnerReferences() {
				if owner.Kind == step.Object.GetKind() && owner.Name == step.Object.GetName() {
					return &ward{step, r}
				}
			}
		}
	}
	return nil
}

// Tries of one object in the last seconds of a refusal that lasts, whatever else a try asks for. client-go's
// usual back-off, 5 ms that double each time, comes back once between the 4th and the 9th second.
const (
	refusedFor  = 9 * time.Second
	lookAt      = 5 * time.Second // the last ones
	mostLate    = 7
	rounds      = 11              // of failures: 5 ms, doubled so often, are 5 s
	longAtLast  = 2 * time.Second // after a failure that comes after a success
	roundsLimit = 40 * time.Second
	longPause   = time.Minute // between two tries, at most
)

// refuseForGood refuses what the controller makes for one object, and goes on refusing it.
func refuseForGood(ctx context.Context, s *scene) error {
	lift, err := s.refuse(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lift() }() // a second time, if all went well
	w := s.undisturbed.ward()
	made, err := s.apply(ctx, w.step)
	if err != nil {
		return err
	}
	if err := poll.Until(ctx, 50*time.Millisecond, s.patience, func(context.Context) error {
		if len(s.refusals()) == 0 {
			return errors.New("the admission policy had nothing to refuse")
		}
		return nil
	}); err != nil {
		return err
	}
	s.Strikes.Add(1)
	crash.Sleep(ctx, refusedFor)
	since := time.Now().Add(-lookAt)
	late := slices.DeleteFunc(s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return isWrite(r) || asks(r) && r.Verb == "get" }}),
		func(r faultproxy.Request) bool { return r.Started.Before(since) })
	times := map[string]int{} // the same request
	for _, r := range late {
		name := ""
		if o := sent(r); r.Verb == "create" && o != nil { // whose path does not name it
			name = " " + o.GetName() + o.GetGenerateName()
		}
		times[r.Verb+" "+r.Path+name]++
	}
	for request, n := range times {
		if tries := s.refusals(); n > mostLate {
			return &failure{kind: hot, requests: tries[max(0, len(tries)-3):], detail: fmt.Sprintf("  %d times %s in %s, long after the first refusal", n, request, lookAt)}
		}
	}
	if err := errors.Join(s.said(ctx, w, made), lift()); err != nil {
		return err
	}
	// What it refuses has to be tried again, and nothing but time tells the controller when.
	err = s.patiently(ctx, max(s.patience, longPause+10*time.Second), func(ctx context.Context) error {
		_, err := s.child(ctx, w, made)
		return err
	})
	if err != nil && ctx.Err() == nil {
		tries := s.refusals()
		return &failure{kind: dropped, step: &w.step, requests: tries[max(0, len(tries)-3):], detail: "  " + err.Error()}
	}
	return err
}

// child is what the controller has made for an object like its ward.
func (s *scene) child(ctx context.Context, w *ward, owner *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	list, err := s.dynamic.Resource(gvr(w.request)).Namespace(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i, o := range list.Items {
		if ownedBy(&o, owner.GetUID()) && o.GetDeletionTimestamp() == nil {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("%w of %s belongs to %s %s", errNoChild, w.request.Resource, owner.GetKind(), owner.GetName())
}

var errNoChild = errors.New("no object")

// said fails if the object's status says nothing about what was refused.
func (s *scene) said(ctx context.Context, w *ward, made *unstructured.Unstructured) error {
	mapping, err := s.mapping(made.GetAPIVersion(), made.GetKind())
	if err != nil {
		return err
	}
	list, err := s.core.Discovery().ServerResourcesForGroupVersion(mapping.GroupVersionKind.GroupVersion().String())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == mapping.Resource.Resource+"/status" }) {
		return nil // it has none
	}
	if scheme.Scheme.Recognizes(mapping.GroupVersionKind) {
		return nil // the status of a Service, for example, is not this controller's
	}
	now, err := s.dynamic.Resource(mapping.Resource).Namespace(s.ns).Get(ctx, made.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	status, err := json.Marshal(now.Object["status"])
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	bad := slices.ContainsFunc(conditions, func(c any) bool {
		fields, _ := c.(map[string]any)
		message, _ := fields["message"].(string)
		return fields["status"] != "True" && message != ""
	})
	if bad || strings.Contains(string(status), token) || s.saysMore(w, now) {
		return nil
	}
	return &failure{kind: silent, detail: fmt.Sprintf("  status: %s", status), step: &w.step, requests: s.refusals()}
}

// saysMore says whether a status has a message, a reason or an error, at its top or in a condition, that it does not
// have where nothing is refused: Degraded=True is an error, too, and so is a message without any condition.
func (s *scene) saysMore(w *ward, now *unstructured.Unstructured) bool {
	status := stateOf([]unstructured.Unstructured{*now}, nil, nil)[0].content["status"] // without what differs from run to run
	usual := map[string]bool{"": true}
	for _, e := range s.want {
		if e.Kind == w.step.Object.GetKind() {
			for _, text := range explanations(e.content["status"]) {
				usual[text] = true
			}
		}
	}
	return slices.ContainsFunc(explanations(status), func(text string) bool { return !usual[text] })
}

// explanations are the texts by which a status says how it is.
func explanations(status any) (texts []string) {
	fields, _ := status.(map[string]any)
	for _, name := range []string{"message", "reason", "error", "lastError"} {
		text, _ := fields[name].(string)
		texts = append(texts, text)
	}
	conditions, _ := fields["conditions"].([]any)
	for _, condition := range conditions {
		c, _ := condition.(map[string]any)
		message, _ := c["message"].(string)
		texts = append(texts, message)
	}
	return texts
}

// failNowAndThen has somebody delete what the controller made, again and again, and lets the
// first try to make it anew fail each time. Each such failure has to be as good as the first.
func failNowAndThen(ctx context.Context, s *scene) error {
	w := s.undisturbed.ward()
	owner, err := s.apply(ctx, w.step)
	if err != nil {
		return err
	}
	children := s.dynamic.Resource(gvr(w.request)).Namespace(s.ns)
	match := faultproxy.Match{Verb: w.request.Verb, Group: w.request.Group, Resource: w.request.Resource}
	var gaps []time.Duration
	var total time.Duration // of the gaps: on a slow machine, all else takes longer
	for len(gaps) < rounds && total < roundsLimit {
		var there *unstructured.Unstructured
		if err := poll.Until(ctx, 20*time.Millisecond, s.patience, func(ctx context.Context) (err error) {
			there, err = s.child(ctx, w, owner)
			return err
		}); err != nil {
			return err
		}
		s.eventless(ctx)
		if err := s.Inject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: http.StatusInternalServerError}); err != nil {
			return err
		}
		fault := s.Injections[len(s.Injections)-1]
		since := time.Now()
		if err := children.Delete(ctx, there.GetName(), thisOne(there)); err != nil {
			return err
		}
		var gap time.Duration
		if err := poll.Until(ctx, 20*time.Millisecond, s.patience, func(ctx context.Context) error {
			if fault.Struck() == 0 {
				return errors.New("nobody has made it anew")
			}
			all := s.requests(match)
			at := slices.IndexFunc(all, func(r faultproxy.Request) bool {
				return r.Code == http.StatusInternalServerError && r.Started.After(since)
			})
			if at < 0 || at+1 >= len(all) {
				return errors.New("it did not try again")
			}
			gap = all[at+1].Started.Sub(all[at].Started)
			return nil
		}); err != nil {
			if fault.Struck() == 0 || len(gaps) == 0 || slices.Max(gaps) <= 4*gaps[0] || ctx.Err() != nil {
				return &failure{kind: waited, step: &Step{Verb: wait, Object: there}, cause: &Step{Verb: remove, Object: there}, detail: "  " + err.Error()}
			}
			gaps = append(gaps, time.Since(since)) // longer than anybody waits
			break
		}
		gaps = append(gaps, gap)
		total += gap
	}
	// An event that comes late has a failure tried again before its time, so one of the last gaps is not
	// enough. Nor is one of the first: whoever looks every few seconds may be about to look when it fails.
	first, longest := slices.Max(gaps[:min(3, len(gaps))]), slices.Max(gaps[max(0, len(gaps)-3):])
	if longest > longAtLast && longest > 4*first {
		return &failure{kind: forgetful, detail: fmt.Sprintf("  %s after one of the first failures, %s after one of the last", first.Round(time.Millisecond), longest.Round(time.Millisecond))}
	}
	return nil
}

// eventless waits until no watch has brought anything for a while, but for two seconds at most.
func (s *scene) eventless(ctx context.Context) {
	before, since := s.events(), time.Now()
	for end := since.Add(2 * time.Second); time.Since(since) < 300*time.Millisecond && time.Now().Before(end) && ctx.Err() == nil; {
		crash.Sleep(ctx, 50*time.Millisecond)
		if now := s.events(); !maps.Equal(now, before) {
			before, since = now, time.Now()
		}
	}
}

// Bounds of what a controller may need for 900 objects more.
const (
	bulk       = 1000
	bulkPeople = 10               // who make them
	bulkFor    = 40 * time.Second // at most
	perObject  = 100 << 10        // bytes of memory
	moreEach   = 1.5              // times the requests for each of the first hundred
)

// thousand compares what the first hundred objects cost with what nine hundred more do.
func thousand(ctx context.Context, s *scene) error {
	var steps []Step
	for _, step := range s.contract.Hundred {
		if step.Verb == apply {
			steps = append(steps, step)
		}
	}
	made := func(from, to int) (requests int, memory int64, err error) {
		before := s.total()
		end := time.Now().Add(bulkFor)
		todo := make(chan int)
		errs := make(chan error, bulkPeople)
		var wg sync.WaitGroup
		for range bulkPeople {
			wg.Go(func() {
				for n := range todo {
					for _, step := range steps {
						one, err := numbered(step, n)
						if err == nil {
							err = s.do(ctx, one, nil)
						}
						if err != nil {
							select {
							case errs <- err:
							default:
							}
							return
						}
					}
				}
			})
		}
	send:
		for n := from; n <= to; n++ {
			select {
			case todo <- n:
			case err = <-errs:
				break send
			case <-ctx.Done():
				err = context.Cause(ctx)
				break send
			}
		}
		close(todo)
		wg.Wait()
		if err != nil {
			return 0, 0, err
		}
		// Until it is calm, or the time is over: a slow one is not at fault here.
		for last, since := s.total(), time.Now(); time.Since(since) < 2*time.Second && time.Now().Before(end) && ctx.Err() == nil; {
			crash.Sleep(ctx, 100*time.Millisecond)
			if now := s.total(); now != last {
				last, since = now, time.Now()
			}
		}
		return s.total() - before, memoryOf(s.program(0).Pid()), ctx.Err()
	}
	few, memory, err := made(1, 100)
	if err != nil {
		return err
	}
	many, memoryMany, err := made(101, bulk)
	if err != nil {
		return err
	}
	s.Strikes.Add(bulk)
	const more = bulk - 100
	if float64(many)/more > moreEach*float64(few)/100+0.5 {
		return &failure{kind: growing, detail: fmt.Sprintf("  %.1f requests for each of the first hundred, %.1f for each of the others", float64(few)/100, float64(many)/more)}
	}
	if memory > 0 && memoryMany-memory > more*perObject {
		return &failure{kind: growing, detail: fmt.Sprintf("  %d KiB of memory for each object, at most %d are reasonable", (memoryMany-memory)/more>>10, perObject>>10)}
	}
	if done, err := s.served(ctx); err != nil || !done {
		return err
	}
	return s.repaired(ctx)
}

// served fails if the controller rests although not all has come that people wait for. It says whether
// all has: a slow controller is not at fault here.
func (s *scene) served(ctx context.Context) (done bool, err error) {
	writes := func() int {
		kept, forgotten := s.Proxy.Count(writes)
		return kept + forgotten
	}
	end := time.Now().Add(s.contract.Settle + 10*time.Second)
	for last, since := writes(), time.Now(); time.Now().Before(end) && ctx.Err() == nil; crash.Sleep(ctx, 500*time.Millisecond) {
		f, err := s.unserved(ctx)
		if f == nil || err != nil {
			return err == nil, err
		}
		if now := writes(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > s.contract.Settle {
			return false, f
		}
	}
	return false, ctx.Err()
}

// unserved is the last of the thousand objects for which something has not come; nil if all has.
func (s *scene) unserved(ctx context.Context) (*failure, error) {
	for i, step := range s.contract.Hundred {
		if step.Verb == apply {
			continue
		}
		if step.Verb != wait {
			return nil, nil
		}
		list, err := s.list(ctx, step.Object.GetAPIVersion(), step.Object.GetKind(), "")
		if err != nil {
			return nil, err
		}
		for n := bulk; n > 0; n-- {
			one, err := numbered(step, n)
			if err != nil {
				return nil, err
			}
			at := slices.IndexFunc(list, func(o unstructured.Unstructured) bool { return holds(o.Object, one.Object.Object) })
			if at >= 0 {
				list = slices.Delete(list, at, at+1)
				continue
			}
			f := &failure{kind: waited, step: &one, theirs: s.contract.theirs(one), detail: fmt.Sprintf("  %s: for number %d of %d", step.where, n, bulk)}
			if cause := lastChange(s.contract.Hundred[:i]); cause != nil {
				made, err := numbered(*cause, n)
				if err != nil {
					return nil, err
				}
				f.cause = &made
			}
			return f, nil
		}
	}
	return nil, nil
}

// repaired has somebody delete what was made for the last one, where the contract has people do that.
func (s *scene) repaired(ctx context.Context) error {
	w := s.undisturbed.ward()
	made := s.contract.Hundred[0]
	if w == nil || made.Verb != apply || made.Object.GetKind() != w.step.Object.GetKind() || !s.restores(w) {
		return nil
	}
	made, err := numbered(made, bulk)
	if err != nil {
		return err
	}
	client, err := s.client(made.Object.GetAPIVersion(), made.Object.GetKind())
	if err != nil {
		return err
	}
	owner, err := client.Get(ctx, made.Object.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	there, err := s.child(ctx, w, owner)
	if errors.Is(err, errNoChild) {
		return nil // the contract does not say that it has one
	}
	if err != nil {
		return err
	}
	if err := s.of(w.request).Delete(ctx, there.GetName(), thisOne(there)); err != nil {
		return err
	}
	err = s.patiently(ctx, s.patience, func(ctx context.Context) error {
		_, err := s.child(ctx, w, owner)
		return err
	})
	if err != nil && ctx.Err() == nil {
		return &failure{kind: waited, step: &Step{Verb: wait, Object: there}, cause: &Step{Verb: remove, Object: there}, detail: "  " + err.Error()}
	}
	return err
}

// restores says whether people of the scenario delete what the controller makes for its ward, and wait for it.
func (s *scene) restores(w *ward) bool {
	return slices.ContainsFunc(s.contract.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(step Step) bool {
			mapping, err := s.mapping(step.Object.GetAPIVersion(), step.Object.GetKind())
			return step.Verb == remove && !s.contract.theirs(step) && err == nil && concerns(w.request, mapping)
		})
	})
}

// total is how many requests there were, watches and Events left out.
func (s *scene) total() int {
	all, forgotten := s.Proxy.Count(faultproxy.Match{If: asks})
	return all + forgotten
}

// asks says whether a request costs the API server something each time that it is sent.
func asks(r faultproxy.Request) bool {
	return r.Resource != "" && r.Resource != "events" && !elects(r) && !strings.HasPrefix(r.Verb, "watch")
}

// memoryOf is the resident memory of a process in bytes; 0 where that is not to be known.
func memoryOf(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
