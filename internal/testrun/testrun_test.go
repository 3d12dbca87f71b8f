package testrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"gotest.tools/gotestsum/testjson"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

// files are a module with packages of every fate.
var files = map[string]string{
	"go.mod":       "module github.com/k8s-go/workshop\n\ngo 1.26\n",
	"none/none.go": `package none`,
	"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) { t.Log("secret of a test that passed") }
func TestSkipped(t *testing.T) { t.Skipf("needs %s", "containers") }
func TestParts(t *testing.T) { t.Run("one", func(t *testing.T) {}); t.Run("two", func(t *testing.T) { t.Skip("not today") }) }`,
	"bad/bad_test.go": `package bad
import "testing"
func TestBad(t *testing.T) { t.Run("part", func(t *testing.T) { t.Error("what went wrong") }); t.Run("other", func(t *testing.T) { t.Log("secret of a subtest that passed") }) }`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { panic("out of order") }`,
	"unclean/unclean_test.go": `package unclean
import ("fmt"; "os"; "testing")
func TestMain(m *testing.M) { m.Run(); fmt.Fprintln(os.Stderr, "error: a namespace is still there"); os.Exit(1) }
func TestFine(t *testing.T) {}`,
	"broken/broken_test.go": `package broken
import "testing"
func TestBroken(t *testing.T) { undefined() }`,
	"orphan/orphan_test.go": `package orphan
import ("os/exec"; "syscall"; "testing")
func TestOrphan(t *testing.T) {
	c := exec.Command("sleep", "611")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil { t.Fatal(err) }
}`,
	"dies/dies_test.go": `package dies
import ("os"; "os/exec"; "syscall"; "testing"; "time")
func TestDies(t *testing.T) {
	os.WriteFile(t.TempDir()+"/file", nil, 0o644)
	c := exec.Command("sleep", "612")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil { t.Fatal(err) }
	os.WriteFile("started", nil, 0o644)
	time.Sleep(time.Hour)
}`,
	"flaky/flaky_test.go": `package flaky
import ("os"; "testing")
func first() bool { _, err := os.Stat("../ran"); os.WriteFile("../ran", nil, 0o644); return err != nil }
func TestFlaky(t *testing.T) { t.Run("part", func(t *testing.T) { if first() { t.Error("too slow") } }) }
func TestOther(t *testing.T) { if _, err := os.Stat("../twice"); err == nil { t.Error("runs again, too") }; os.WriteFile("../twice", nil, 0o644) }`,
	"many/many_test.go": `package many
import "testing"
func TestA(t *testing.T) { t.Error("a") }
func TestB(t *testing.T) { t.Error("b") }
func TestC(t *testing.T) { t.Error("c") }
func TestD(t *testing.T) { t.Error("d") }`,
	"seat/seat_test.go": `package seat
import ("os"; "testing"; "time")
func sit(t *testing.T) {
	mine := "../taken-" + os.Getenv("SEAT")
	if err := os.Mkdir(mine, 0o755); err != nil { t.Fatal("two in one seat: ", err) }
	time.Sleep(100 * time.Millisecond)
	if err := os.Remove(mine); err != nil { t.Fatal(err) }
	os.WriteFile("../sat-" + os.Getenv("SEAT") + t.Name(), nil, 0o644)
}
func TestA(t *testing.T) { sit(t) }
func TestB(t *testing.T) { sit(t) }
func TestC(t *testing.T) { sit(t) }`,
	"hangs/hangs_test.go": `package hangs
import ("os"; "os/signal"; "testing")
func TestHangs(t *testing.T) {
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt)
	os.WriteFile(t.TempDir()+"/file", nil, 0o644)
	os.WriteFile("started", nil, 0o644)
	<-interrupt
	os.WriteFile("cleaned", nil, 0o644)
}`,
}

func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// run runs tests in dir and returns what was shown.
func run(ctx context.Context, t *testing.T, dir string, jobs ...[]string) (string, error) {
	t.Helper()
	return Run{Dir: dir, Jobs: jobs}.shown(ctx, t)
}

// shown runs the tests and returns what was shown.
func (r Run) shown(ctx context.Context, t *testing.T) (string, error) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "output"))
	fatal.If(t, err)
	defer out.Close()
	r.Env, r.Out = append(os.Environ(), "GOFLAGS=-vet=off"), out
	runErr := r.Tests(ctx)
	text, err := os.ReadFile(out.Name())
	fatal.If(t, err)
	return string(text), runErr
}

func contains(t *testing.T, output string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(output, want) {
			t.Errorf("%q is missing in\n%s", want, output)
		}
	}
}

func TestAllWell(t *testing.T) {
	t.Parallel()
	output, err := run(t.Context(), t, module(t), []string{"./good", "./none"})
	if err != nil {
		t.Error(err)
	}
	contains(t, output, "ok    good ", "5 tests, 2 skipped\n",
		"=== SKIP: good TestSkipped (0.00s)\n    good_test.go:4: needs containers\n", "=== SKIP: good TestParts/two (0.00s)\n    good_test.go:5: not today\n",
		"DONE 5 tests, 2 skipped in ")
	if strings.Contains(output, "secret") || strings.Contains(output, "none") || strings.Contains(output, "\x1b") {
		t.Errorf("more than needed is shown:\n%s", output)
	}
}

func TestNoTestOfThatName(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]bool{"TestGood": true, "TestGod": false} {
		_, err := Run{Dir: module(t), Jobs: [][]string{{"-run=" + name, "./good"}}, Chosen: true}.shown(t.Context(), t)
		if (err == nil) != found {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Whatever a failure is, its cause is shown, the run is red, and the other lane
// and the other packages go on.
func TestFailures(t *testing.T) {
	t.Parallel()
	output, err := run(t.Context(), t, module(t), []string{"-p=1", "./broken", "./bad", "./panics"}, []string{"-p=1", "./unclean", "./good"})
	if err == nil || !strings.Contains(err.Error(), "the tests did not pass") {
		t.Errorf("error %v", err)
	}
	contains(t, output,
		"FAIL\tgithub.com/k8s-go/workshop/broken [build failed]\n", "undefined: undefined",
		"FAIL\tgithub.com/k8s-go/workshop/bad\t", "bad_test.go:3: what went wrong",
		"FAIL\tgithub.com/k8s-go/workshop/panics\t", "panic: out of order",
		"FAIL\tgithub.com/k8s-go/workshop/unclean\t", "error: a namespace is still there",
		"ok    good ",
		"\n=== Failed\n", "\n=== FAIL: bad TestBad/part (", "\n=== FAIL: bad TestBad (", "\n=== FAIL: panics TestPanics (", "\n=== FAIL: unclean  (", "\n=== FAIL: broken  (")
	if strings.Contains(output, "secret") {
		t.Errorf("what passed is shown:\n%s", output)
	}
}

// Jobs share the seats, and each seat has one at a time.
func TestSeats(t *testing.T) {
	t.Parallel()
	dir := module(t)
	var jobs [][]string
	for _, test := range []string{"TestA", "TestB", "TestC"} {
		jobs = append(jobs, []string{"-count=1", "-run=^" + test + "$", "github.com/k8s-go/workshop/seat"})
	}
	if output, err := (Run{Dir: dir, Jobs: jobs, Seats: [][]string{{"SEAT=one"}, {"SEAT=two"}}}).shown(t.Context(), t); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	for _, seat := range []string{"one", "two"} {
		if sat, err := filepath.Glob(filepath.Join(dir, "sat-"+seat+"*")); err != nil || len(sat) == 0 {
			t.Errorf("nobody sat in %s (%v)", seat, err)
		}
	}
	sat, err := filepath.Glob(filepath.Join(dir, "sat-*"))
	if err != nil || len(sat) != len(jobs) {
		t.Errorf("%q: want %d", sat, len(jobs))
	}
}

// A test that fails once and then passes is named, and the run is green. Nothing else is
// run again: what always fails, what is broken in another way, and more than a few.
func TestRerun(t *testing.T) {
	t.Parallel()
	const prefix = "github.com/k8s-go/workshop/"
	for name, c := range map[string]struct {
		packages []string
		green    bool
		says     string
		silent   string
	}{
		"flaky":         {[]string{"flaky"}, true, "FLAKY: flaky TestFlaky failed once and passed alone", "runs again, too"},
		"always":        {[]string{"flaky", "bad"}, false, "FAILED twice: bad TestBad\n", "FAILED twice: flaky"},
		"beside others": {[]string{"flaky", "unclean"}, false, "a namespace is still there", "Once more"},
		"a panic":       {[]string{"flaky", "panics"}, false, "out of order", "Once more"},
		"not compiled":  {[]string{"flaky", "broken"}, false, "undefined: undefined", "Once more"},
		"a process":     {[]string{"flaky", "orphan"}, false, "too slow", "Once more"},
		"too many":      {[]string{"many"}, false, "FAIL: many TestD", "Once more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lane := []string{"-count=1"}
			for _, p := range c.packages {
				lane = append(lane, prefix+p)
			}
			output, err := Run{Dir: module(t), Jobs: [][]string{lane}, Rerun: true}.shown(t.Context(), t)
			if (err == nil) != c.green {
				t.Errorf("error %v", err)
			}
			contains(t, output, c.says)
			if strings.Contains(output, c.silent) {
				t.Errorf("%q in\n%s", c.silent, output)
			}
		})
	}
}

// An interrupted run leaves nothing, whether or not its tests clean up.
func TestInterrupt(t *testing.T) {
	dir, tmp := module(t), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_ = poll.Until(ctx, 10*time.Millisecond, time.Minute, func(context.Context) error {
			_, err1 := os.Stat(filepath.Join(dir, "hangs/started"))
			_, err2 := os.Stat(filepath.Join(dir, "dies/started"))
			return errors.Join(err1, err2)
		})
	}()
	output, err := run(ctx, t, dir, []string{"./hangs"}, []string{"./dies"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "hangs/cleaned")); err != nil {
		t.Errorf("the test could not clean up: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(tmp, "workshop-tests-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary folders are left: %v %v", left, err)
	}
	noProcess(t, "sleep 612")
	if strings.Contains(output, "FAIL") || strings.Contains(output, "signal") || !strings.Contains(output, "Interrupted; ") {
		t.Errorf("what ended because of the interrupt is shown:\n%s", output)
	}
}

func TestProcessLeftRunning(t *testing.T) { // not beside TestRerun, which leaves the same process
	output, err := run(t.Context(), t, module(t), []string{"./orphan"})
	if err == nil || !strings.Contains(err.Error(), "tests have left processes running, which are ended now:") || !strings.Contains(err.Error(), "sleep 611") {
		t.Errorf("error %v\n%s", err, output)
	}
	noProcess(t, "sleep 611")
}

// noProcess fails if one runs with this command line.
func noProcess(t *testing.T, command string) {
	t.Helper()
	all, err := process.ProcessesWithContext(t.Context())
	fatal.If(t, err)
	for _, p := range all {
		if line, _ := p.CmdlineWithContext(t.Context()); line == command {
			t.Errorf("process %d still runs: %s", p.Pid, line)
		}
	}
}

// played is a display in the middle of tests, and what it shows.
func played(tty bool) (*display, *strings.Builder) {
	var out strings.Builder
	d := newDisplay(os.Stdin)
	d.out, d.tty = &out, tty
	for _, e := range []testjson.TestEvent{
		{Action: "start", Package: "m/one"},
		{Action: testjson.ActionRun, Package: "m/one", Test: "TestRuns"},
		{Action: testjson.ActionRun, Package: "m/one", Test: "TestRuns/part"},
		{Action: testjson.ActionRun, Package: "m/one", Test: "TestWaits"},
		{Action: testjson.ActionPause, Package: "m/one", Test: "TestWaits"},
		{Action: testjson.ActionRun, Package: "m/one", Test: "TestEnded"},
		{Action: testjson.ActionPass, Package: "m/one", Test: "TestEnded"},
		{Action: testjson.ActionRun, Package: "m/one", Test: "TestHasJustEnded"},
		{Action: testjson.ActionOutput, Package: "m/one", Test: "TestHasJustEnded", Output: "--- PASS: TestHasJustEnded (0.00s)\n"},
		{Action: "start", Package: "m/two"},
	} {
		d.note(e)
	}
	return d, &out
}

func TestProgress(t *testing.T) {
	d, out := played(false)
	d.progress()
	if want := "  0s  m/one TestRuns 0s | m/two\n"; out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// Those that have run longest are named.
func TestProgressOfManyTests(t *testing.T) {
	d, out := played(false)
	d.running["m/one"]["TestRuns"] = time.Now().Add(-time.Minute)
	for _, name := range []string{"TestLater", "TestLatest"} {
		d.note(testjson.TestEvent{Action: testjson.ActionRun, Package: "m/one", Test: name})
	}
	d.progress()
	if want := "  0s  m/one TestRuns 1m0s TestLater 0s and 1 more | m/two\n"; out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestProgressInATerminal(t *testing.T) {
	d, out := played(true)
	d.progress()
	d.progress()
	if err := d.Err("a line"); err != nil {
		t.Error(err)
	}
	want := "  0s  m/one TestRuns 0s | m/two"
	if got := out.String(); got != want+"\r\x1b[K"+want+"\r\x1b[Ka line\n" {
		t.Errorf("%q", got)
	}
}

func TestSlowest(t *testing.T) {
	d, out := played(false)
	var events strings.Builder
	for i, name := range append(strings.Fields("A B C D E F G H I J K"), "A/part") {
		fmt.Fprintf(&events, `{"Action":"pass","Package":"m/one","Test":"Test%s","Elapsed":%d}`+"\n", name, 10+i)
	}
	tests, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: strings.NewReader(events.String()), Handler: d})
	fatal.If(t, err)
	d.summary(tests)
	_, list, _ := strings.Cut(out.String(), "The 10 slowest tests:\n")
	lines := strings.Split(list, "\n")
	if len(lines) < 11 || lines[0] != "   20.0s  m/one TestK" || lines[9] != "   11.0s  m/one TestB" || lines[10] != "" {
		t.Errorf("%s", out)
	}
}
