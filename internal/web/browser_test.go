//go:build browser

package web

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

// browserVariable names the browser's program; make test-browser sets it.
const browserVariable = "WORKSHOP_BROWSER"

// A tab is one tab of a real browser. What it says about errors fails the test.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu     sync.Mutex
	errors []string
}

// open starts a browser with the page of a server.
func open(t testing.TB, c *client, path string) *tab {
	t.Helper()
	program := os.Getenv(browserVariable)
	if program == "" {
		t.Skip("needs a browser: make test-browser runs this with Chromium")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-background-networking", true))
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	// The first call starts the browser, which ends with its context.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	fatal.If(t, chromedp.Listen(ctx, b.hear))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.errors {
			t.Errorf("the browser says: %s", e)
		}
	})
	b.size(1280, 720)
	b.do("opening the page", chromedp.Navigate(c.base+"/#token="+c.token), chromedp.Navigate(c.base+path))
	return b
}

// hear notes what the browser complains of.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.errors = append(b.errors, text)
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError {
			b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

func (b *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fail(what, err)
	}
}

// fail shows the page as it is, and ends the test.
func (b *tab) fail(what string, err error) {
	b.t.Helper()
	b.screenshot(b.t.Name() + "-failed")
	b.t.Fatalf("%s: %v", what, err)
}

func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.do("setting the size", chromedp.EmulateViewport(width, height))
}

func (b *tab) scheme(scheme string) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}); err != nil {
		b.fail("choosing "+scheme, err)
	}
}

// click clicks what is found first, as a mouse does.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.do("clicking "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// download clicks what saves a file, and returns what is in it.
func (b *tab) download(selector string) string {
	b.t.Helper()
	dir := b.t.TempDir()
	if _, err := chromedp.CallBrowser(b.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: dir}); err != nil {
		b.fail("allowing downloads", err)
	}
	b.click(selector)
	var data []byte
	err := poll.Until(b.ctx, 100*time.Millisecond, time.Minute, func(context.Context) error {
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("there are the files %v (%v)", files, err)
		}
		data, err = os.ReadFile(files[0])
		return err
	})
	if err != nil {
		b.fail("downloading", err)
	}
	return string(data)
}

// keys presses keys as a person does: a page that handles a key gets no character for it.
func (b *tab) keys(keys ...string) {
	b.t.Helper()
	for _, r := range strings.Join(keys, "") {
		events := kb.Encode(r)
		for i, k := range events {
			if k.Type == kb.KeyChar {
				continue
			}
			if i+1 < len(events) && events[i+1].Type == kb.KeyChar {
				k.Text = events[i+1].Text
			}
			b.press(*k)
		}
	}
}

func (b *tab) press(k input.DispatchKeyEventParams) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if _, err := chromedp.Call(ctx, input.DispatchKeyEvent, k); err != nil {
		b.fail("pressing "+k.Key, err)
	}
}

// interrupt presses Ctrl-C.
func (b *tab) interrupt() {
	b.t.Helper()
	b.press(input.DispatchKeyEventParams{Type: kb.KeyDown, Modifiers: 2, Key: "c", Code: "KeyC", WindowsVirtualKeyCode: 67})
	b.press(input.DispatchKeyEventParams{Type: kb.KeyUp, Key: "c", Code: "KeyC", WindowsVirtualKeyCode: 67})
}

// run evaluates an expression in the page for what it does.
func (b *tab) run(expression string) {
	b.t.Helper()
	b.do(expression, chromedp.Evaluate[chromedp.Void](expression, chromedp.EvalAwaitPromise))
}

// eval evaluates an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.fail(expression, err)
	}
	return v
}

// until waits until an expression is true in the page.
func (b *tab) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
	defer cancel()
	// What is not there yet is not true yet.
	poll := chromedp.Poll[chromedp.Void](fmt.Sprintf("(() => { try { return Boolean(%s) } catch { return false } })()", expression),
		chromedp.WithPollingTimeout(2*time.Minute), chromedp.WithPollingInterval(50*time.Millisecond))
	if err := chromedp.Do(ctx, poll); err != nil {
		b.fail("waiting for "+expression, err)
	}
}

// screenshot writes a picture of the page to .workshop/screenshots.
func (b *tab) screenshot(name string) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	ws, findErr := workspace.Find()
	file := ws.Path("screenshots", strings.ReplaceAll(name, "/", "-")+".png")
	if err := errors.Join(err, findErr, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, picture, 0o644)); err != nil {
		b.t.Logf("taking a picture of the page: %v", err)
		return
	}
	b.t.Logf("a picture of the page is in %s", file)
}

// weighs tells how many bytes the page has got so far, and how long it took until now.
func (b *tab) weighs(least, most int) {
	b.t.Helper()
	size := eval[int](b, `performance.getEntriesByType('resource').reduce((sum, r) => sum + r.transferSize, 0)`)
	b.t.Logf("the page has got %d bytes in %.1f s", size, eval[float64](b, `performance.now()`)/1000)
	if size < least || size > most {
		b.t.Errorf("the page has got %d bytes, want %d to %d", size, least, most)
	}
}

// screenText is an expression: what a terminal shows.
func screenText(terminal int) string {
	return fmt.Sprintf(`(document.querySelector('.screen[data-terminal="%d"] .xterm-rows')?.textContent ?? '').replaceAll('\u00a0', ' ')`, terminal)
}

// shows is an expression: whether a terminal shows a text.
func shows(terminal int, text string) string {
	return fmt.Sprintf(`%s.includes(%q)`, screenText(terminal), text)
}

// ready waits until a terminal's prompt is the last that it shows, so no command runs.
func (b *tab) ready(terminal int) {
	b.t.Helper()
	b.until(`/ [#$]$/.test(` + screenText(terminal) + `.trimEnd())`)
}

// begin serves the lessons of this clone, or of another one, through a fault proxy.
func begin(t testing.TB, prefix lesson.Prefix, ws *workspace.Workspace) (*xraytest.Room, *client) {
	t.Helper()
	e, options := enter(t, prefix, ws)
	return e, serve(t, options)
}

// enter prepares what begin serves.
func enter(t testing.TB, prefix lesson.Prefix, ws *workspace.Workspace) (*xraytest.Room, Options) {
	t.Helper()
	if os.Getenv(browserVariable) == "" {
		t.Skip("needs a browser: make test-browser runs this with Chromium")
	}
	e := xraytest.Enter(t, testenv.New(t))
	options := Options{Workspace: e.Workspace(), Prefix: prefix, State: filepath.Join(t.TempDir(), "page.json"), Xray: e.Hub.Handler(), Tour: e.Hub.Tour}
	if ws != nil {
		options.Workspace = *ws
	}
	options.Env = append(workspace.Without(e.Cluster().Environ(), lesson.PrefixVariable), append(e.Environ(), prefix.Environ())...)
	return e, options
}

// A learner clicks through step 1, and each command prints what the lesson says.
func TestBrowserStep(t *testing.T) {
	t.Parallel()
	const prefix = lesson.Prefix("browser-")
	e, c := begin(t, prefix, nil)
	step, err := e.Workspace().Step("1")
	fatal.If(t, err)
	removeNamespace(t, e.Env, prefix.Namespace(step))
	b := open(t, c, "/?step=1")
	b.until(`document.querySelectorAll('#lesson .run').length > 0`)
	b.ready(1)
	b.weighs(100_000, 900_000)
	commands := eval[int](b, `document.querySelectorAll('#lesson .run').length`)
	if commands < 30 {
		t.Errorf("only %d commands: this is not the lesson", commands)
	}
	for i := range commands {
		run := fmt.Sprintf(`document.querySelectorAll('#lesson .run')[%d]`, i)
		b.run(run + `.querySelector('.run-button').id = 'next'`)
		b.click("#next")
		b.until(`!['', 'running'].includes(` + run + `.querySelector('.outcome').dataset.state ?? '')`)
		if state := eval[string](b, run+`.querySelector('.outcome').dataset.state`); state != "ok" {
			b.fail(eval[string](b, run+`.querySelector('code').textContent`), errors.New(eval[string](b, run+`.querySelector('.outcome').textContent`)))
		}
		b.run(`document.querySelector('#next').id = ''`)
		if i == commands/3 {
			b.run(run + `.scrollIntoView({block: 'center'})`)
			b.screenshot("lesson")
		}
	}
}

// A click while a command runs is refused, and the page says so; a command that prints
// something else than the lesson has its difference below it.
func TestBrowserOutcomes(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ sleep 100\n$ echo four\nfive\n$ (exit 3)")
	_, c := begin(t, "", &ws)
	b := open(t, c, "/?step=1")
	outcome := func(i int) string { return fmt.Sprintf(`document.querySelectorAll('.outcome')[%d]`, i) }
	b.ready(1)
	b.click(`[data-command="1"] .run-button`)
	b.until(outcome(0) + `.dataset.state === 'running'`)
	b.click(`[data-command="2"] .run-button`)
	b.until(outcome(1) + `.dataset.state === 'busy' && ` + outcome(1) + `.textContent.includes('Ctrl-C')`)
	b.click(`.screen[data-terminal="1"]`)
	b.interrupt()
	b.until(outcome(0) + `.dataset.state === 'differs' && ` + outcome(0) + `.textContent.includes('130')`)
	b.click(`[data-command="2"] .run-button`)
	b.until(outcome(1) + `.dataset.state === 'differs' && ` + outcome(1) + `.textContent.includes('five')`)
	b.click(`[data-command="3"] .run-button`)
	b.until(outcome(2) + `.dataset.state === 'differs' && ` + outcome(2) + `.textContent.includes('3')`)
	b.do("reloading", chromedp.Reload())
	b.until(outcome(1) + `?.dataset.state === 'differs'`)
}

// A command ends while the connection is away, as when a laptop sleeps. Nobody tells the page so, but
// the next prompt says it.
func TestBrowserAway(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ until [[ -e over ]]; do sleep 0.1; done")
	_, c := begin(t, "", &ws)
	b := open(t, c, "/?step=1")
	const state = `document.querySelector('.outcome').dataset.state`
	b.ready(1)
	b.run(`
		window.sockets = new Set();
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (data) { window.sockets.add(this); send.call(this, data); };`)
	b.click(`[data-command="1"] .run-button`)
	b.until(state + ` === 'running'`)
	b.run(`
		window.real = WebSocket;
		window.WebSocket = class { static OPEN = 1; constructor() { setTimeout(() => this.onclose?.(), 100); } send() {} close() {} };
		for (const socket of window.sockets) socket.close();`)
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "over"), nil, 0o644))
	waitFor(t, func() bool { return strings.Contains(string(c.remembered()["outcomes-1"]), "1/1") })
	if got := eval[string](b, state); got != "running" {
		t.Errorf("the page has heard of the end: %s", got)
	}
	b.run(`document.querySelector('.xterm-helper-textarea').focus()`)
	b.keys("x")
	b.until(`document.querySelector('#status').textContent.includes('what you typed was dropped')`)
	b.run(`window.WebSocket = window.real`)
	b.until(state + ` === 'ok'`)
}

// The buttons of an exercise do what make does: a check fails on the copy with which
// the learner begins, and passes on the solution.
func TestBrowserExercise(t *testing.T) {
	ws := copyClone(t)
	_, c := begin(t, "", &ws)
	tasks, task := patchTask(t, ws)
	b := open(t, c, "/?step=1")
	b.ready(1)
	b.click("#exercises summary")
	state := fmt.Sprintf(`document.querySelector('li[data-task="%s"]')?.dataset.state`, task.ID())
	b.until(state + ` === 'not begun'`)
	press := func(action string) {
		b.ready(1) // or the page answers that a command runs
		b.click(fmt.Sprintf(`li[data-task="%s"] [data-action="%s"]`, task.ID(), action))
	}
	press("exercise")
	b.until(state + ` === 'begun'`)
	// Edit shows the copy, also when the lesson has the whole page.
	b.click("#panes")
	b.until(`!document.querySelector('#tools').checkVisibility()`)
	press("edit")
	b.until(`document.querySelector('#editor .cm-content').checkVisibility()`)
	press("check")
	b.until(shows(1, task.NotDone()))
	press("hint")
	b.until(shows(1, "Which of the four types"))
	if eval[string](b, state) != "begun" {
		t.Error("a check that failed has changed the state")
	}
	solution, err := task.Solution()
	fatal.If(t, err)
	for name, data := range solution { // in place: the page looks at the copy now and then
		testfile.Write(t, filepath.Join(task.Dir(exercise.Work(ws)), name), string(data))
	}
	press("check")
	b.until(state + fmt.Sprintf(` === 'passed' && document.querySelector('#exercises summary').textContent.includes('1 of %d')`, len(tasks)))
	b.click(`[data-action="progress"]`)
	b.until(shows(1, "tasks have passed")) // the last line of the list
}

// patchTask returns the tasks of step 1, and the one of them that the tests do.
func patchTask(t *testing.T, ws workspace.Workspace) ([]exercise.Task, exercise.Task) {
	t.Helper()
	step, err := ws.Step("1")
	fatal.If(t, err)
	tasks, err := exercise.Of(step)
	fatal.If(t, err)
	return tasks, tasks[slices.IndexFunc(tasks, func(t exercise.Task) bool { return t.Name == "patch" })]
}

// copyClone copies this clone without what is the learner's or the cluster's. The copy
// has the same cluster.
func copyClone(t *testing.T) workspace.Workspace {
	t.Helper()
	ws, err := workspace.Find()
	fatal.If(t, err)
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	testfile.CopyClone(t, ws.Root, root)
	fatal.If(t, os.Symlink(ws.Path(), filepath.Join(root, ".workshop")))
	return workspace.Workspace{Root: root}
}

// Terminals and what they show survive a reload; one that is closed does not.
func TestBrowserReload(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ true")
	_, c := begin(t, "", &ws)
	b := open(t, c, "/")
	b.ready(1)
	b.click("#new-terminal")
	b.ready(2)
	b.keys("echo $((6 * 7))-second", kb.Enter)
	b.until(shows(2, "42-second"))
	b.click(`#terminal-list [data-terminal="1"]`)
	b.keys("echo $((6 * 7))-first; sleep 1000", kb.Enter)
	b.until(shows(1, "42-first"))
	b.click("#all-terminals")
	b.do("reloading", chromedp.Reload())
	b.until(shows(1, "42-first") + " && " + shows(2, "42-second"))
	b.click(`.screen[data-terminal="1"]`)
	b.interrupt()
	b.keys("echo still-$((6 * 7))", kb.Enter)
	b.until(shows(1, "still-42"))
	// A long paste comes whole.
	b.keys("stty -echo -icanon; echo paste-$((6 * 7)); head -c $((1500 * 1000)) | wc -c; stty sane", kb.Enter)
	b.until(shows(1, "paste-42"))
	b.run(`const clipboardData = new DataTransfer();
		clipboardData.setData('text/plain', 'x'.repeat(1_500_000));
		document.activeElement.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true }))`)
	b.until(shows(1, "1500000"))
	b.click(`[aria-label="Close terminal 2"]`)
	b.until(`!document.querySelector('.screen[data-terminal="2"]')`)
	b.click(`.screen[data-terminal="1"]`)
	b.keys("exit", kb.Enter)
	b.until(`!document.querySelector('.screen')`)
	b.do("reloading", chromedp.Reload())
	b.ready(3)
}

const f6 = kb.F6

// Everything can be done with keys alone, and no part of the page holds the focus.
func TestBrowserKeyboard(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ echo 4$((1+1))\n42")
	_, c := begin(t, "", &ws)
	b := open(t, c, "/?step=1")
	b.ready(1)
	b.until(`document.querySelector('.run-button') !== null`) // the lesson may come after the prompt
	focus := func() string {
		return eval[string](b, `document.activeElement.id || document.activeElement.className || document.activeElement.tagName`)
	}
	expect := func(what, want string) {
		t.Helper()
		if got := focus(); got != want {
			b.fail(what, fmt.Errorf("the focus is on %q, want %q", got, want))
		}
	}
	b.run(`document.body.focus()`)
	b.keys(kb.Tab)
	expect("the first Tab", "skip")
	b.keys(kb.Enter)
	b.until(`document.activeElement.id === 'lesson'`)
	b.keys(kb.Tab)
	expect("Tab in the lesson", "run-button")
	if outline := eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`); outline == "none" {
		t.Error("the focus on a button cannot be seen")
	}
	b.keys(kb.Enter)
	b.until(`document.querySelector('.outcome').dataset.state === 'ok'`)
	b.keys(f6)
	expect("F6 in the lesson", "tab-terminals")
	b.keys(kb.ArrowRight)
	expect("right in the tabs", "tab-xray")
	b.until(`document.querySelector('#xray').checkVisibility() && document.querySelector('#terminals').checkVisibility()`)
	b.keys(kb.ArrowLeft, f6)
	expect("F6 in the tabs", "xterm-helper-textarea")
	b.keys("echo by-$((6 * 7))-keys", kb.Enter)
	b.until(shows(1, "by-42-keys"))
	b.keys(kb.Tab)
	expect("Tab in the terminal, which is the shell's", "xterm-helper-textarea")
	b.keys(f6)
	expect("F6 in the terminal", "lesson")
	b.run(`document.querySelector('#splitter').focus()`)
	before := eval[string](b, `document.querySelector('#splitter').getAttribute('aria-valuenow')`)
	b.keys(kb.ArrowLeft, kb.ArrowLeft)
	if after := eval[string](b, `document.querySelector('#splitter').getAttribute('aria-valuenow')`); after == before {
		t.Error("the arrow keys have not moved the splitter")
	}
	// From the top to the end by Tab alone, without a terminal on the way.
	b.run(`document.activeElement.blur()`)
	b.run(`window.scrollTo(0, 0), document.querySelector('.skip').focus()`)
	seen := map[string]bool{}
	for range 60 {
		b.keys(kb.Tab)
		at := focus()
		seen[at] = true
		if at == "xterm-helper-textarea" {
			break
		}
	}
	// An element that stays keeps the focus when those before it go.
	b.run(`import('/static/dom.js').then(({ keyed, button }) => {
		const show = (names) => keyed(document.querySelector('#announce'), names, (name) => name, (name) => button(name, null, { id: name }));
		show(['gone', 'stays']);
		document.querySelector('#stays').focus();
		show(['stays', 'new']);
	})`)
	expect("what stays of a list", "stays")
	b.click(`[aria-label="Close terminal 1"]`)
	b.until(`document.activeElement.id === 'new-terminal'`)
	b.run(`document.querySelector('#tab-terminals').focus()`)
	b.keys(f6)
	expect("F6 in the tabs without a terminal", "new-terminal")
	for _, want := range []string{"own-window", "panes", "SUMMARY", "search", "lesson", "splitter", "tab-terminals", "new-terminal", "all-terminals", "xterm-helper-textarea"} {
		if !seen[want] {
			t.Errorf("Tab does not reach %s; it reaches %v", want, seen)
		}
	}
}

// No lesson and no tab needs horizontal scrolling, on a projector or on a phone.
func TestBrowserWidth(t *testing.T) {
	t.Parallel()
	e, c := begin(t, "", nil)
	steps, err := e.Workspace().Steps()
	fatal.If(t, err)
	b := open(t, c, "/?step=1")
	b.ready(1)
	for _, size := range [][2]int64{{1280, 720}, {360, 740}} {
		b.size(size[0], size[1])
		fits := func(what string) {
			t.Helper()
			wide := eval[[]string](b, `[document.documentElement, document.body, ...document.querySelectorAll('#lesson, #xray, #file, #exercises, #steps, header, .bar')].filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.className || e.tagName)`)
			if len(wide) > 0 {
				b.screenshot(fmt.Sprintf("%s-%d", t.Name(), size[0]))
				t.Errorf("%s at a width of %d: %v can be scrolled to the side", what, size[0], wide)
			}
		}
		for _, s := range steps {
			b.click(fmt.Sprintf(`#steps [data-step="%d"]`, s.Number))
			b.until(fmt.Sprintf(`document.querySelector('#steps [data-step="%d"]').getAttribute('aria-current') && document.querySelector('#lesson .run')?.dataset.step === '%d'`, s.Number, s.Number))
			fits(s.Name)
		}
		b.click("#exercises summary")
		fits("the exercises")
		b.click("#exercises summary")
		for _, name := range []string{"xray", "file", "terminals"} {
			b.click("#tab-" + name)
			fits(name)
		}
		// What opens over the page stays on the screen, and covers nothing that it belongs to.
		for _, menu := range []string{"#settings", "#contents"} {
			b.click(menu + " > summary")
			b.until(fmt.Sprintf(`document.querySelector('%s > :last-child').checkVisibility()`, menu))
			if !eval[bool](b, fmt.Sprintf(`(({left, right}) => left >= 0 && right <= innerWidth)(document.querySelector('%s > :last-child').getBoundingClientRect())`, menu)) {
				b.screenshot(fmt.Sprintf("%s-%d", t.Name(), size[0]))
				t.Errorf("at a width of %d, %s leaves the screen", size[0], menu)
			}
			b.click(menu + " > summary")
		}
		b.click("#search")
		b.keys("Kubernetes")
		b.until(`document.querySelector('#found').checkVisibility() && document.querySelectorAll('#found li').length > 0`)
		if !eval[bool](b, `document.querySelector('#found').getBoundingClientRect().top >= document.querySelector('#search').getBoundingClientRect().bottom`) {
			b.screenshot(fmt.Sprintf("%s-%d", t.Name(), size[0]))
			t.Errorf("at a width of %d, what was found covers the field", size[0])
		}
		b.keys(kb.Escape)
		b.until(`document.querySelector('#found').hidden`)
	}
}

// accessible runs axe-core, which may find nothing serious.
func (b *tab) accessible(part string) {
	b.t.Helper()
	axe, err := os.ReadFile(filepath.Join("testdata", "axe", "axe.min.js"))
	fatal.If(b.t, err)
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		if !eval[bool](b, `typeof axe === 'object'`) {
			b.do("loading axe-core", chromedp.Evaluate[chromedp.Void](string(axe)))
		}
		findings := eval[[]string](b, `axe.run({resultTypes: ['violations']}).then((r) => r.violations.filter((v) => ['serious', 'critical'].includes(v.impact)).flatMap((v) => v.nodes.map((n) => v.id + ': ' + n.target.join(' ') + ': ' + n.failureSummary)))`)
		for _, f := range findings {
			b.t.Errorf("%s, %s: %s", part, scheme, f)
		}
	}
}

// axe-core finds nothing serious in any part of the page, light or dark.
func TestBrowserAccessibility(t *testing.T) {
	t.Parallel()
	_, c := begin(t, "", nil)
	b := open(t, c, "/?step=3")
	b.ready(1)
	b.accessible("the lesson and a terminal")
	b.click("#exercises summary")
	b.accessible("the exercises")
	b.click("#exercises summary")
	b.click(`#lesson a[data-path$="naive-watch/main.go"]`)
	b.until(`document.querySelector('#file .line')`)
	b.accessible("a file")
	b.click("#tab-xray")
	b.accessible("the X-ray")
}

// xrayPage is the page with the X-ray open, and a program at work in terminal 1.
func xrayPage(t *testing.T, program, args string, definitions ...string) (*xraytest.Room, *tab) {
	t.Helper()
	ws := clone(t, "$ true")
	e, c := begin(t, "", &ws)
	crdtest.Share(t, e.Env, definitions...)
	binary := e.Program(program)
	b := open(t, c, "/")
	b.ready(1)
	b.click("#tab-xray")
	b.click("#new-terminal")
	b.ready(2)
	b.click(`#terminal-list [data-terminal="1"]`)
	b.keys(fmt.Sprintf("%s -kubeconfig $KUBECONFIG -namespace %s %s", binary, e.Namespace, args), kb.Enter)
	b.until(lane(path.Base(program)) + `.dataset.events > 0`)
	return e, b
}

// create makes a ConfigMap past the proxy, so that only the watches show it.
func create(t testing.TB, e *xraytest.Room, name string) *corev1.ConfigMap {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mirror": "true"}}}
	object, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(t.Context(), object, metav1.CreateOptions{})
	fatal.If(t, err)
	return object
}

// lane is the line of a program's open watch.
func lane(program string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('.lanes li')].find((li) => li.textContent.includes(%q))`, program)
}

// row is the newest request in whose line all of these texts are.
func row(texts ...string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('#xray-requests tbody tr')].find((tr) => %s)`,
		"tr.textContent.includes("+strings.Join(quoted(texts), ") && tr.textContent.includes(")+")")
}

func quoted(texts []string) []string {
	var q []string
	for _, text := range texts {
		q = append(q, fmt.Sprintf("%q", text))
	}
	return q
}

// inOrder is an expression: whether elements hold these texts, one after the other.
func inOrder(selector string, texts ...string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].reduce((left, {textContent}) => (left.length && textContent.includes(left[0]) ? left.slice(1) : left), [%s]).length === 0`,
		selector, strings.Join(quoted(texts), ", "))
}

// follow chooses a key, in whichever column it is.
func (b *tab) follow(key string) {
	b.t.Helper()
	button := fmt.Sprintf(`document.querySelector('.inside button[data-key=%q]')`, key)
	b.until(button)
	b.run(button + `.click()`)
}

// inTerminal runs a command in terminal 2, and waits until its last line is there.
func (b *tab) inTerminal(command, end string) {
	b.t.Helper()
	b.click(`#terminal-list [data-terminal="2"]`)
	b.keys(command, kb.Enter)
	b.until(shows(2, end))
}

// Each button of the X-ray does what it says, and the page shows its effect.
func TestBrowserXrayFaults(t *testing.T) {
	t.Parallel()
	e, b := xrayPage(t, "./03-informer/shared-informer", "-until end")
	const informer = "shared-informer"
	create(t, e, "first")
	b.until(lane(informer) + `.textContent.includes('ADDED first') && ` + lane(informer) + `.dataset.dots > 0`)
	b.until(`document.querySelector('.programs').textContent.includes('shared-informer')`)
	b.click("#xray-faults summary")
	// press clicks a button, and waits until the page says what was done.
	press := func(fault, says string) {
		t.Helper()
		b.click(fmt.Sprintf(`[data-fault=%q]`, fault))
		b.until(fmt.Sprintf(`document.querySelector('#xray-fault-log li')?.textContent.includes(%q)`, says))
	}
	watch := func() string { t.Helper(); return eval[string](b, lane(informer)+`.dataset.watch`) }

	before := watch()
	press("cut", "1 watch cut")
	b.until(row(informer, "cut") + ` && ` + lane(informer) + `.dataset.watch > ` + before)

	before = watch()
	press("stall", "no new one gets an answer")
	b.until(lane(informer) + `.dataset.watch > ` + before)
	create(t, e, "stalled")
	b.inTerminal("kubectl get configmap stalled -o jsonpath='{.metadata.name}{6}{7}'", "stalled67")
	b.until(row("kubectl", "get", "configmaps/stalled", "200"))
	if events := eval[string](b, lane(informer)+`.dataset.events`); events != "0" {
		t.Errorf("a stalled watch shows %s events", events)
	}
	press("clear", "what was stalled goes on")
	b.until(lane(informer) + `.dataset.events > 0`)
	b.click(`#terminal-list [data-terminal="1"]`)
	b.until(shows(1, "ADDED stalled"))

	before = watch()
	press("gone", "410 Gone")
	b.until(row(informer, "error-event") + ` && ` + row(informer, "watch-list", "open"))
	b.until(lane(informer) + `.dataset.watch > ` + before + ` && ` + lane(informer) + `.dataset.events > 0`)

	press("drop", "gets lost")
	create(t, e, "dropped")
	b.until(lane(informer) + `.textContent.includes('drop')`)
	create(t, e, "after")
	b.until(lane(informer) + `.textContent.includes('ADDED after')`)
	b.click(`#terminal-list [data-terminal="1"]`)
	b.until(shows(1, "ADDED after"))
	if eval[bool](b, shows(1, "ADDED dropped")) {
		t.Error("the program has received the event that was dropped")
	}

	press("delay", "5s later")
	start := time.Now()
	create(t, e, "late")
	b.until(shows(1, "ADDED late"))
	if took := time.Since(start); took < 4*time.Second {
		t.Errorf("the delayed event came after %s", took)
	}
	b.until(row(informer, "open", "delay"))

	press("conflict", "409 Conflict")
	b.inTerminal("kubectl annotate configmap first a=b; echo $((6 * 7))-annotated", "42-annotated")
	b.until(row("kubectl", "patch", "configmaps/first", "409") + `.dataset.failed === 'true'`)

	press("away", "cannot be reached")
	b.until(`!` + lane(informer))
	b.inTerminal("kubectl get nodes; echo $((7 * 7))-away", "49-away")
	press("back", "can be reached again")
	b.until(lane(informer))
	create(t, e, "back")
	b.until(lane(informer) + `.textContent.includes('ADDED back')`)

	// Choosing a program leaves the requests of that one alone.
	b.click(`.programs li:has(button):nth-child(1) button`)
	b.until(`new Set([...document.querySelectorAll('#xray-requests tbody tr')].map((tr) => tr.children[1].textContent)).size === 1`)
}

// Time can be stopped, stepped and played back, and what was saved opens again.
func TestBrowserXrayTime(t *testing.T) {
	t.Parallel()
	e, b := xrayPage(t, "./03-informer/shared-informer", "-until end")
	const (
		mode     = `document.querySelector('#xray-mode').textContent`
		position = `Number(document.querySelector('#xray-position').value)`
	)
	one, two := lane("shared-informer")+`.textContent.includes('ADDED one')`, lane("shared-informer")+`.textContent.includes('ADDED two')`
	create(t, e, "one")
	b.until(one)
	const target = `document.querySelector('#xray-fault-program').value`
	b.run(target + ` = 'shared-informer'`)
	b.click("#xray-stop")
	b.until(mode + ` === 'Stopped'`)
	create(t, e, "two")
	b.click(`#terminal-list [data-terminal="1"]`)
	b.until(shows(1, "ADDED two") + ` && Number(document.querySelector('#xray-position').max) > ` + position)
	if !eval[bool](b, one) {
		t.Error("the picture has gone on after Stop")
	}
	// step goes on or back by one item until the picture is as it should be: there are other items around.
	step := func(by int, want string) {
		t.Helper()
		for range 300 {
			if eval[bool](b, want) {
				return
			}
			// As the arrow keys do, which this browser now and then loses beside a moving picture.
			b.run(fmt.Sprintf(`(() => { const p = document.querySelector('#xray-position'); p.value = Number(p.value) + %d; p.dispatchEvent(new Event('input')); })()`, by))
			time.Sleep(150 * time.Millisecond) // the page writes ten times a second
		}
		b.fail("going through the recording", errors.New("300 steps do not lead to "+want))
	}
	step(1, two)
	step(-1, one)
	b.run(`document.querySelector('#xray-position').focus()`)
	b.keys(kb.Home)
	b.until(position + ` === 0 && document.querySelectorAll('.lanes li').length === 0`)
	if got := eval[string](b, target); got != "shared-informer" {
		t.Errorf("the program that a fault shall strike was chosen, and is %q where no program has sent anything yet", got)
	}
	b.click("#xray-play")
	b.until(mode + ` === 'Playing back'`)
	b.until(mode + ` === 'Stopped' && ` + two)
	b.click("#xray-live")
	b.until(mode + ` === 'Live'`)

	file := filepath.Join(t.TempDir(), "xray.json")
	saved := b.download("#xray-save")
	// As of step 07's program, which has two informers of pods.
	end, more := strings.LastIndex(saved, "]"), ""
	for n := range 2 {
		more += fmt.Sprintf(`,{"t":%d,"kind":"state","program":"two","pid":1,"caches":[{"resource":"pods","objects":7%d},{"resource":"pods","objects":8%[2]d}]}`, time.Now().UnixMilli(), n)
	}
	saved = saved[:end] + more + saved[end:]
	fatal.If(t, os.WriteFile(file, []byte(saved), 0o644))
	b.do("opening a recording", chromedp.SetUploadFiles(chromedp.CSS("#xray-open"), []string{file}))
	b.until(mode + ` === 'File, stopped' && ` + two)
	cached := `[...document.querySelectorAll('[data-program="two 1"] .caches tbody tr')].map((row) => row.children[1].textContent).join()`
	b.until(cached + ` === '71,81'`)
	step(-1, cached+` === '70,80'`)
	create(t, e, "three")
	b.until(shows(1, "ADDED three"))
	if !eval[bool](b, two) {
		t.Error("a file shows what happens now")
	}
	b.click("#xray-live")
	b.until(mode + ` === 'Live' && ` + lane("shared-informer") + `.textContent.includes('ADDED three')`)
}

// A controller is seen from inside: its cache, its queue, and the way of one key.
func TestBrowserXrayInside(t *testing.T) {
	t.Parallel()
	e, b := xrayPage(t, "./03-informer/first-loop", "")
	const (
		inside = `document.querySelector('.inside article')`
		trail  = `document.querySelector('.trail').textContent`
	)
	a := create(t, e, "a")
	b.until(inside + `.textContent.includes('first-loop') && ` + inside + `.querySelector('.queue').textContent.includes('2 workers')`)
	b.until(inside + `.querySelector('.caches tbody').textContent.includes('configmaps') && ` + inside + `.querySelector('[data-behind="0"]')`)
	b.until(inside + fmt.Sprintf(`.querySelector('[data-column="done"]').textContent.includes('%s/a')`, e.Namespace))
	b.run(inside + fmt.Sprintf(`.querySelector('[data-column="done"] button[data-key="%s/a"]').id = 'chosen'`, e.Namespace))
	b.click("#chosen")
	for _, step := range []string{"event", "queued", "phase", "request", "done"} {
		b.until(trail + fmt.Sprintf(".includes(%q)", step))
	}
	// A refused write sends the key back, and it waits for its turn.
	b.click("#xray-faults summary")
	b.until(`[...document.querySelectorAll('#xray-fault-program option')].some((o) => o.value === 'first-loop')`)
	b.run(`document.querySelector('#xray-fault-program').value = 'first-loop'`)
	b.click(`[data-fault="conflict"]`)
	b.until(`document.querySelector('#xray-fault-log li')?.textContent.includes('by first-loop')`)
	a.Data = map[string]string{"v": "2"}
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.until(row("first-loop", "update", "configmaps/a-copy", "409"))
	b.until(trail + `.includes('backing off')`)
	b.until(row("first-loop", "update", "configmaps/a-copy", "200"))
	// The same in a window of its own, as the README shows it.
	b.do("opening the X-ray in its own window", chromedp.Navigate(eval[string](b, `document.querySelector('#own-window').href`)))
	b.follow(e.Namespace + "/a")
	for _, name := range []string{"b", "c", "d"} {
		create(t, e, name)
	}
	b.until(trail + `.includes('backing off') && ` + lane("first-loop") + `.dataset.dots > 0`)
	b.screenshot("xray")
	b.accessible("the X-ray at work")
}

// A controller of step 06 is followed from an event to its writes: each has its reason,
// and its request is on the wire.
func TestBrowserXrayController(t *testing.T) {
	t.Parallel()
	e, b := xrayPage(t, "./06-controller/icecream", "", "../../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	b.inTerminal("kubectl apply -n "+e.Namespace+" -f "+e.Workspace().Root+"/06-controller/objects/vanilla.yaml", "vanilla created")
	key := e.Namespace + "/vanilla"
	step := func(step, what string) func(xray.Item) bool {
		return func(i xray.Item) bool { return i.Step == step && i.What == what && i.Key == key }
	}
	e.Until("the controller has done its work", step("write", "create"), step("write", "status"), step("phase", "done"))
	// More passes at once than in a batch on average, and the page shows all of it.
	b.follow(key)
	b.until(inOrder(".trail li", "event Icecream added", "because Icecream added", "phase own",
		"write create, because there was none", "write status, because it has changed", "phase done"))
	b.until(inOrder(".trail li", "request update icecreams/status, answer 200"))
	b.until(row("icecream", "create", "deployments", "201"))
	b.until(row("icecream", "update", "icecreams/status/vanilla", "200"))
}

// The button of a tour runs its scenario in the terminal, and the page says what to look at.
func TestBrowserXrayTour(t *testing.T) {
	t.Parallel()
	_, c := begin(t, "", nil)
	b := open(t, c, "/")
	b.ready(1)
	b.click("#tab-xray")
	b.click("#xray-tours summary")
	b.until(`document.querySelectorAll('[data-tour]').length === 3`)
	b.click(`[data-tour="tombstone"]`)
	b.until(`document.querySelector('#xray-look li')?.textContent.includes('tombstones opens its watch')`)
	b.until(row("tombstones", "watch-list", "configmaps") + ` && ` + row("kubectl", "delete", "configmaps", "200"))
	b.until(shows(1, `"tour-tombstone" deleted`))
}

// The X-ray keeps up: an event is on the screen within 100 ms at 100 events a second. At 2,000
// a second the page shows counts, its frames stay short, and what it keeps is bounded.
func BenchmarkBrowserXray(t *testing.B) {
	ws := clone(t, "$ true")
	e, c := begin(t, "", &ws)
	b := open(t, c, "/?view=xray")
	config, err := clientcmd.BuildConfigFromFlags("", e.Proxy.Kubeconfig)
	fatal.If(t, err)
	through, err := kubernetes.NewForConfig(config)
	fatal.If(t, err)
	names := []string{"a", "b", "c", "d"}
	version := ""
	for _, name := range names {
		version = create(t, e, name).ResourceVersion
	}
	var seen atomic.Int64
	follow := func() {
		t.Helper()
		w, err := through.CoreV1().ConfigMaps(e.Namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		fatal.If(t, err)
		t.Cleanup(w.Stop)
		go func() {
			for range w.ResultChan() {
				seen.Add(1)
			}
		}()
	}
	// change changes four objects a hundred times a second in all.
	change := func(d time.Duration) {
		t.Helper()
		var writers sync.WaitGroup
		for _, name := range names {
			writers.Go(func() {
				ticker := time.NewTicker(40 * time.Millisecond)
				defer ticker.Stop()
				for i := range int(d / (40 * time.Millisecond)) {
					<-ticker.C
					patch := fmt.Appendf(nil, `{"data":{"v":"%d"}}`, i)
					if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		writers.Wait()
	}
	// In each frame, after the page has drawn: how long the last one took, and how old the events are that have come since.
	b.run(`import('/static/xray.js').then(({recording}) => {
		let last = performance.now(), seen = recording.items.at(-1);
		window.measured = {toScreen: [], frames: []};
		requestAnimationFrame(function frame(at) {
			requestAnimationFrame(frame);
			measured.frames.push(at - last);
			last = at;
			for (const item of recording.items.slice(recording.items.lastIndexOf(seen) + 1)) if (item.kind === 'event') measured.toScreen.push(Date.now() - item.t);
			seen = recording.items.at(-1);
		});
	})`)
	reset := func() {
		seen.Store(0)
		b.run(`measured.toScreen.length = measured.frames.length = 0`)
	}
	percentile := func(list string, p float64) float64 {
		return eval[float64](b, fmt.Sprintf(`measured.%s.toSorted((a, b) => a - b)[Math.floor(measured.%[1]s.length * %g)]`, list, p))
	}
	const length = 10 * time.Second
	for t.Loop() {
		follow()
		b.until(`document.querySelectorAll('.lanes li').length === 1`)
		reset()
		start := time.Now()
		change(length)
		events := float64(seen.Load()) / time.Since(start).Seconds()
		latency := percentile("toScreen", 0.99)
		t.ReportMetric(events, "slow-events/s")
		t.ReportMetric(latency, "slow-to-screen-p99-ms")
		if latency > 100 {
			t.Errorf("at %.0f events a second, one in a hundred reached the screen after %.0f ms", events, latency)
		}
		now, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(t.Context(), metav1.ListOptions{})
		fatal.If(t, err)
		version = now.ResourceVersion // or each watch would begin with all changes so far
		for range 19 {
			follow()
		}
		b.until(`document.querySelectorAll('.lanes li').length === 20`)
		reset()
		start = time.Now()
		b.run(`new MutationObserver(() => { document.body.dataset.counted ||= document.querySelector('#xray').dataset.counting === 'true' ? 'yes' : ''; }).observe(document.querySelector('#xray'), {attributes: true})`)
		change(length)
		if eval[string](b, `document.body.dataset.counted ?? ''`) != "yes" {
			t.Error("the page has not gone over to counts")
		}
		events = float64(seen.Load()) / time.Since(start).Seconds()
		frame := percentile("frames", 0.95)
		t.ReportMetric(events, "fast-events/s")
		t.ReportMetric(frame, "fast-frame-p95-ms")
		if frame > 50 {
			t.Errorf("at %.0f events a second, one frame in twenty took over %.0f ms", events, frame)
		}
		if kept := eval[int](b, `import('/static/xray.js').then(({recording}) => recording.items.length)`); kept > 11_000 {
			t.Errorf("the page keeps %d items", kept)
		}
	}
}
