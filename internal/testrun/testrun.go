// Package testrun runs go test and shows what it is doing: which tests run while
// they run, the whole output of those that fail, and at the end what was skipped
// and why, and which tests took longest.
package testrun

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
	"gotest.tools/gotestsum/testjson"

	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/terminal"
)

// A Run is one run of tests.
type Run struct {
	Dir string   // where go is started
	Env []string // as in exec.Cmd
	Out *os.File // a terminal shows the running tests in one line that changes

	// Jobs are each the arguments of one go test, in the order in which they begin.
	Jobs [][]string

	// Seats are where jobs run, one at a time in each: what a seat adds to the environment
	// of its jobs, such as a cluster of its own. Without seats all jobs run side by side.
	Seats [][]string

	Chosen bool // the jobs name tests, so that none is an error

	// Rerun runs a few tests that failed once more, alone, and the run is green if they
	// pass. It names them.
	Rerun bool
}

// Tests runs the tests and returns an error unless all of them have passed and
// left nothing: neither a process nor, where they were interrupted, a file.
func (r Run) Tests(ctx context.Context) error {
	failed, err := r.once(ctx)
	if err != nil && r.Rerun && len(failed) > 0 {
		err = r.clear(ctx, failed)
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the tests did not pass: %w", err)
	}
	return err
}

// once runs the tests. If some did not pass, it also returns those that may run again.
func (r Run) once(ctx context.Context) (failed []failure, err error) {
	// Tests that are killed leave their temporary folders.
	tmp, err := os.MkdirTemp("", "workshop-tests-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	r.Env = append(slices.Clone(r.Env), "TMPDIR="+tmp)

	d := newDisplay(r.Out)
	quiet := context.AfterFunc(ctx, d.interrupted)
	defer quiet()
	stop := d.showProgress()
	events, lines := io.Pipe()
	errs := make([]error, len(r.Jobs))
	seats := r.Seats
	if seats == nil {
		seats = make([][]string, len(r.Jobs))
	}
	waiting := make(chan int, len(r.Jobs))
	for i := range r.Jobs {
		waiting <- i
	}
	close(waiting)
	var seated sync.WaitGroup
	for _, seat := range seats {
		seated.Go(func() {
			for i := range waiting {
				if ctx.Err() == nil {
					errs[i] = r.job(ctx, d, lines, r.Jobs[i], seat)
				}
			}
		})
	}
	go func() {
		seated.Wait()
		_ = lines.Close()
	}()
	tests, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: events, Handler: d, IgnoreNonJSONOutputLines: true})
	_ = events.CloseWithError(err) // nothing reads what the jobs still write
	seated.Wait()
	stop()
	if ctx.Err() != nil {
		return nil, errors.Join(append(errs, context.Cause(ctx))...)
	}
	d.summary(tests)
	if r.Chosen && err == nil && tests.Total() == 0 {
		err = errors.New("no test has such a name")
	}
	if err == nil {
		failed = r.again(tests, errs)
	}
	return failed, errors.Join(append(errs, err)...)
}

// unclean is what no second run can clear.
type unclean struct{ error }

// job runs one go test in a seat, and writes its events to lines as whole lines, so that
// those of several jobs do not mix.
func (r Run) job(ctx context.Context, d *display, lines io.Writer, args, seat []string) error {
	reader, writer := io.Pipe()
	var read sync.WaitGroup
	read.Go(func() {
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			if _, err := fmt.Fprintf(lines, "%s\n", scanner.Bytes()); err != nil {
				_ = reader.CloseWithError(err)
				return
			}
		}
		_ = reader.CloseWithError(scanner.Err())
	})
	// The grace is for tests to clean up.
	p, err := proc.Start(ctx, proc.Cmd{Path: "go", Args: append([]string{"test", "-json"}, args...), Dir: r.Dir, Env: slices.Concat(r.Env, seat),
		Out: writer, Err: d, Grace: time.Minute, Session: true})
	if err == nil {
		err = p.Wait()
	}
	_ = writer.Close()
	read.Wait()
	if p == nil {
		return err
	}
	left, leftErr := p.KillSession(context.WithoutCancel(ctx))
	// A test that is interrupted dies without its clean-up unless it uses the test environment.
	if len(left) > 0 && ctx.Err() == nil {
		leftErr = errors.Join(leftErr, fmt.Errorf("tests have left processes running, which are ended now:\n  %s", strings.Join(left, "\n  ")))
	}
	if leftErr != nil {
		return errors.Join(err, interrupt.CleanUp(unclean{leftErr}))
	}
	return err
}

// display shows the events of tests as testjson reads them.
type display struct {
	tty     bool
	started time.Time

	mu      sync.Mutex
	out     io.Writer
	ended   bool                            // by an interrupt: what fails now fails because of it
	status  string                          // the line that changes, as it is now
	running map[string]map[string]time.Time // since when, by package and test
}

func newDisplay(out *os.File) *display {
	return &display{out: out, tty: term.IsTerminal(int(out.Fd())), started: time.Now(), running: map[string]map[string]time.Time{}}
}

// every is how often progress is shown where there is no terminal.
const every = 15 * time.Second

// showProgress shows what is running until the returned function is called.
func (d *display) showProgress() (stop func()) {
	interval := every
	if d.tty {
		interval = time.Second
	}
	stopped := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-tick.C:
				d.progress()
			}
		}
	})
	return func() {
		close(stopped)
		done.Wait()
		d.print("")
	}
}

func (d *display) progress() {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := fmt.Sprintf("  %s  %s", time.Since(d.started).Round(time.Second), d.now())
	if !d.tty {
		fmt.Fprintln(d.out, line)
		return
	}
	width := 80
	if f, ok := d.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	if runes := []rune(line); len(runes) >= width {
		line = string(runes[:width-2]) + "…"
	}
	d.print(line)
	d.status = line
}

// named is how many running tests of a package are named: those that run longest.
const named = 2

// now names what is running.
func (d *display) now() string {
	var parts []string
	for _, pkg := range slices.Sorted(maps.Keys(d.running)) {
		since := d.running[pkg]
		tests := slices.SortedFunc(maps.Keys(since), func(a, b string) int { return since[a].Compare(since[b]) })
		part := testjson.RelativePackagePath(pkg)
		for _, test := range tests[:min(len(tests), named)] {
			part += fmt.Sprintf(" %s %s", test, time.Since(since[test]).Round(time.Second))
		}
		if more := len(tests) - named; more > 0 {
			part += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "building tests"
	}
	return strings.Join(parts, " | ")
}

// print shows text in the place of the line that changes.
func (d *display) print(text string) {
	if d.status != "" {
		text = "\r\x1b[K" + text
		d.status = ""
	}
	_, _ = io.WriteString(d.out, text)
}

// Write shows what go itself has to say.
func (d *display) Write(data []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.print(string(data))
	}
	return len(data), nil
}

// Err shows a line that is no event.
func (d *display) Err(line string) error {
	_, err := d.Write([]byte(line + "\n"))
	return err
}

// interrupted ends the display, except for the progress of the clean-up.
func (d *display) interrupted() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.print("Interrupted; the tests are cleaning up\n")
}

// Event shows the output of a test that has failed, and a line for each package.
func (d *display) Event(e testjson.TestEvent, tests *testjson.Execution) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(e)
	if d.ended {
		return nil
	}
	var b strings.Builder
	p := tests.Package(e.Package)
	switch {
	case e.Action == testjson.ActionBuild:
		b.WriteString(e.Output)
	case e.Action == testjson.ActionFail && e.PackageEvent():
		_ = p.WriteOutputTo(&b, 0) // ends with go's own line for the package
	case e.Action == testjson.ActionFail:
		fmt.Fprintf(&b, "\n%s\n", terminal.Bold.Paint(d.out, testjson.RelativePackagePath(e.Package)+" "+e.Test))
		_ = p.WriteOutputTo(&b, p.LastFailedByName(e.Test).ID)
	case e.Action == testjson.ActionPass && e.PackageEvent() && p.Total > 0:
		fmt.Fprintf(&b, "%s    %-28s %6.1fs  %d tests, %d skipped\n", terminal.Green.Paint(d.out, "ok"),
			testjson.RelativePackagePath(e.Package), p.Elapsed().Seconds(), p.Total, len(p.Skipped))
	}
	if b.Len() > 0 {
		d.print(b.String())
	}
	return nil
}

// note keeps which tests are running.
func (d *display) note(e testjson.TestEvent) {
	tests := d.running[e.Package]
	switch {
	case e.Action == "start":
		d.running[e.Package] = map[string]time.Time{}
	case e.PackageEvent() && e.Action.IsTerminal():
		delete(d.running, e.Package)
	case tests == nil || strings.Contains(e.Test, "/"):
	case e.Action == testjson.ActionRun || e.Action == testjson.ActionCont:
		tests[e.Test] = time.Now()
	case e.Action == testjson.ActionPause || e.Action.IsTerminal() ||
		e.Action == testjson.ActionOutput && strings.HasPrefix(e.Output, "--- "): // its last event comes with the next test's
		delete(tests, e.Test)
	}
}

// slowest is how many tests the summary names.
const slowest = 10

func (d *display) summary(tests *testjson.Execution) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []testjson.TestCase
	for _, name := range tests.Packages() {
		all = append(all, tests.Package(name).TestCases()...)
	}
	all = slices.DeleteFunc(all, func(t testjson.TestCase) bool { return t.Test.IsSubTest() })
	if len(all) > slowest { // a few tests need no such list
		slices.SortStableFunc(all, func(a, b testjson.TestCase) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
		fmt.Fprintf(d.out, "\nThe %d slowest tests:\n", slowest)
		for _, t := range all[:slowest] {
			fmt.Fprintf(d.out, "%7.1fs  %s %s\n", t.Elapsed.Seconds(), testjson.RelativePackagePath(t.Package), t.Test)
		}
	}
	testjson.PrintSummary(d.out, tests, testjson.SummarizeAll)
}
