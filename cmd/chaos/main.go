// Command chaos lets the two controllers of step 06 work while everything goes
// wrong, and checks that nobody can tell afterwards.
//
// For each fault it plays the same scenario that an undisturbed controller has
// played before: people create, change and delete objects. The controller has to
// bring the namespace to the state of the undisturbed run, has to leave it so for
// two resyncs without a write, and must not have evicted wrongly at any time;
// audit.go says what that means. A fault that never struck is a failure.
//
// It starts a kwok cluster of its own and removes it at the end. Each case has a
// namespace, a fault proxy and a controller of its own, so most of them run side
// by side; those that restart the API server or etcd run after the others. What
// is left to chance comes from the seed: which pods, which order, which request.
// When exactly a request arrives is the machine's to say.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/proc"
)

func main() {
	ctx, stop := interrupt.Context()
	ctx, cancel := proc.EndWithReader(ctx)
	defer cancel()
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	seeds := flag.Int("seeds", 1, "how many seeds to try")
	seed := flag.Uint64("seed", 0, "try only this seed (default: new ones)")
	parallel := flag.Int("parallel", 12, "how many cases run side by side")
	only := flag.String("run", "", "only the faults whose name matches this regular expression")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if all := names(); !slices.ContainsFunc(all, pattern.MatchString) {
		return fmt.Errorf("-run=%s matches none of the faults: %s", pattern, strings.Join(all, ", "))
	}
	if *seeds < 1 || *parallel < 1 {
		return errors.New("-seeds and -parallel must be at least 1")
	}

	l, err := openLab(ctx)
	defer func() { err = errors.Join(err, l.close()) }()
	if err != nil {
		return err
	}
	t := &table{rows: map[string]*row{}}
	for range *seeds {
		s := *seed
		if s == 0 {
			s = uint64(rand.Uint32()) // short enough to be typed
		}
		fmt.Printf("Seed %d; make chaos SEED=%[1]d repeats it\n", s)
		start := time.Now()
		failed := t.failed
		matrix(ctx, l, s, *parallel, pattern, t)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Printf("Seed %d: %d of its cases failed, %s\n", s, t.failed-failed, time.Since(start).Round(time.Second))
		if *seed != 0 {
			break
		}
	}
	fmt.Println()
	if err := t.print(); err != nil {
		return err
	}
	return t.verdict()
}

// names are those of all faults.
func names() []string {
	var all []string
	for _, f := range slices.Concat(faults, kills(make([]faultproxy.Request, 1))) { // any write will do
		all = append(all, f.name)
	}
	for _, r := range restarts {
		all = append(all, r.name)
	}
	return all
}

// matrix plays every fault against both controllers.
func matrix(ctx context.Context, l *lab, seed uint64, parallel int, only *regexp.Regexp, t *table) {
	slots := make(chan struct{}, max(parallel, len(subjects))) // a restart strikes all subjects at once
	var wg sync.WaitGroup
	var begun, ended atomic.Int64
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		tick := time.NewTicker(15 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Printf("  %d of %d cases so far\n", ended.Load(), begun.Load())
			case <-finished:
				return
			}
		}
	}()
	start := func(c *scene, done func(result)) {
		begun.Add(1)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			defer ended.Add(1)
			r := c.play(ctx)
			if ctx.Err() == nil { // what an interrupt has cut off has not failed
				done(r)
			}
		})
	}

	// What the others are compared with: a scenario, and a small one with few
	// writes, of which each is a case of its own.
	type world struct {
		*subject
		small bool
	}
	undisturbed := map[world]result{}
	var mu sync.Mutex
	for _, s := range subjects {
		for _, small := range []bool{false, true} {
			start(newScene(l, s, undisturbedRun, seed, small), func(r result) {
				mu.Lock()
				defer mu.Unlock()
				undisturbed[world{s, small}] = r
				t.add(r)
			})
		}
	}
	wg.Wait()
	with := func(s *subject, f *fault, small bool) *scene {
		c := newScene(l, s, f, seed, small)
		c.want = undisturbed[world{s, small}].state
		return c
	}

	for _, s := range subjects {
		for _, f := range faults {
			if f.inject[s.name] != nil && only.MatchString(f.name) {
				start(with(s, f, false), t.add)
			}
		}
		writes := undisturbed[world{s, true}].written
		for _, f := range kills(writes) {
			if only.MatchString(f.name) {
				start(with(s, f, true), t.add)
			}
		}
	}
	wg.Wait()

	for _, f := range restarts {
		if !only.MatchString(f.name) || ctx.Err() != nil {
			continue
		}
		b := newBlow(len(subjects))
		for _, s := range subjects {
			c := with(s, f.fault(), false)
			c.blow = b
			start(c, t.add)
		}
		b.strike(ctx, func(proxies []*faultproxy.Proxy) error {
			return f.restart(ctx, l, rand.New(rand.NewPCG(seed, 3)), proxies)
		})
		wg.Wait()
	}
}

// A table adds up what has become of the cases.
type table struct {
	mu       sync.Mutex
	rows     map[string]*row
	failed   int
	failures []string
}

type row struct {
	fault, subject                                       string
	cases, struck, missed, failed, writes, evictions, no int
	slowest, sum                                         time.Duration
}

func (t *table) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := r.fault.name + "\x00" + r.subject.name
	line := t.rows[key]
	if line == nil {
		line = &row{fault: r.fault.name, subject: r.subject.name, no: r.fault.order}
		t.rows[key] = line
	}
	line.cases++
	line.struck += r.struck
	line.writes += len(r.written)
	line.evictions += r.evictions
	line.sum += r.took
	line.slowest = max(line.slowest, r.took)
	if r.missed {
		line.missed++
	}
	if r.err != nil {
		line.failed++
		t.failed++
		why, _, _ := strings.Cut(r.err.Error(), "\n")
		t.failures = append(t.failures, fmt.Sprintf("seed %d: %s, %s: %s", r.seed, r.title, r.subject.name, why))
		fmt.Printf("\n--- FAILED: seed %d, %s, %s (namespace %s): %v\n%s\n", r.seed, r.title, r.subject.name, r.namespace, r.err, r.log)
	}
}

func (t *table) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tCONTROLLER\tCASES\tSTRUCK\tCONVERGED IN (MEAN, MAX)\tWRITES\tEVICTIONS\tRESULT")
	rows := make([]*row, 0, len(t.rows))
	for _, r := range t.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *row) int {
		if a.no != b.no {
			return a.no - b.no
		}
		return strings.Compare(a.fault+a.subject, b.fault+b.subject)
	})
	for _, r := range rows {
		verdict := "ok"
		if r.failed > 0 {
			verdict = fmt.Sprintf("%d FAILED", r.failed)
		}
		if r.missed > 0 {
			verdict += fmt.Sprintf(" (%d cases made fewer writes)", r.missed)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1fs, %.1fs\t%d\t%d\t%s\n", r.fault, r.subject, r.cases, r.struck,
			r.sum.Seconds()/float64(r.cases), r.slowest.Seconds(), r.writes, r.evictions, verdict)
	}
	return w.Flush()
}

// verdict is nil if every case has passed and every fault has struck.
func (t *table) verdict() error {
	var errs []error
	if t.failed > 0 {
		errs = append(errs, fmt.Errorf("%d cases failed:\n  %s", t.failed, strings.Join(t.failures, "\n  ")))
	}
	for _, r := range t.rows {
		// One that has failed may have ended before its strikes were counted.
		if r.struck == 0 && r.failed == 0 && r.fault != undisturbedRun.name {
			errs = append(errs, fmt.Errorf("the fault %q never struck %s", r.fault, r.subject))
		}
	}
	return errors.Join(errs...)
}
