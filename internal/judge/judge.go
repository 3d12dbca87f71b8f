// Package judge is a crash test for any controller: a process in any language that
// reaches its cluster through KUBECONFIG.
//
// A contract says what people do to the controller's objects. The undisturbed run says
// what comes of that. Every other case plays the same with one thing going wrong, and
// demands the same end state within a bound, calm afterwards, that nobody else's object
// was touched, and that the fault did strike. The witness is a proxy in front of a real
// API server. What the controller itself says is shown, and never believed.
//
// Each case has a namespace, a proxy and a process of its own. What is left to chance
// comes from the seed; when exactly a request arrives is the machine's to say.
package judge

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Options say what to judge.
type Options struct {
	Workspace  workspace.Workspace
	Controller string // a command; {{.Namespace}} and {{.Kubeconfig}} stand for those of a case
	Contract   string // the folder
	Name       string // of the contract, as it was asked for
	Level      int    // all that the contract has if zero
	Seeds      int
	Seed       uint64 // only this one; new ones if zero
	Only       string // only cases whose names match this pattern
	Cluster    string // one that may be used; empty for one of its own

	Shrink bool   // makes the first case that fails as small as it gets, and records it
	Replay string // a file that was recorded so: what is judged, and how, comes from there

	contract *Contract
	only     *regexp.Regexp
	tracks   map[string]int // of a recording
	window   crash.Window   // of a recording
}

// A Result is what has become of a case.
type Result struct {
	Case      string   `json:"case"`
	Level     int      `json:"level"`
	Seed      uint64   `json:"seed"`
	Verdict   string   `json:"verdict"` // passed, failed, or unjudged
	Struck    int      `json:"struck"`  // how often the fault did
	Seconds   float64  `json:"seconds"`
	Diagnosis string   `json:"diagnosis,omitempty"`
	Details   []string `json:"details,omitempty"`
	Requests  []string `json:"requests,omitempty"`
	Repeat    string   `json:"repeat,omitempty"`

	state    state
	scene    *scene
	failure  *failure
	requests []faultproxy.Request
	fatal    error // nothing at all can be judged
}

// The verdicts.
const (
	passed   = "passed"
	failed   = "failed"
	unjudged = "unjudged"
)

// A Verdict is about a controller.
type Verdict struct {
	Controller string   `json:"controller"`
	Contract   string   `json:"contract"`
	Only       string   `json:"only,omitempty"` // the cases that were played
	Asked      int      `json:"asked"`
	Reached    int      `json:"reached"` // of the cases that were played
	Cases      []Result `json:"cases"`
	Role       string   `json:"role"`                // the smallest one for all that it has asked for
	Recording  string   `json:"recording,omitempty"` // the file
	Seconds    float64  `json:"seconds"`
}

// ExitCode is 0 if the level was reached that was asked for, 1 if not, and 2 if that is not known.
func (v *Verdict) ExitCode() int {
	code := 0
	for _, r := range v.Cases {
		switch {
		case r.Verdict == failed:
			return 1
		case r.Verdict == unjudged:
			code = 2
		}
	}
	return code
}

// Judge plays the cases. out shows how it goes on, and what fails.
func Judge(ctx context.Context, o Options, out io.Writer) (v *Verdict, err error) {
	if o.Replay != "" {
		if err := o.replay(); err != nil {
			return nil, err
		}
	}
	if o.Level < 0 || o.Level >= len(Levels) {
		return nil, unusable("LEVEL=%d: there is no such level; they are %s", o.Level, levels())
	}
	if o.only, err = regexp.Compile(o.Only); err != nil {
		return nil, unusable("CASE=%s: %w", o.Only, err)
	}
	if o.contract, err = Load(o.Contract); err != nil {
		return nil, Unusable{err}
	}
	if o.Level == 0 {
		o.Level = o.contract.levels()
	}
	if err := o.contract.allows(o); err != nil {
		return nil, err
	}
	if o.tracks != nil {
		o.contract = o.contract.reduced(o.tracks)
	}
	if _, err := expand(o.Controller, place{}); err != nil {
		return nil, err
	}
	l, err := openLab(ctx, o, out)
	defer func() { err = errors.Join(err, interrupt.CleanUp(l.close())) }()
	if err != nil {
		return nil, err
	}
	if !l.sideBySide() {
		fmt.Fprintln(out, "The cases run one after another, because the command does not learn its namespace: pass {{.Namespace}} to it in CONTROLLER, and they run side by side")
	}
	start := time.Now()
	v = &Verdict{Controller: o.Controller, Contract: o.contract.Name, Only: o.Only, Asked: o.Level}
	var requests []faultproxy.Request
	for range max(1, o.Seeds) {
		seed := o.Seed
		if seed == 0 {
			seed = uint64(rand.Uint32()) // short enough to be typed
		}
		fmt.Fprintf(out, "Seed %d\n", seed)
		results, err := matrix(ctx, l, o, seed, out)
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			v.Cases = append(v.Cases, r)
			requests = append(requests, r.requests...)
		}
		if at := slices.IndexFunc(results, func(r Result) bool { return r.Verdict == failed && r.scene != nil }); at >= 0 && o.Shrink {
			if v.Recording, err = l.shrink(ctx, results[at], out); err != nil {
				return nil, err
			}
			break
		}
		if o.Seed != 0 {
			break
		}
	}
	v.Seconds = time.Since(start).Round(time.Second).Seconds()
	v.Role = role(o.contract.Name, requests)
	for level := 1; level <= o.Level && v.through(level); level++ {
		v.Reached = level
	}
	return v, nil
}

func (v *Verdict) count(verdict string) (n int) {
	for _, r := range v.Cases {
		if r.Verdict == verdict {
			n++
		}
	}
	return n
}

// through says whether all cases of a level have passed that were played, and what they are compared with.
func (v *Verdict) through(level int) bool {
	for _, r := range v.Cases {
		if r.Level == level && r.Verdict != passed || r.Case == undisturbed && r.Verdict != passed {
			return false
		}
	}
	return true
}

// sideBySide is how many cases run at the same time if the controller can be kept to a namespace.
const sideBySide = 12

// matrix plays all cases of a seed.
func matrix(ctx context.Context, l *lab, o Options, seed uint64, out io.Writer) (results []Result, err error) {
	parallel := 1
	if l.sideBySide() {
		parallel = sideBySide
	}
	if limit := o.contract.Copies; limit > 0 {
		parallel = min(parallel, limit)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	first := l.play(ctx, workCases(o.contract)[0], seed, nil)
	results = []Result{first}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if first.fatal != nil {
		return nil, first.fatal
	}
	if first.Verdict != passed {
		first.show(out)
		fmt.Fprintln(out, "The other cases were not played: they are compared with this one")
		return results, nil
	}
	written := len(first.scene.requests(writes))
	fmt.Fprintf(out, "  the undisturbed run took %.1fs, with %d writes\n", first.Seconds, written)
	all := l.cases(first.scene, o.Only, o.Level)
	var chosen []*Case
	var names []string
	for _, c := range all {
		if limit := o.contract.Copies; limit > 0 && c.Copies > limit {
			fmt.Fprintf(out, "  left out: %s, because bounds.copies of the contract is %d\n", c.Name, limit)
			continue
		}
		if names = append(names, c.Name); o.only.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 && !o.only.MatchString(undisturbed) {
		return nil, unusable("CASE=%s names none of the cases: %s, %s", o.Only, undisturbed, strings.Join(names, ", "))
	}

	var mu sync.Mutex
	var ended atomic.Int64
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(15 * time.Second):
				fmt.Fprintf(out, "  %d of %d cases so far\n", ended.Load(), len(chosen))
			}
		}
	}()
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	start := func(c *Case) {
		slots <- struct{}{} // or they would not begin in their order
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			r := l.play(ctx, c, seed, &first)
			ended.Add(1)
			mu.Lock()
			defer mu.Unlock()
			if results = append(results, r); r.Verdict != passed && ctx.Err() == nil {
				r.show(out)
			}
			if r.fatal != nil {
				stop(r.fatal)
			}
		})
	}
	slices.SortStableFunc(chosen, func(a, b *Case) int {
		switch {
		case a.long == b.long:
			return 0
		case a.long:
			return -1
		}
		return 1
	})
	for _, alone := range []bool{false, true} {
		for _, c := range chosen {
			if c.Alone != alone {
				continue
			}
			if start(c); alone {
				wg.Wait()
			}
		}
		wg.Wait()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// In the order of the levels, whichever has ended first.
	slices.SortFunc(results[1:], func(a, b Result) int { return slices.Index(names, a.Case) - slices.Index(names, b.Case) })
	return results, nil
}

// cases are those up to a level, without the undisturbed one, which comes first. One that is asked for by its name is among them.
func (l *lab) cases(first *scene, asked string, level int) []*Case {
	all := workCases(l.contract)[1:]
	if level >= 2 {
		all = append(all, selfCases(l.contract, groupsOf(asked, len(first.requests(writes))))...)
	}
	if level >= 3 {
		all = append(all, wireCases(l.contract, first.busy, l.own)...)
	}
	if level >= 4 {
		all = append(all, otherCases(first, l.own)...)
	}
	if level >= 5 {
		all = append(all, citizenCases(first)...)
	}
	if level >= 6 {
		all = append(all, outsideCases(l.contract, first.outside, asked)...)
	}
	return all
}

// play plays a case; undisturbed is nil for that one itself.
func (l *lab) play(ctx context.Context, c *Case, seed uint64, undisturbed *Result) Result {
	if c.look != nil {
		r := Result{Case: c.Name, Level: c.Level, Seed: seed, Verdict: passed, scene: undisturbed.scene}
		if f := c.look(undisturbed.scene); f != nil {
			r.failed(c, f, undisturbed.scene)
		}
		return r
	}
	h := fnv.New64()
	fmt.Fprint(h, c.Name)
	s := &scene{lab: l, Case: c, seed: seed, script: rand.New(rand.NewPCG(seed, 1)), Faults: &crash.Faults{Chance: rand.New(rand.NewPCG(seed, h.Sum64())), Window: l.window},
		bystanders: map[string]*unstructured.Unstructured{}, rivals: map[types.UID]rivalry{}, next: make([]int, len(l.contract.Scenario)), peopleDone: make(chan struct{}), patience: l.contract.Settle + c.more, programs: make([]*program, max(1, c.Copies))}
	if undisturbed != nil {
		s.want, s.awaited, s.watches, s.undisturbed = undisturbed.state, undisturbed.scene.awaited, undisturbed.scene.watches, undisturbed.scene
	}
	s.begun = time.Now()
	r := Result{Case: c.Name, Level: c.Level, Seed: seed, Verdict: passed, scene: s}
	var err error
	r.state, err = s.act(ctx)
	r.Seconds = time.Since(s.begun).Round(100 * time.Millisecond).Seconds()
	r.Struck = s.Struck()
	r.requests = s.requests(faultproxy.Match{})
	var f *failure
	var u Unusable
	switch {
	case errors.As(err, &f):
		r.failed(c, f, s)
	case errors.As(err, &u):
		r.Verdict, r.Diagnosis, r.fatal = unjudged, u.Error(), u
	case err != nil:
		r.Verdict, r.Diagnosis = unjudged, err.Error()
		if undisturbed == nil {
			r.fatal = err
		}
	case r.Struck == 0 && !c.maybe && (c.inject != nil || c.around != nil):
		r.Verdict, r.Diagnosis = unjudged, "The fault never struck, so this says nothing: give the contract's scenario more to do."
	}
	if s.hub != nil {
		_ = s.hub.Close() // what it has recorded stays
	}
	if err := s.leave(ctx); err != nil && r.fatal == nil && ctx.Err() == nil {
		r.fatal = fmt.Errorf("removing the namespace of a case: %w", err)
	}
	return r
}

// failed puts down what a controller has done wrong in a scene.
func (r *Result) failed(c *Case, f *failure, s *scene) {
	f.requests = s.evidence(f)
	says, cure := c.diagnosis(f)
	r.failure, r.Verdict, r.Diagnosis, r.Details = f, failed, says, f.details()
	if cure != "" {
		r.Details = append(r.Details, fmt.Sprintf("  the cure: %s", cures[cure]))
	}
	for _, request := range f.requests {
		r.Requests = append(r.Requests, line(request, s.begun))
	}
	for _, call := range f.calls[:min(len(f.calls), 4)] {
		r.Requests = append(r.Requests, call.line(s.begun))
	}
	r.Repeat = fmt.Sprintf("make judge CONTROLLER=%s CONTRACT=%s SEED=%d CASE=%s", quote(s.asked.Controller), quote(s.asked.Name), r.Seed, quote("^"+regexp.QuoteMeta(c.Name)+"$"))
}

// quote is for a shell that calls make.
func quote(text string) string {
	return strings.ReplaceAll(proc.Quoted(text), "$", "$$")
}

// show prints what went wrong.
func (r Result) show(out io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s: level %d, %s (seed %d)\n%s\n", strings.ToUpper(r.Verdict), r.Level, r.Case, r.Seed, r.Diagnosis)
	for _, detail := range r.Details {
		fmt.Fprintln(&b, detail)
	}
	for _, request := range r.Requests {
		fmt.Fprintln(&b, "  "+request)
	}
	if r.Repeat != "" {
		fmt.Fprintf(&b, "Once more: %s\n", r.Repeat)
	}
	_, _ = io.WriteString(out, b.String()+"\n") // in one piece, as several cases may end at the same time
}

// Print shows the table and the role.
func (v *Verdict) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nLEVEL\tNAME\tCASES\tPASSED\tFAULTS\tSLOWEST\tVERDICT")
	for level := 1; level <= v.Asked; level++ {
		cases, good, struck, slowest := 0, 0, 0, 0.0
		verdict := passed
		for _, r := range v.Cases {
			if r.Level != level {
				continue
			}
			cases++
			struck += r.Struck
			slowest = max(slowest, r.Seconds)
			switch {
			case r.Verdict == passed:
				good++
			case verdict != failed:
				verdict = r.Verdict
			}
		}
		if cases == 0 {
			verdict = "not played"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%.1fs\t%s\n", level, Levels[level], cases, good, struck, slowest, verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if v.Role != "" {
		fmt.Fprintf(out, "\nThe smallest Role for what it has asked for:\n%s", v.Role)
	}
	said := "no level was reached"
	if v.Reached > 0 {
		said = fmt.Sprintf("level %d (%s) was reached", v.Reached, Levels[v.Reached])
	}
	if v.Only != "" {
		said = fmt.Sprintf("of the cases that match %s, %d failed", v.Only, v.count(failed))
		if n := v.count(unjudged); n > 0 {
			said += fmt.Sprintf(", and %d could not be judged", n)
		}
	}
	_, err := fmt.Fprintf(out, "\nVerdict after %.0fs: %s\n", v.Seconds, said)
	return err
}

// Usage says how to judge a controller.
func Usage(ws workspace.Workspace) string {
	return fmt.Sprintf(`what is to be judged?
  make judge CONTROLLER='go run ./06-controller/icecream -namespace {{.Namespace}}' CONTRACT=icecream
    CONTROLLER  a command that reaches the cluster through KUBECONFIG; {{.Namespace}} stands for where it has to work,
                and {{.Outside}} for the address of what is not in Kubernetes, if the contract has an outside
    CONTRACT    what it has to do: %s, or a folder of your own; %s describes the format
    LEVEL=3     how far: %s; the default is all
    SEEDS=1, SEED=7, CASE=regexp, JSON=1; CLUSTER= uses a cluster instead of making one
    SHRINK=1    makes the first case that fails as small as it gets, and records it
  make judge REPLAY=file plays a recording again; the X-ray of make web opens it, too`,
		strings.Join(Contracts(ws), ", "), Format, levels())
}

func levels() string {
	var all []string
	for level := 1; level < len(Levels); level++ {
		all = append(all, fmt.Sprintf("%d (%s)", level, Levels[level]))
	}
	return strings.Join(all, ", ")
}
