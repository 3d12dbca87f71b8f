// Package testrun runs go test and shows what it is doing: which tests run while
// they run, the whole output of those that fail, and at the end what was skipped
// and why, and which tests took longest.
package testrun

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/terminal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Run is one run of tests.
type Run struct {
	Dir string   // where go is started
	Env []string // as in exec.Cmd
	Out *os.File // a terminal shows the running tests in one line that changes

	// Lanes run side by side; each is the arguments of one go test.
	Lanes [][]string
}

// Tests runs the tests and returns an error unless all of them have passed and
// left nothing: neither a process nor, where they were interrupted, a file.
func (r Run) Tests(ctx context.Context) (err error) {
	// Tests that are killed leave their temporary folders.
	tmp, err := os.MkdirTemp("", "workshop-tests-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	r.Env = append(slices.Clone(r.Env), "TMPDIR="+tmp)

	d := newDisplay(r.Out)
	quiet := context.AfterFunc(ctx, d.interrupted)
	defer quiet()
	stop := d.showProgress()
	errs := make([]error, len(r.Lanes))
	var lanes sync.WaitGroup
	for i, args := range r.Lanes {
		lanes.Go(func() { errs[i] = r.lane(ctx, d, args) })
	}
	lanes.Wait()
	stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.summary()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the tests did not pass: %w", err)
	}
	return nil
}

func (r Run) lane(ctx context.Context, d *display, args []string) error {
	reader, writer := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		d.read(reader)
	}()
	// The grace is for tests to clean up.
	p, err := proc.Start(ctx, proc.Cmd{Path: "go", Args: append([]string{"test", "-json"}, args...), Dir: r.Dir, Env: r.Env,
		Out: writer, Err: d, Grace: time.Minute, Session: true})
	if err == nil {
		err = p.Wait()
	}
	_ = writer.Close()
	<-read
	if p == nil {
		return err
	}
	left, leftErr := p.Left(context.WithoutCancel(ctx))
	// A test that is interrupted dies without its clean-up unless it uses the test environment.
	if len(left) > 0 && ctx.Err() == nil {
		leftErr = errors.Join(leftErr, fmt.Errorf("tests have left processes running, which are ended now:\n  %s", strings.Join(left, "\n  ")))
	}
	return errors.Join(err, leftErr)
}

// event is what go test -json prints, one in each line; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

// A test is one test of a package, or with an empty name the package itself.
type test struct {
	pkg, name string
	begun     time.Time
	idle      bool // waits for its turn among parallel tests, or has just ended
	output    proc.Buffer
}

type result struct {
	pkg, name string
	took      time.Duration
	reason    string // of a skip
}

// display turns events into lines.
type display struct {
	tty     bool
	started time.Time

	mu                    sync.Mutex
	out                   io.Writer
	ended                 bool             // by an interrupt: what fails now fails because of it
	status                string           // the line that changes, as it is now
	running               map[string]*test // by package and name
	skipped, failed, slow []result
	tests, passed         int
	packages              int
	perPackage            map[string]*counts
}

type counts struct{ tests, skipped int }

func newDisplay(out *os.File) *display {
	return &display{out: out, tty: term.IsTerminal(int(out.Fd())), started: time.Now(),
		running: map[string]*test{}, perPackage: map[string]*counts{}}
}

// every is how often progress is shown where there is no terminal.
const every = 15 * time.Second

// showProgress shows what is running until the returned function is called.
func (d *display) showProgress() (stop func()) {
	interval := every
	if d.tty {
		interval = time.Second
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
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
	}()
	return func() {
		close(stopped)
		<-done
		d.mu.Lock()
		defer d.mu.Unlock()
		d.clear()
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
	d.clear()
	width := 80
	if f, ok := d.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	if runes := []rune(line); len(runes) >= width {
		line = string(runes[:width-2]) + "…"
	}
	d.status = line
	fmt.Fprint(d.out, line)
}

// named is how many running tests of a package are named.
const named = 2

// now names what is running: in each package the tests that do not wait.
func (d *display) now() string {
	byPackage := map[string][]*test{}
	for _, t := range d.running {
		tests := byPackage[t.pkg]
		if t.name != "" && !t.idle && !strings.Contains(t.name, "/") {
			tests = append(tests, t)
		}
		byPackage[t.pkg] = tests
	}
	if len(byPackage) == 0 {
		return "building tests"
	}
	var parts []string
	for pkg, tests := range byPackage {
		slices.SortFunc(tests, func(a, b *test) int { return a.begun.Compare(b.begun) })
		part := short(pkg)
		for _, t := range tests[:min(len(tests), named)] {
			part += fmt.Sprintf(" %s %s", t.name, time.Since(t.begun).Round(time.Second))
		}
		if more := len(tests) - named; more > 0 {
			part += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return strings.Join(parts, " | ")
}

// clear removes the line that changes.
func (d *display) clear() {
	if d.status != "" {
		fmt.Fprintf(d.out, "\r\x1b[K")
		d.status = ""
	}
}

// Write shows what go itself has to say.
func (d *display) Write(data []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return len(data), nil
	}
	d.clear()
	return d.out.Write(data)
}

// read reads events to their end.
func (d *display) read(in io.Reader) {
	reader := bufio.NewReader(in)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{Action: "build-output", Output: string(line)}
			}
			d.handle(e)
		}
		if err != nil {
			return
		}
	}
}

// interrupted ends the display, except for the progress of the clean-up.
func (d *display) interrupted() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.clear()
	fmt.Fprintln(d.out, "Interrupted; the tests are cleaning up")
}

func (d *display) handle(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := e.Package + " " + e.Test
	t := d.running[key]
	if t == nil && e.Package != "" {
		t = &test{pkg: e.Package, name: e.Test, begun: time.Now()}
		d.running[key] = t
	}
	switch e.Action {
	case "build-output":
		if !d.ended {
			d.clear()
			fmt.Fprint(d.out, e.Output)
		}
	case "pause":
		t.idle = true
	case "cont":
		t.idle, t.begun = false, time.Now()
	case "output":
		if strings.HasPrefix(e.Output, "--- ") {
			t.idle = true // its last event comes with the next test's
		}
		if !strings.HasPrefix(e.Output, "=== ") {
			_, _ = t.output.Write([]byte(e.Output)) // never fails
		}
	case "pass", "fail", "skip":
		delete(d.running, key)
		if d.ended {
			return
		}
		took := time.Duration(e.Elapsed * float64(time.Second))
		if e.Test == "" {
			d.packageEnded(e, t, took)
		} else {
			d.testEnded(e, t, took)
		}
	}
}

func (d *display) testEnded(e event, t *test, took time.Duration) {
	d.tests++
	c := d.perPackage[e.Package]
	if c == nil {
		c = &counts{}
		d.perPackage[e.Package] = c
	}
	c.tests++
	r := result{pkg: e.Package, name: e.Test, took: took}
	if !strings.Contains(e.Test, "/") {
		d.slow = append(d.slow, r)
	}
	switch e.Action {
	case "pass":
		d.passed++
	case "skip":
		c.skipped++
		r.reason = reason(t.output.String())
		d.skipped = append(d.skipped, r)
	case "fail":
		d.failed = append(d.failed, r)
		d.show(t)
	}
}

func (d *display) packageEnded(e event, t *test, took time.Duration) {
	c := d.perPackage[e.Package]
	if e.Action != "fail" {
		if c == nil {
			return // no test files, or none that was asked for
		}
		d.packages++
		tests := plural(c.tests, "test")
		if c.skipped > 0 {
			tests += fmt.Sprintf(", %d skipped", c.skipped)
		}
		d.clear()
		fmt.Fprintf(d.out, "%s    %-28s %6.1fs  %s\n", terminal.Green.Paint(d.out, "ok"), short(e.Package), took.Seconds(), tests)
		return
	}
	d.packages++
	// Tests that have not ended: the process has, by a panic or a time-out.
	for key, unfinished := range d.running {
		if unfinished.pkg == e.Package {
			delete(d.running, key)
			d.failed = append(d.failed, result{pkg: e.Package, name: unfinished.name})
			d.show(unfinished)
		}
	}
	if !slices.ContainsFunc(d.failed, func(r result) bool { return r.pkg == e.Package }) {
		d.failed = append(d.failed, result{pkg: e.Package})
	}
	d.show(t)
	d.clear()
	fmt.Fprintf(d.out, "%s  %-28s %6.1fs\n", terminal.Red.Paint(d.out, "FAIL"), short(e.Package), took.Seconds())
}

// show prints what a test has printed.
func (d *display) show(t *test) {
	var b strings.Builder
	for line := range strings.Lines(t.output.String()) {
		if t.name != "" || !verdict(line) {
			b.WriteString(line)
		}
	}
	if strings.TrimSpace(b.String()) == "" {
		return
	}
	d.clear()
	fmt.Fprintf(d.out, "\n%s\n%s\n", terminal.Bold.Paint(d.out, strings.TrimSpace(short(t.pkg)+" "+t.name)), strings.TrimRight(b.String(), "\n"))
}

// verdict tells the lines by which a test binary says how it ended.
func verdict(line string) bool {
	line = strings.TrimRight(line, "\n")
	return line == "PASS" || line == "FAIL" || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "exit status ")
}

// reason finds in a skipped test's output why it was skipped.
func reason(output string) string {
	var parts []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		// file.go:12: what the test has said
		if _, said, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok := strings.Cut(said, ": "); ok {
				line = text
			}
		}
		parts = append(parts, line)
	}
	return strings.Join(parts, " ")
}

// slowest is how many tests the summary names.
const slowest = 10

func (d *display) summary() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	if len(d.slow) > slowest { // a few tests need no such list
		slices.SortStableFunc(d.slow, func(a, b result) int { return cmp.Compare(b.took, a.took) })
		fmt.Fprintf(d.out, "\nThe %d slowest tests:\n", slowest)
		for _, r := range d.slow[:slowest] {
			fmt.Fprintf(d.out, "%7.1fs  %s %s\n", r.took.Seconds(), short(r.pkg), r.name)
		}
	}
	if len(d.skipped) > 0 {
		fmt.Fprintf(d.out, "\nSkipped:\n")
		for _, r := range d.skipped {
			fmt.Fprintf(d.out, "  %s %s: %s\n", short(r.pkg), r.name, r.reason)
		}
	}
	if len(d.failed) > 0 {
		fmt.Fprintf(d.out, "\n%s\n", terminal.Red.Paint(d.out, "Failed:"))
		for _, r := range d.failed {
			fmt.Fprintf(d.out, "  %s\n", strings.TrimSpace(short(r.pkg)+" "+r.name))
		}
	}
	fmt.Fprintf(d.out, "\n%s in %s: %d passed, %d skipped, %d failed; %.1fs\n",
		plural(d.tests, "test"), plural(d.packages, "package"), d.passed, len(d.skipped), len(d.failed), time.Since(d.started).Seconds())
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func short(pkg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(pkg, workspace.Module), "/")
}
