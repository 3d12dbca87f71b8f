// Package check runs the checks of exercises: in `make check` against a learner's
// files, and in every other run of the tests against ours, to prove the checks.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/lock"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Checks are the checks of a step by the names of its tasks.
type Checks map[string]func(*C)

// Exercises is the body of a step's TestExercises. It runs each check
//
//   - against our solution: it must pass,
//   - against something wrong, which a seed chooses, or all of it (make prove): a mutant, for
//     which the verdict must be the mistake that it is, or the starter, for which it must be
//     that the task is not done yet.
//
// A check that takes long is only run against the starter, unless all mutants are tried. On
// kind, where containers start for each of them, a check is only run against our solution.
//
// When `make check` runs it, there are only the learner's files.
func Exercises(t *testing.T, checks Checks) {
	t.Helper()
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	dir, err := os.Getwd()
	fatal.If(t, err)
	step, err := ws.Step(filepath.Base(dir))
	fatal.If(t, err)
	tasks, err := exercise.Of(step)
	fatal.If(t, err)
	if len(tasks) != len(checks) {
		t.Errorf("%d tasks and %d checks: each task has one", len(tasks), len(checks))
	}
	for _, task := range tasks {
		f := checks[task.Name]
		if f == nil {
			t.Errorf("task %s has no check", task.Name)
			continue
		}
		t.Run(task.Name, func(t *testing.T) {
			t.Parallel()
			if tree := os.Getenv(exercise.WorkEnv); tree != "" {
				report(t, task, run(t, ws, task, tree, f))
				return
			}
			prove(t, ws, task, f)
		})
	}
}

// report writes the verdict for make check.
func report(t *testing.T, task exercise.Task, v exercise.Verdict) {
	t.Helper()
	data, err := json.Marshal(v)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(filepath.Join(os.Getenv(exercise.VerdictsEnv), task.Name+".json"), data, 0o644))
}

func prove(t *testing.T, ws workspace.Workspace, task exercise.Task, f func(*C)) {
	t.Helper()
	try := func(name string, files func() (exercise.Files, error), want exercise.Outcome, mistake string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			variant, err := files()
			fatal.If(t, err)
			of := task.Name
			if mistake == "" && task.Shares() { // the tasks of a folder have one starter and one solution
				of = task.Folder
			}
			tree := ws.Path("exercises", "proof", task.Step.Name+"-"+of, strings.ReplaceAll(name, " ", "-"))
			fatal.If(t, once(&written, tree, func() error { return task.WriteTree(ws, tree, variant) }))
			if v := run(t, ws, task, tree, f); v.Outcome != want || v.Mistake != mistake {
				t.Errorf("the check says %+v\nwant %s %q", v, want, mistake)
			}
		})
	}
	all := os.Getenv(exercise.SeedEnv) == "all"
	if all || task.Takes == "" {
		try("solution", task.Solution, exercise.Passed, "")
		if !all && testenv.ClusterName() == "kind" {
			return
		}
	}
	for _, m := range chosen(t, task) {
		if m == nil {
			try("open", task.Starter, exercise.Open, "")
			continue
		}
		try("mistake "+m.Name, func() (exercise.Files, error) { return task.Mutant(*m) }, exercise.Failed, m.Name)
	}
}

// What the proofs of one process have written and built, by its path.
var written, built sync.Map

// once calls f for a path unless that was done, and returns what it returned then.
func once(done *sync.Map, path string, f func() error) error {
	first, _ := done.LoadOrStore(path, sync.OnceValue(f))
	return first.(func() error)()
}

// chosen returns what is wrong and has to be noticed, one that the seed chooses or all: mistakes,
// and nil for the starter.
func chosen(t *testing.T, task exercise.Task) []*exercise.Mistake {
	t.Helper()
	wrong := []*exercise.Mistake{nil}
	for i := range task.Mistakes {
		wrong = append(wrong, &task.Mistakes[i])
	}
	text := os.Getenv(exercise.SeedEnv)
	if text == "all" {
		return wrong
	}
	if task.Takes != "" {
		return wrong[:1]
	}
	seed := rand.Uint64N(1_000_000)
	if text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%s: want a number, or all", exercise.SeedEnv, text)
		}
	}
	t.Logf("make prove %s SEED=%d tries the same again", task.Args(), seed)
	// Each task has a sequence of its own, whichever others there are.
	r := rand.New(rand.NewPCG(seed, uint64(task.Step.Number*100+task.Number)))
	return []*exercise.Mistake{wrong[r.IntN(len(wrong))]}
}

// C is one run of a check: the cluster, in a namespace of its own, and the files
// that are checked. Use it from the goroutine that runs the check.
type C struct {
	*testenv.Env
	T testing.TB

	ws        workspace.Workspace
	task      exercise.Task
	tree      string
	processes []*testenv.Process
	at        place
}

// A place is a line of a file that is checked.
type place struct {
	file string
	line int
}

// ended is how Fail, Mistake and the others end a check.
type ended struct{ verdict exercise.Verdict }

// broken ends a check whose files cannot even run.
func broken(output string) {
	panic(ended{exercise.Verdict{Outcome: exercise.Broken, Output: output}})
}

func run(t *testing.T, ws workspace.Workspace, task exercise.Task, tree string, f func(*C)) (v exercise.Verdict) {
	t.Helper()
	c := &C{Env: testenv.New(t), T: t, ws: ws, task: task, tree: tree}
	c.Flooded = func(forgotten int) {
		c.Failf("requests only when there is something to do", "thousands, %d more than the proxy remembers, as a loop without a pause sends them", forgotten)
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case ended:
			v = r.verdict
		default: // the others go on
			t.Fatalf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	c.whole()
	f(c)
	return exercise.Verdict{Outcome: exercise.Passed}
}

// whole ends the check unless the files are there that a learner is to write.
func (c *C) whole() {
	for _, e := range c.task.Open {
		problem := ""
		info, err := os.Stat(c.Path(e.File))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problem = " is not there; make reset " + c.task.Args() + " begins again"
		case err != nil:
			c.T.Fatal(err)
		case filepath.Ext(e.File) == ".sh" && info.Mode()&0o100 == 0:
			problem = " cannot be run: chmod +x " + c.task.Shown(e.File)
		case filepath.Ext(e.File) == ".sh":
			text, err := os.ReadFile(c.Path(e.File))
			c.Must(err)
			if !bytes.HasPrefix(text, []byte("#!")) {
				problem = " cannot be run: its first line has to be #!/usr/bin/env bash"
			}
		}
		if problem != "" {
			broken(c.task.Shown(e.File) + problem)
		}
	}
}

// Path returns one of the files that are checked.
func (c *C) Path(name string) string {
	return filepath.Join(c.task.Dir(c.tree), filepath.FromSlash(name))
}

// yamlLine finds the line of a parser's message: "yaml: line 7: did not find ..."
var yamlLine = regexp.MustCompile(`line (\d+): `)

var (
	betweenDocuments = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)
	noComment        = regexp.MustCompile(`(?m)^\s*[^\s#]`)
)

// ReadYAML reads each document of a file into an object, without unknown fields. If
// it cannot, the check ends at the line that the parser names.
func (c *C) ReadYAML(name, expected string, objects ...any) {
	c.T.Helper()
	data, err := os.ReadFile(c.Path(name))
	c.Must(err)
	var documents [][]byte // each after as many empty lines as keep the numbers those of the file
	at := 0
	for _, between := range append(betweenDocuments.FindAllIndex(data, -1), []int{len(data), len(data)}) {
		if text := data[at:between[0]]; noComment.Match(text) {
			documents = append(documents, append(bytes.Repeat([]byte("\n"), bytes.Count(data[:at], []byte("\n"))), text...))
		}
		at = between[1]
	}
	if len(documents) < len(objects) {
		c.Failf(expected, "%d documents, not %d", len(documents), len(objects))
	}
	for i, object := range objects {
		err := yaml.UnmarshalStrict(documents[i], object)
		if err != nil {
			if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
				line, err := strconv.Atoi(m[1])
				c.Must(err)
				c.At(name, line)
			}
			c.Fail(expected, err.Error())
		}
	}
}

// goLine finds the files of compiler messages: "03-informer/repair/main.go:7:2: ..."
var goLine = regexp.MustCompile(`(?m)^(\./)?([^\s:]+\.go:\d+)`)

// Program builds the program that is checked and returns the binary's path. The
// options change it for this build only; the files that are checked stay as they are.
func (c *C) Program(options ...testenv.ProgramOption) string {
	c.T.Helper()
	return c.build(c.task.Dir(c.tree), c.task.Binary(), options...)
}

// ProgramOf builds a program that the check has written, main, with the package
// that is checked: in the folder of that name, of which the learner sees nothing.
func (c *C) ProgramOf(folder, main string) string {
	c.T.Helper()
	return c.build(c.Path(folder), folder, testenv.AddFile("main.go", main))
}

func (c *C) build(dir, name string, options ...testenv.ProgramOption) string {
	c.T.Helper()
	folder, err := filepath.Rel(c.tree, dir)
	fatal.If(c.T, err)
	build := func(ctx context.Context, binary string) error {
		return testenv.GoBuild(ctx, c.tree, "./"+filepath.ToSlash(folder), binary, c.T.TempDir(), options...)
	}
	var binary string
	if os.Getenv(exercise.WorkEnv) != "" {
		binary, err = c.ownBinary(name, func(kept string) error { return build(c.Context(), kept) })
	} else { // other checks may prove the same program
		binary = filepath.Join(c.tree, "programs", testenv.ProgramKey(name, options), name)
		err = once(&built, binary, func() error { return build(context.WithoutCancel(c.Context()), binary) })
	}
	var failed *proc.Error
	var exit *exec.ExitError
	switch {
	case errors.As(err, &failed) && errors.As(err, &exit) && exit.ExitCode() == 1 && failed.Output != "": // not one that was killed
		output := goLine.ReplaceAllString(failed.Output, shownModule(c.tree, dir)+"/$2")
		broken(strings.TrimSpace(output))
	case err != nil:
		c.T.Fatal(err)
	}
	if info, err := os.Stat(binary); err != nil || info.Mode()&0o100 == 0 { // go build has written an archive
		broken(path.Join(shownModule(c.tree, dir), filepath.ToSlash(folder)) + ": its package is not main, so it is no program")
	}
	return binary
}

// ownBinary builds a binary that is kept, so that what has not changed is not linked again, and returns a copy of it
// that goes with this check: another one at the same time, as from the page, may build it anew.
func (c *C) ownBinary(name string, build func(kept string) error) (binary string, err error) {
	kept := c.ws.Path("exercises", "bin", c.task.Step.Name, c.task.Name, name)
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return "", err
	}
	unlock, _, err := lock.Acquire(c.Context(), kept+".lock", io.Discard, "")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := build(kept); err != nil {
		return "", err
	}
	binary = filepath.Join(c.T.TempDir(), name) // the name is the program's user agent
	if os.Link(kept, binary) == nil {
		return binary, nil
	}
	info, err := os.Stat(kept) // it is on another disk
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(kept)
	if err != nil {
		return "", err
	}
	return binary, os.WriteFile(binary, program, info.Mode())
}

// shownModule returns how a learner calls the module of a folder in a tree. The compiler names
// files from there, and a step can have a module of its own.
func shownModule(tree, dir string) string {
	module := dir
	for module != tree {
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			break
		}
		module = filepath.Dir(module)
	}
	return path.Join(filepath.Base(tree), filepath.ToSlash(strings.TrimPrefix(module, tree)))
}

// Run runs a command to its end, as Env.Run does. A task that is not done ends the check.
func (c *C) Run(command testenv.Command) testenv.Result {
	c.T.Helper()
	r := c.Start(command).Wait()
	c.done()
	return r
}

// Start starts a command. Scripts find the check's namespace in WORKSHOP_NAMESPACE.
func (c *C) Start(command testenv.Command) *testenv.Process {
	c.T.Helper()
	command.Env = append([]string{"WORKSHOP_NAMESPACE=" + c.Namespace}, command.Env...)
	p := c.Env.Start(command)
	c.processes = append(c.processes, p)
	return p
}

// InterruptAt is Env.InterruptAt for a program that has to send such a request, and to end by the interrupt.
func (c *C) InterruptAt(m faultproxy.Match, command testenv.Command) testenv.Result {
	c.T.Helper()
	proxy := c.Stall(m, &command)
	p := c.Start(command)
	until := func(expected string, there func() bool) {
		err := c.Until(Patience(20*time.Second), func(context.Context) error {
			switch ended := p.Ended(); { // before the last look
			case there():
				return nil
			case ended:
				return poll.Stop(errors.New("it has ended"))
			}
			return errors.New("it still runs")
		})
		if err != nil {
			c.Failf(expected, "%v:\n%s%s", err, p.Stdout(), p.Stderr())
		}
	}
	until("a request by which it begins", func() bool { return proxy.Count(m) > 0 })
	c.Must(p.Signal(os.Interrupt))
	until("an end after SIGINT", p.Ended)
	return p.Wait()
}

// Until polls until f returns nil. It returns f's last error after timeout, or a
// second after a panic in the files that are checked: f may know that panic. It ends
// the check as soon as a program says that the task is not done.
func (c *C) Until(timeout time.Duration, f func(ctx context.Context) error) error {
	c.T.Helper()
	var crashed time.Time
	return poll.Until(c.Context(), 50*time.Millisecond, timeout, func(ctx context.Context) error {
		c.done()
		err := f(ctx)
		switch {
		case err == nil:
			return nil
		case crashed.IsZero() && c.crash() != nil:
			crashed = time.Now()
		case !crashed.IsZero() && time.Since(crashed) > time.Second:
			return poll.Stop(err)
		}
		return err
	})
}

// UntilSeen calls f, and up to twice more as long as the first watch that it has opened passed fewer events than
// have happened: a watch of one second can end before all of them came, on a machine that stands still.
func UntilSeen(p *testenv.Proxy, watches faultproxy.Match, happened int, f func()) {
	for range 3 {
		before := p.Count(watches)
		f()
		if opened := p.Requests(watches)[before:]; len(opened) == 0 || opened[0].Events >= happened {
			return
		}
	}
}

// Patience is how long to wait for what only an unknown mistake, or a busy machine, keeps
// from happening: a learner is told after a while, and a proof, which shares the machine
// with all other tests, waits for three times as long, and for a minute at least.
func Patience(learner time.Duration) time.Duration {
	if os.Getenv(exercise.WorkEnv) != "" {
		return learner
	}
	return max(time.Minute, 3*learner)
}

// Must ends the test with an error that is no fault of the files that are checked.
func (c *C) Must(err error) {
	c.T.Helper()
	fatal.If(c.T, err)
}

// done ends the check if the task is not done.
func (c *C) done() {
	notDone := c.task.NotDone()
	if slices.ContainsFunc(c.processes, func(p *testenv.Process) bool {
		return strings.Contains(p.Stdout()+p.Stderr(), notDone)
	}) {
		c.end(exercise.Verdict{Outcome: exercise.Open}, exercise.Mistake{})
	}
}

func (c *C) end(v exercise.Verdict, m exercise.Mistake) {
	c.T.Helper()
	files, err := c.task.Read(c.task.Dir(c.tree))
	c.Must(err)
	if v.Outcome == exercise.Failed {
		// A file that does not run says it too.
		for name, data := range files {
			if c.task.Program == "" && filepath.Ext(name) != ".sh" && strings.Contains(string(data), c.task.NotDone()) {
				v = exercise.Verdict{Outcome: exercise.Open}
			}
		}
	}
	v.File, v.Line = c.task.Line(files, m)
	if c.at.line > 0 {
		v.File, v.Line = c.at.file, c.at.line
	}
	if v.Outcome == exercise.Open {
		v.File, v.Line = c.task.OpenLine(files)
	}
	// What was held because of a panic says less than the panic. A known mistake says
	// more: the program may have panicked because of it.
	stack := strings.Contains(v.Held, "\ngoroutine ") // nobody reads all of it
	if crash := c.crash(); v.Outcome == exercise.Failed && crash != nil && (stack || !strings.Contains(v.Held, "panic: ")) {
		if stack {
			v.Held = "the program has ended"
		}
		switch {
		case v.Mistake != "" && crash.line > 0:
			v.Held += fmt.Sprintf("\n%s, in line %d of %s", crash.says, crash.line, crash.file)
		case v.Mistake != "":
			v.Held += "\n" + crash.says
		case crash.line > 0:
			v.Held, v.File, v.Line = crash.says, crash.file, crash.line
		default:
			v.Held = crash.says
			if known, ok := c.task.Mistake(cacheChanged); ok {
				v.Mistake = known.Name
				v.File, v.Line = c.task.Line(files, known)
			}
		}
	}
	panic(ended{v})
}

// At has the verdict name this line, and not the one that a mistake's expression finds.
func (c *C) At(file string, line int) { c.at = place{file, line} }

// crash returns the first panic of a program in the files that are checked, if any.
// It may have been recovered and logged, as the loop of step 06 does.
func (c *C) crash() *crash {
	for _, p := range c.processes {
		if found := findCrash(p.Stderr(), c.task.Dir(c.tree)); found != nil {
			return found
		}
	}
	return nil
}

// A crash is a panic, and its place in the files that are checked unless another goroutine
// found their mistake.
type crash struct {
	place
	says string
}

var (
	// Said by client-go's mutation detector, which some checks turn on, in a goroutine of its own.
	changed   = regexp.MustCompile(`(?m)^\s*(panic: cache \S+ modified)`)
	crashLine = regexp.MustCompile(`(?m)^\s*((panic|fatal error): .*)$`)
	panicCall = regexp.MustCompile(`(?m)^\s*panic\(`)
	frame     = regexp.MustCompile(`^([^:\n]+\.go):(\d+)`)
)

// cacheChanged is what a task may call the mistake that client-go's mutation detector has found.
const cacheChanged = "cache changed"

// findCrash finds a panic, and the innermost line of a folder's files in its stack.
func findCrash(output, dir string) *crash {
	if by := changed.FindStringSubmatch(output); by != nil {
		return &crash{says: by[1] + ": your program has changed an object that the cache holds; change a DeepCopy"}
	}
	at := crashLine.FindStringSubmatchIndex(output)
	if at == nil {
		return nil
	}
	stack, _, _ := strings.Cut(output[at[1]:], "\n >") // klog ends an error of several lines so
	if calls := panicCall.FindAllStringIndex(stack, -1); calls != nil {
		stack = stack[calls[len(calls)-1][1]:] // before it are the deferred functions
	}
	_, inside, ok := strings.Cut(stack, "\t"+dir+string(filepath.Separator))
	if !ok {
		return nil
	}
	found := frame.FindStringSubmatch(inside)
	if found == nil {
		return nil
	}
	line, err := strconv.Atoi(found[2])
	if err != nil {
		return nil
	}
	return &crash{place{filepath.ToSlash(found[1]), line}, output[at[2]:at[3]]}
}

// Fail ends the check: something else than expected was held, and no known
// mistake explains it. Both are phrases: "count 6", "count 4 after 2 conflicts".
func (c *C) Fail(expected, held string) {
	c.T.Helper()
	c.done()
	c.end(exercise.Verdict{Outcome: exercise.Failed, Expected: expected, Held: held}, exercise.Mistake{})
}

// Mistake ends the check with a mistake of the task, by name.
func (c *C) Mistake(name, expected, held string) {
	c.T.Helper()
	c.done()
	m, ok := c.task.Mistake(name)
	if !ok {
		c.T.Fatalf("task %s knows no mistake %q", c.task.ID(), name)
	}
	c.end(exercise.Verdict{Outcome: exercise.Failed, Mistake: name, Expected: expected, Held: held}, m)
}

// Knows reports whether the task has a mistake of that name: a check may serve several tasks.
func (c *C) Knows(mistake string) bool {
	_, ok := c.task.Mistake(mistake)
	return ok
}

// Matches reports whether one of the files that are checked has a line that the
// expression of a mistake is about. Use it where the cluster alone cannot tell that
// mistake from others.
func (c *C) Matches(mistake string) bool {
	c.T.Helper()
	m, ok := c.task.Mistake(mistake)
	if !ok || m.At == "" {
		c.T.Fatalf("task %s has no mistake %q with an expression", c.task.ID(), mistake)
	}
	files, err := c.task.Read(c.task.Dir(c.tree))
	c.Must(err)
	name, line := c.task.Line(files, m)
	lines := strings.Split(string(files[name]), "\n")
	return line <= len(lines) && regexp.MustCompile(m.At).MatchString(lines[line-1])
}

// Failf is Fail with a format for what was held.
func (c *C) Failf(expected, format string, args ...any) {
	c.T.Helper()
	c.Fail(expected, fmt.Sprintf(format, args...))
}

// Conflicts returns how often at most a request of a verb was answered by 409 in a
// row, without a get between them: a stale copy is sent again and again.
func Conflicts(verb string, requests []faultproxy.Request) (most int) {
	row := 0
	for _, r := range requests {
		switch {
		case r.Verb == verb && r.Code == http.StatusConflict:
			row++
			most = max(most, row)
		case r.Verb == "get":
			row = 0
		}
	}
	return most
}
