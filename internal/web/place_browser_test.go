//go:build browser

package web

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// control presses Ctrl and a letter.
func (b *tab) control(letter string) {
	b.t.Helper()
	code := int64(strings.ToUpper(letter)[0])
	b.press(input.DispatchKeyEventParams{Type: kb.KeyDown, Modifiers: 2, Key: letter, Code: "Key" + strings.ToUpper(letter), WindowsVirtualKeyCode: code})
	b.press(input.DispatchKeyEventParams{Type: kb.KeyUp, Key: letter, Code: "Key" + strings.ToUpper(letter), WindowsVirtualKeyCode: code})
}

// An exercise is begun, edited, saved and checked in the page alone, and the verdict stands at its line.
func TestBrowserEditor(t *testing.T) {
	t.Parallel()
	ws := copyClone(t)
	_, c := begin(t, "", &ws)
	_, task := patchTask(t, ws)
	name := filepath.ToSlash(task.Shown(task.Open[0].File))
	disk := filepath.Join(ws.Root, name)
	read := func() string {
		t.Helper()
		data, err := os.ReadFile(disk)
		fatal.If(t, err)
		return string(data)
	}
	drafts := func() (texts []string) {
		for name, value := range c.remembered() {
			if strings.HasPrefix(name, "draft-") && string(value) != "null" {
				texts = append(texts, string(value))
			}
		}
		return texts
	}
	const editor = `document.querySelector('#editor .cm-content')`
	b := open(t, c, "/?step=1")
	b.ready(1)
	b.click("#exercises summary")
	b.until(fmt.Sprintf(`document.querySelector('li[data-task="%s"]')?.dataset.state === 'not begun'`, task.ID()))
	b.click(fmt.Sprintf(`li[data-task="%s"] [data-action="exercise"]`, task.ID()))
	b.until(editor + `?.textContent.includes('/usr/bin/env bash') && document.querySelector('#edited').textContent === ` + fmt.Sprintf("%q", name))
	// What the task asks for stands beside it.
	b.until(`document.querySelector('#asked').checkVisibility()`)
	b.click("#asked summary")
	b.until(fmt.Sprintf(`document.querySelector('#asked pre').checkVisibility() && document.querySelector('#asked').textContent.includes(%q)`, strings.Split(strings.TrimSpace(task.Do), "\n")[0]))
	b.run(editor + `.focus()`)
	// Typed, saved by Ctrl-S, and on the disk.
	b.until(`document.activeElement === ` + editor)
	b.keys(kb.End, kb.Enter, "# mine")
	b.until(`document.querySelector('#edited').textContent.includes('not saved')`)
	if strings.Contains(read(), "# mine") {
		t.Error("it was saved before anybody has asked for it")
	}
	waitFor(t, func() bool { return len(drafts()) == 1 })
	// While the server is away nobody keeps what is typed, and the browser asks before the page is left.
	const asks = `!dispatchEvent(new Event('beforeunload', { cancelable: true }))`
	if eval[bool](b, asks) {
		t.Error("the browser asks, although the draft is kept")
	}
	b.run(`window.real = window.fetch; window.fetch = () => Promise.reject(new Error('away'))`)
	b.keys(" away")
	b.until(asks)
	b.run(`window.fetch = window.real`)
	b.keys(" and back")
	b.until(`!(` + asks + `)`)
	// A reload loses nothing that was typed.
	b.do("reloading", chromedp.Reload())
	b.until(editor + `?.textContent.includes('# mine') && document.querySelector('#edited').textContent.includes('not saved')`)
	// Also what was typed just before leaving.
	b.run(editor + `.focus()`)
	b.keys(kb.End, kb.Enter, "# just ")
	b.do("reloading", chromedp.Reload())
	b.until(editor + `?.textContent.includes('just ') && document.querySelector('#edited').textContent.includes('not saved')`)
	b.run(editor + `.focus()`)
	b.control("s")
	b.control("s") // one save after the other, and no conflict with oneself
	b.until(`!document.querySelector('#edited').textContent.includes('not saved')`)
	if !strings.Contains(read(), "# mine") {
		t.Errorf("Ctrl-S has not saved: %q", read())
	}
	// Check names the mistake at its line.
	b.click(`#editor [data-edit="check"]`)
	b.until(`/^Line \d+: .*is not done yet/.test(document.querySelector('#verdict').textContent) && document.querySelector('.cm-lint-marker-error')`)
	b.screenshot("editor")
	b.weighs(300_000, 900_000)
	b.accessible("the editor with a verdict")
	b.click(`#editor [data-edit="hint"]`)
	b.until(shows(1, "Which of the four types"))
	// Check in the list judges what is in the editor, too.
	b.ready(1)
	b.run(editor + `.focus()`)
	b.keys(kb.End, kb.Enter, "# checked")
	b.until(`document.querySelector('#edited').textContent.includes('not saved')`)
	b.click("#exercises summary")
	b.click(fmt.Sprintf(`li[data-task="%s"] [data-action="check"]`, task.ID()))
	waitFor(t, func() bool { return strings.Contains(read(), "# checked") })
	b.until(`document.querySelector('#verdict').textContent.startsWith('Checking')`)
	b.until(`/^Line \d+: .*is not done yet/.test(document.querySelector('#verdict').textContent)`)
	// Somebody else writes the file, with other line ends: a clean one follows and is clean, a changed one asks.
	fatal.If(t, os.WriteFile(disk, []byte("# theirs\r\n"), 0o755))
	b.until(editor + `.textContent.includes('# theirs') && document.querySelector('#edited').textContent === ` + fmt.Sprintf("%q", name))
	other := open(t, c, "/?step=1") // of the same file, without changes
	other.until(editor + `?.textContent.includes('# theirs')`)
	b.run(editor + `.focus()`)
	b.keys("# both")
	waitFor(t, func() bool { return len(drafts()) == 1 })
	fatal.If(t, os.WriteFile(disk, []byte("# theirs again\n"), 0o755))
	b.until(`!document.querySelector('#conflict').hidden`)
	b.control("s")
	b.until(`document.querySelector('#status').textContent.includes('nothing was saved')`)
	if read() != "# theirs again\n" {
		t.Errorf("what somebody else has written is lost: %q", read())
	}
	// The other window follows the disk, is closed, and leaves the draft of this one alone.
	other.until(editor + `.textContent.includes('# theirs again')`)
	other.click(`#files .close`)
	other.until(`document.querySelector('#files').hidden`)
	other.do("reloading", chromedp.Reload()) // which sends all that it has still to say
	other.ready(1)
	if draft := drafts(); len(draft) != 1 {
		t.Errorf("the drafts are %q after another window without changes was closed", draft)
	}
	b.run(`document.querySelectorAll('#conflict button')[1].click()`) // keep mine
	b.until(`document.querySelector('#conflict').hidden`)
	b.click("#save")
	b.until(`document.querySelector('#status').textContent.includes('is saved')`)
	if !strings.Contains(read(), "# both") {
		t.Errorf("what was kept is not on the disk: %q", read())
	}
	solution, err := task.Solution()
	fatal.If(t, err)
	for file, text := range solution { // each as a whole, because the page looks again and again
		fatal.If(t, workspace.WriteWhole(filepath.Join(task.Dir(exercise.Work(ws)), filepath.FromSlash(file)), text, 0o755))
	}
	b.until(`!` + editor + `.textContent.includes('# both')`)
	b.ready(1) // the hint may still run
	b.click(`#editor [data-edit="check"]`)
	b.until(`document.querySelector('#verdict').textContent === 'patch has passed.'`)
	// Beside another step's lesson, and after a reload there, the file still is that of its exercise.
	b.click(`#steps [data-step="3"]`)
	b.until(`document.querySelector('#steps [data-step="3"]').getAttribute('aria-current') && document.querySelector('#lesson .run')?.dataset.step === '3'`)
	b.do("reloading", chromedp.Reload())
	b.until(`document.querySelector('#edited').textContent === ` + fmt.Sprintf("%q", name) + ` && document.querySelector('#editor [data-edit="check"]').checkVisibility() && document.querySelector('#verdict').textContent === 'patch has passed.'`)
	b.errors = slices.DeleteFunc(b.errors, func(e string) bool { return strings.Contains(e, "409 (Conflict)") }) // the one that was asked for
}

// Of two open files each keeps its own text, also when only one of them is saved, and across a reload.
func TestBrowserTwoFiles(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ true")
	testfile.WriteAll(t, ws.Root, map[string]string{
		"01-one/README.md": "# One\n\n[a](../work/01-one/a.go) and [b](../work/01-one/b.sh)\n\n```console\n$ true\n```\n",
		"work/01-one/a.go": "package a\n",
		"work/01-one/b.sh": "true\n",
	})
	_, c := begin(t, "", &ws)
	b := open(t, c, "/?step=1&file=work/01-one/a.go")
	// shown waits until a file is in front, with so many dots that say "not saved" on the two names.
	shown := func(file, text string, dirty int) {
		t.Helper()
		b.until(fmt.Sprintf(`document.querySelector('[data-file="work/01-one/%s"]')?.ariaPressed === 'true' &&
			[...document.querySelectorAll('.cm-content')].filter((one) => one.checkVisibility()).map((one) => one.textContent).join() === %q &&
			document.querySelectorAll('[data-file]').length === 2 && [...document.querySelectorAll('[data-file]')].filter((one) => one.textContent.endsWith('•')).length === %d`, file, text, dirty))
	}
	b.until(`document.querySelector('.cm-content')?.textContent === 'package a'`)
	b.keys(kb.End, " // one")
	b.click(`#lesson [data-path="work/01-one/b.sh"]`)
	shown("b.sh", "true", 1)
	b.keys(kb.End, " # two")
	shown("b.sh", "true # two", 2)
	b.control("s")
	shown("b.sh", "true # two", 1)
	b.click(`[data-file="work/01-one/a.go"]`)
	shown("a.go", "package a // one", 1)
	b.do("reloading", chromedp.Reload())
	shown("a.go", "package a // one", 1)
	// Another window that has the draft, too, leaves it as it is by then.
	other := open(t, c, "/?step=1")
	other.until(`[...document.querySelectorAll('.cm-content')].some((one) => one.textContent === 'package a // one')`)
	b.keys(kb.End, ", and more")
	draft := func() string { return string(c.remembered()["draft-work-01-one-a-go"]) }
	waitFor(t, func() bool { return strings.Contains(draft(), "and more") })
	other.do("reloading", chromedp.Reload()) // which sends all that it has still to say
	if other.ready(1); !strings.Contains(draft(), "and more") {
		t.Errorf("another window has left the draft as %q", draft())
	}
	// If somebody types there, too, a reload of this one keeps its own text.
	const inFront = `[...document.querySelectorAll('.cm-content')].find((one) => one.checkVisibility())`
	other.until(inFront + `?.textContent.includes('and more')`)
	other.run(inFront + `.focus()`)
	other.keys(kb.End, ", theirs")
	waitFor(t, func() bool { return strings.Contains(draft(), "theirs") })
	b.do("reloading", chromedp.Reload())
	shown("a.go", "package a // one, and more", 1)
	b.click(`[data-file="work/01-one/b.sh"]`)
	shown("b.sh", "true # two", 1)
	// Who leaves the page before it has opened both again finds both the next time.
	b.do("leaving", chromedp.Navigate(c.base+"/?view=xray"))
	b.run(`const real = window.fetch; window.fetch = (path, ...more) => (path.includes('b.sh') ? new Promise(() => {}) : real(path, ...more));
		import('/static/editor.js').then(({ reopen }) => { reopen(); })`)
	b.until(`document.querySelector('.cm-content')?.textContent.startsWith('package a')`)
	b.do("coming back", chromedp.Navigate(c.base+"/?step=1"))
	b.until(`document.querySelectorAll('[data-file]').length === 2`)
	b.click(`[data-file="work/01-one/b.sh"]`)
	shown("b.sh", "true # two", 1)
	b.click(`[aria-label="Close work/01-one/b.sh"]`)
	b.until(`document.querySelectorAll('[data-file]').length === 1 && document.querySelector('#edited').textContent === 'work/01-one/a.go, not saved'`)
	for file, want := range map[string]string{"a.go": "package a\n", "b.sh": "true # two\n"} {
		if text, err := os.ReadFile(filepath.Join(ws.Root, "work/01-one", file)); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v; want %q", file, text, err, want)
		}
	}
}

// waitFor waits until something is so.
func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for range 600 {
		if f() {
			return
		}
		select {
		case <-t.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatal("it did not become so within a minute")
}

// A new server, on another port, goes on where the learner was.
func TestBrowserStay(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ echo one\none\n$ echo two\ntwo")
	var long strings.Builder
	for i := range 40 {
		fmt.Fprintf(&long, "\n## %d. Section\n\n%s\n", i+1, strings.Repeat("Words of the lesson. ", 40))
	}
	testfile.WriteAll(t, ws.Root, map[string]string{"02-two/README.md": "# Two\n" + long.String() + "\n```console\n$ echo last\nlast\n```\n\n**What happened:** the last.\n"})
	_, options := enter(t, "", &ws)
	t.Run("before", func(t *testing.T) {
		c := serve(t, options)
		b := open(t, c, "/")
		b.ready(1)
		// What a command prints is folded until it has run.
		if eval[bool](b, `[...document.querySelectorAll('details.output')].some((d) => d.open)`) {
			t.Error("what a command prints is shown before it has run")
		}
		for i := range 2 {
			b.click(fmt.Sprintf(`[data-command="%d"] .run-button`, i+1))
			b.until(fmt.Sprintf(`document.querySelectorAll('.outcome')[%d].dataset.state === 'ok' && document.querySelectorAll('details.output')[%[1]d].open`, i))
		}
		b.until(`document.querySelector('#steps [data-step="1"]').dataset.done === 'true'`)
		b.click("#next-step")
		b.until(`document.querySelector('#steps [data-step="2"]').getAttribute('aria-current')`)
		b.click("#settings summary")
		b.click("#larger")
		b.click("#theme")
		b.until(`getComputedStyle(document.documentElement).getPropertyValue('--size') === '1.15' && document.documentElement.dataset.theme === 'light'`)
		b.run(`document.getElementById('20-section').scrollIntoView()`)
		waitFor(t, func() bool { return strings.Contains(string(c.remembered()["place"]), "20-section") })
	})
	c := serve(t, options)
	b := open(t, c, "/")
	b.ready(1)
	b.until(`document.querySelector('#status').textContent.includes('You are back at step 2, 20. Section')`)
	b.until(`Math.abs(document.getElementById('20-section').getBoundingClientRect().top - document.querySelector('#lesson').getBoundingClientRect().top) < 60`)
	// A link to a section stays in that step, whatever the address was at first.
	b.click("#contents summary")
	b.click(`#contents a[href="#20-section"]`)
	b.until(`location.hash === '#20-section'`)
	b.run(`history.back()`)
	b.until(`location.hash === '' && document.querySelector('#steps [data-step="2"]').getAttribute('aria-current')`)
	if !eval[bool](b, `document.querySelector('#lesson .run').dataset.step === '2'`) {
		t.Error("a link to a section leads to another step")
	}
	// So does a reload with the step in the address, to the paragraph.
	b.run(`document.getElementById('30-section').nextElementSibling.scrollIntoView()`)
	waitFor(t, func() bool { return strings.Contains(string(c.remembered()["place"]), "30-section") })
	b.do("reloading", chromedp.Navigate(c.base+"/?step=2"))
	b.until(`Math.abs(document.getElementById('30-section')?.nextElementSibling.getBoundingClientRect().top - document.querySelector('#lesson').getBoundingClientRect().top) < 30`)
	// What happened is folded until it has.
	b.until(`document.querySelector('details.happened') && !document.querySelector('details.happened').open`)
	b.ready(1)
	b.click(`[data-step="2"][data-command="1"] .run-button`)
	b.until(`document.querySelector('details.happened').open`)
	b.do("reloading", chromedp.Reload())
	b.until(`document.querySelector('details.happened')?.open`)
	// A lesson in which one was not begins at its top.
	b.click("#previous-step")
	b.until(`document.querySelector('#lesson .run')?.dataset.step === '1' && document.querySelector('#lesson').scrollTop === 0`)
	b.click("#next-step")
	b.until(`document.querySelector('#steps [data-step="1"]').dataset.done === 'true' && document.documentElement.dataset.theme === 'light' && document.querySelector('#size').textContent === '115 %'`)
	b.click("#previous-step")
	b.until(`document.querySelectorAll('.outcome[data-state="ok"]').length === 2 && document.querySelectorAll('details.output[open]').length === 2`)
	// A step with another command is not done any more.
	testfile.WriteAll(t, ws.Root, map[string]string{"01-one/README.md": "# One\n\n```console\n$ echo one\none\n$ echo three\nthree\n```\n"})
	b.do("reloading", chromedp.Reload())
	b.until(`document.querySelector('#steps [data-step="1"]').title.endsWith('1 of 2 commands')`)
}

// Two windows of one browser: one writes to a terminal, and the other says so and can take over.
func TestBrowserTwoWindows(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ true")
	_, c := begin(t, "", &ws)
	one := open(t, c, "/")
	one.ready(1)
	two := open(t, c, "/")
	const note = `document.querySelector('.note')`
	two.until(`!` + note + `.hidden`)
	two.click(`.screen[data-terminal="1"]`)
	two.keys("echo two-$((6 * 7))", kb.Enter)
	one.click(`.screen[data-terminal="1"]`)
	one.keys("echo one-$((6 * 7))", kb.Enter)
	one.until(shows(1, "one-42"))
	two.until(shows(1, "one-42"))
	if eval[bool](two, shows(1, "two-42")) {
		t.Error("both windows write")
	}
	// A terminal that one opens and closes is there for the other, too.
	one.click("#new-terminal")
	const chosen = `document.querySelector('#terminal-list [aria-pressed="true"]')?.dataset.terminal`
	one.until(chosen + ` !== '1'`)
	id := eval[int](one, `Number(`+chosen+`)`)
	there := fmt.Sprintf(`document.querySelector('#terminal-list [data-terminal="%d"]')`, id)
	two.until(there)
	one.ready(id)
	one.keys("echo new-$((6 * 7))", kb.Enter)
	one.until(shows(id, "new-42"))
	one.click(fmt.Sprintf(`#terminal-list [aria-label="Close terminal %d"]`, id))
	two.until(`!` + there)
	two.click(".note button")
	one.until(`!` + note + `.hidden`)
	two.until(note + `.hidden`)
	two.keys("echo two-$((6 * 7))", kb.Enter)
	two.until(shows(1, "two-42"))
	// Once the one that writes has gone, the other one just types.
	two.do("leaving", chromedp.Navigate("about:blank"))
	one.until(note + `.hidden`)
	one.click(`.screen[data-terminal="1"]`)
	one.keys("echo alone-$((6 * 7))", kb.Enter)
	one.until(shows(1, "alone-42"))
	two.do("coming back", chromedp.Navigate(c.base+"/"))
	two.until(`!` + note + `.hidden`)
	// More than a window can draw: it sees the end, its keys count all the while, and the browser complains about nothing.
	one.click(`.screen[data-terminal="1"]`)
	one.run(`const send = WebSocket.prototype.send; WebSocket.prototype.send = function (data) { window.socket = this; send.call(this, data); }`)
	one.keys("yes flood", kb.Enter)
	one.run(`new Promise((done) => {
		let isAgain = false;
		window.socket.addEventListener('message', function press({ data }) { // Ctrl-C, once, while what could not be drawn comes
			if (typeof data === 'string') isAgain ||= data.includes('again');
			if (!isAgain || typeof data === 'string') return;
			window.socket.removeEventListener('message', press);
			done(document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'c', code: 'KeyC', keyCode: 67, ctrlKey: true, bubbles: true })));
		});
	})`)
	one.ready(1)
	one.keys("echo after-$((6 * 7))", kb.Enter)
	one.until(shows(1, "after-42"))
	two.until(shows(1, "after-42"))
	// A setting holds in both.
	one.click("#settings summary")
	one.click("#theme")
	two.until(`document.documentElement.dataset.theme === 'light'`)
}

// Contents, search and glossary lead to their places.
func TestBrowserFind(t *testing.T) {
	t.Parallel()
	_, c := begin(t, "", nil)
	b := open(t, c, "/?step=3")
	b.ready(1)
	b.click("#contents summary")
	b.until(`document.querySelectorAll('#contents li').length >= 8`)
	b.click("#contents li:nth-child(4) a")
	b.until(`!document.querySelector('#contents').open && document.querySelector('#lesson').scrollTop > 500`)
	b.click("#search")
	b.keys("DeletedFinalStateUnknown tombstone")
	b.until(`document.querySelectorAll('#found li').length > 0 && document.querySelector('#found').textContent.includes('DeletedFinalStateUnknown')`)
	b.accessible("the search")
	b.click("#search")
	b.keys(kb.Escape)
	b.until(`document.querySelector('#found').hidden`)
	b.click("#search")
	b.keys("blockOwnerDeletion", kb.Enter) // before it is searched for
	b.until(`document.activeElement.matches('#found a') && document.querySelector('#found').textContent.includes('blockOwnerDeletion')`)
	step := eval[string](b, `document.activeElement.dataset.step`)
	b.keys(kb.Enter)
	b.until(fmt.Sprintf(`document.querySelector('#found').hidden && document.querySelector('#steps [aria-current]').dataset.step === %q`, step))
	b.click(`#steps [data-step="3"]`)
	b.until(`document.querySelector('#lesson .run')?.dataset.step === '3' && document.querySelector('#lesson .term')`)
	b.run(`document.querySelector('#lesson .term').click()`)
	b.until(`document.querySelector('.explained')?.textContent.length > 20 && document.querySelector('.explained a')`)
	b.accessible("a term that is explained")
	// The X-ray opens where the lesson is.
	b.run(`[...document.querySelectorAll('.look')].find((button) => button.title.endsWith(' first-loop')).click()`)
	b.until(`document.querySelector('#xray').checkVisibility() && document.querySelector('#status').textContent.includes('first-loop')`)
}

// Somebody with a prefix finds what is in the steps that they can do.
func TestBrowserFindWithAPrefix(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ true")
	testfile.WriteAll(t, ws.Root, map[string]string{
		"02-two/README.md":  "# Two\n\nThis is easily found.\n",
		"04-four/README.md": "# Four\n\n<!-- cluster-scoped objects: 04 -->\n\nThis is not found.\n",
	})
	_, c := begin(t, "anna-", &ws)
	b := open(t, c, "/")
	b.ready(1)
	b.click("#search")
	b.keys("this found")
	b.until(`document.querySelectorAll('#found li').length === 1 && document.querySelector('#found').textContent.includes('easily')`)
	b.forgive() // the lesson of step 4, which is refused
}

// The page says how the cluster is, and which faults can still strike, also after a reload.
func TestBrowserKnow(t *testing.T) {
	t.Parallel()
	ws := clone(t, "$ true")
	e, c := begin(t, "", &ws)
	look := Cluster{Name: "kwok"}
	tell := func() {
		look.Faults = nil
		for _, fault := range e.Proxy.Active() {
			look.Faults = append(look.Faults, string(fault))
		}
		c.s.state.Lock()
		c.s.state.tell("cluster", look)
		c.s.state.Unlock()
	}
	tell()
	b := open(t, c, "/")
	b.ready(1)
	b.until(`document.querySelector('#cluster').textContent === 'kwok: ready' && document.querySelector('#faults').hidden`)
	if _, err := e.Proxy.Inject(faultproxy.Rule{Fault: faultproxy.Stall, Times: -1}); err != nil {
		t.Fatal(err)
	}
	tell()
	b.do("reloading", chromedp.Reload())
	b.until(`!document.querySelector('#faults').hidden && document.querySelector('#faults').textContent.includes('stall')`)
	b.click("#faults button")
	waitFor(t, func() bool { return len(e.Proxy.Active()) == 0 })
	tell()
	b.until(`document.querySelector('#faults').hidden`)
	look.Error = "connection refused"
	tell()
	b.until(`document.querySelector('#cluster').textContent === 'kwok: connection refused'`)
}

// At 200 % zoom and on a small window one pane can have the whole page.
func TestBrowserZoom(t *testing.T) {
	t.Parallel()
	_, c := begin(t, "", nil)
	b := open(t, c, "/?step=1")
	b.ready(1)
	b.until(`document.querySelector('#steps a')`)
	for _, size := range [][2]int64{{640, 360}, {768, 1024}} { // 1280x720 at 200 %, and a tablet
		b.size(size[0], size[1])
		b.run(`document.querySelector('#steps [data-step="12"]').click()`) // which may be out of sight
		b.until(`document.elementFromPoint(...(({left, top, width}) => [left + width / 2, top + 5])(document.querySelector('#steps [aria-current]').getBoundingClientRect())).matches('#steps [aria-current]')`)
		b.until(fmt.Sprintf(`document.querySelector('#main').dataset.panes === (%d < 400 ? 'lesson' : 'both')`, size[1]))
		height := func(selector string) int {
			t.Helper()
			return eval[int](b, fmt.Sprintf(`document.querySelector(%q).checkVisibility() ? Math.round(document.querySelector(%[1]q).getBoundingClientRect().height) : 0`, selector))
		}
		for _, pane := range []string{"#lesson", "#screens"} {
			if pane != "#lesson" || height("#screens") > 0 { // where there is no place for two, the lesson has it all
				b.click("#panes")
			}
			b.screenshot(fmt.Sprintf("zoom-%d-%s", size[0], pane[1:]))
			if got, want := height(pane), int(size[1])*55/100; got < want {
				t.Errorf("at %dx%d %s alone has %d pixels, want %d", size[0], size[1], pane, got, want)
			}
		}
		b.accessible(fmt.Sprintf("the tools alone at %d", size[0]))
		b.click("#panes") // both again
		if height("#lesson") == 0 || height("#screens") == 0 {
			t.Error("a pane does not come back")
		}
	}
}
