//go:build browser

package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

// beginWith serves a clone with a cluster behind its terminals.
func beginWith(t testing.TB, options Options) *client {
	t.Helper()
	if os.Getenv(browserVariable) == "" {
		t.Skip("needs a browser: make test-browser runs this with Chromium")
	}
	e := xraytest.Enter(t, testenv.New(t))
	options.Xray, options.Tour = e.Hub.Handler(), e.Hub.Tour
	options.Env = append(workspace.Without(e.Cluster().Environ(), lesson.PrefixVariable), e.Environ()...)
	return serve(t, options)
}

// window opens a second window of the same browser, as wide as a trainer's laptop.
func (b *tab) window(c *client, path string) *tab {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.t.Cleanup(cancel)
	w := &tab{t: b.t, ctx: ctx}
	fatal.If(b.t, chromedp.Do(ctx))
	fatal.If(b.t, chromedp.Listen(ctx, w.hear))
	b.t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.errors {
			b.t.Errorf("the second window says: %s", e)
		}
	})
	w.size(1280, 720)
	w.do("opening the second window", chromedp.Navigate(c.base+"/#token="+c.token), chromedp.Navigate(c.base+path))
	return w
}

// front brings a window before the others: a browser draws no other one.
func (b *tab) front() {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, cdppage.BringToFront, cdp.Empty{}); err != nil {
		b.fail("bringing a window to the front", err)
	}
}

// arrives waits like until, also while one page makes room for another.
func (b *tab) arrives(expression string) {
	b.t.Helper()
	err := poll.Until(b.ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf("(() => { try { return Boolean(%s) } catch { return false } })()", expression)))
		if err == nil && !there {
			err = errors.New("not yet")
		}
		return err
	})
	if err != nil {
		b.fail("waiting for "+expression, err)
	}
}

// slide is an expression: whether the slide of now is the one of this kind and text.
func slide(number, text string) string {
	return fmt.Sprintf(`document.querySelector('#slide-number').textContent === %q && document.querySelector('.section:not([hidden]) > .slide:not([hidden])').textContent.includes(%q)`, number, text)
}

// No section of any lesson is without a slide, and no word of a lesson is on none; questions,
// commands, explanations and excerpts are each on a slide of their kind.
func TestBrowserTrainerSlides(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	b := open(t, beginWith(t, Options{Workspace: ws}), "/?view=notes")
	b.arrives(`document.querySelector('#notes h1')`)
	type lesson struct {
		Step, Sections, Slides, Questions int
		Wrong                             []string
	}
	lessons := eval[[]lesson](b, `(async () => {
		const {cut} = await import('/static/slides.js');
		const {api} = await import('/static/dom.js');
		const words = (nodes) => nodes.flatMap((n) => n.textContent.split(/\s+/)).filter(Boolean).sort();
		const lessons = [];
		for (const {step} of await api('/api/steps')) {
			const article = document.createElement('article');
			article.innerHTML = (await api('/api/lessons/' + step)).html;
			const before = words([...article.childNodes].filter((n) => n.nodeType !== Node.COMMENT_NODE));
			const questions = [...article.children].filter((p) => p.textContent.startsWith('Predict:')).length;
			const sections = cut(article);
			const slides = sections.flatMap((s) => s.slides);
			const wrong = sections.filter((s) => s.slides.length === 0).map((s) => s.title + ' has no slide');
			for (const added of article.querySelectorAll('.to-code, .excerpt figcaption')) added.remove();
			const after = words([...sections.map((s) => s.element.firstElementChild), ...slides.flatMap((s) => [...s.element.childNodes])]);
			if (before.join(' ') !== after.join(' ')) wrong.push(before.length + ' words became ' + after.length + ', such as ' + before.find((w, i) => w !== after[i]));
			if (article.querySelectorAll('.question').length !== questions) wrong.push('not every question is one');
			for (const {kind, element, section} of slides) {
				for (const node of element.children) {
					const is = node.matches('.question') ? 'ask' : node.matches('.run, details.output') ? 'run' : node.textContent.startsWith('What happened:') ? 'explain' : node.matches('.excerpt') ? 'code' : kind;
					if (is !== kind) wrong.push(section.title + ': ' + node.textContent.slice(0, 40) + ' is on a slide of ' + kind);
				}
			}
			lessons.push({Step: step, Sections: sections.length, Slides: slides.length, Questions: questions, Wrong: wrong});
		}
		return lessons;
	})()`)
	if len(lessons) < 12 {
		t.Errorf("only %d lessons", len(lessons))
	}
	for _, l := range lessons {
		t.Logf("step %d: %d sections, %d slides, %d questions", l.Step, l.Sections, l.Slides, l.Questions)
		if len(l.Wrong) > 0 || l.Sections < 5 || l.Questions < 3 {
			t.Errorf("step %d: %d sections, %d questions, %q", l.Step, l.Sections, l.Questions, l.Wrong)
		}
	}
}

// The trainer's windows work with keys alone and move together; what a command prints is folded until it has run.
func TestBrowserTrainer(t *testing.T) {
	t.Parallel()
	ws := taught(t)
	share := t.TempDir()
	testfile.WriteAll(t, share, map[string]string{"anna.json": `{"tasks": [{"task": "1.1", "name": "patch", "state": "begun", "mistake": "ghost"}]}`})
	place := filepath.Join(share, "place")
	c := beginWith(t, Options{Workspace: ws, Board: share, Place: place, Follow: place})
	b := open(t, c, "/?view=trainer&step=1")
	b.arrives(slide("Text, 1 of 1", "A lesson."))
	b.keys(kb.ArrowRight)
	b.until(slide("Question, 1 of 4", "what is the sum?"))
	if eval[bool](b, `document.querySelector('#tools').checkVisibility()`) {
		t.Error("a terminal stands below the question")
	}
	if size := eval[float64](b, `parseFloat(getComputedStyle(document.querySelector('.question')).fontSize)`); size < 36 {
		t.Errorf("the question has %g px", size)
	}
	b.screenshot("trainer-question")
	b.keys(" ")
	b.until(slide("Commands, 2 of 4", "echo"))
	b.until(`document.querySelector('.screen').checkVisibility()`)
	b.ready(1)
	const output = `document.querySelector('.slide details.output')`
	if eval[bool](b, output+`.open`) {
		t.Error("the output stands beside the question")
	}
	b.keys("r")
	b.until(output + `.open && document.querySelector('.slide .outcome').dataset.state === 'ok'`)
	if size := eval[float64](b, `parseFloat(getComputedStyle(document.querySelector('.xterm-rows')).fontSize)`); size < 18 {
		t.Errorf("the terminal has %g px", size)
	}
	b.screenshot("trainer-commands")
	// A terminal has its keys for itself.
	b.keys(f6, f6, f6) // the lesson, the tabs
	b.until(`document.activeElement.className === 'xterm-helper-textarea'`)
	b.keys("echo nb.$((6 * 7))", kb.Enter)
	b.until(shows(1, "nb.42"))
	if !eval[bool](b, slide("Commands, 2 of 4", "echo")) || eval[bool](b, `document.body.dataset.blank === 'true'`) {
		t.Error("a key in the terminal has moved the slides")
	}
	b.keys(f6)
	b.until(`document.activeElement.id === 'lesson'`)
	b.keys(kb.PageDown)
	b.until(slide("Explanation, 3 of 4", "it was 42"))
	b.keys(kb.Enter)
	b.until(slide("Code, 4 of 4", "func main() {}"))
	for _, step := range []struct{ key, number, text string }{
		{kb.Backspace, "Explanation, 3 of 4", "42"}, {kb.PageUp, "Commands, 2 of 4", "echo"}, {kb.ArrowLeft, "Question, 1 of 4", "sum"},
		{kb.End, "Text, 1 of 1", "Nothing."}, {kb.ArrowRight, "Text, 1 of 1", "Nothing."}, {kb.Home, "Text, 1 of 1", "A lesson."}, {kb.ArrowLeft, "Text, 1 of 1", "A lesson."},
	} {
		b.keys(step.key)
		b.until(slide(step.number, step.text))
		if step.key == kb.End {
			b.keys("r") // there is nothing to run
			b.until(`document.querySelector('#status').textContent.startsWith('No command of this slide is left')`)
		}
	}
	b.until(`document.querySelectorAll('.outcome:not([hidden])').length === 1`)
	for _, key := range []string{"b", "."} {
		b.keys(key)
		b.until(`getComputedStyle(document.body, '::after').position === 'fixed'`)
		b.keys(key)
		b.until(`document.body.dataset.blank === 'false'`)
	}
	b.press(input.DispatchKeyEventParams{Type: kb.KeyDown, Key: "?", Code: "Slash", Text: "?"})
	b.until(`document.querySelector('#slide-keys').open`)
	b.accessible("the keys")
	b.keys(kb.ArrowRight, kb.Escape)
	b.until(`!document.querySelector('#slide-keys').open`)
	b.until(slide("Text, 1 of 1", "A lesson."))
	b.run(`window.open = (path) => { window.opened = path; }, document.documentElement.requestFullscreen = async () => { window.full = true; }`)
	b.keys("nf")
	b.until(`window.opened === '/?view=notes' && window.full`)

	// The two windows move together, and a reload keeps the place.
	n := b.window(c, "/?view=notes")
	n.arrives(`document.querySelector('#notes h1').textContent === 'One'`)
	n.keys(kb.ArrowRight)
	n.until(`document.querySelector('#notes .say').textContent.includes('with me')`)
	b.until(slide("Question, 1 of 4", "what is the sum?"))
	n.until(`[...document.querySelectorAll('#notes .ask')].map((e) => e.dataset.when).join() === 'before,after' && ['How many?', 'two', 'three', 'Why?', 'chance', 'Addition.'].every((text) => document.querySelector('#notes').textContent.includes(text))`)
	n.until(`document.querySelector('#next-section').textContent === 'Next: Count again' && document.querySelector('#board').textContent.includes('ghost')`)
	b.front()
	b.keys(kb.ArrowRight)
	b.do("reloading", chromedp.Reload())
	b.until(slide("Commands, 2 of 4", "echo"))
	b.until(output + `.open`) // it has run
	n.until(`document.querySelector('#slide-number').textContent === 'Commands, 2 of 4'`)
	n.front()
	// The clock: nine minutes in a section of eight.
	n.click("#clock-start")
	n.until(`document.querySelector('#clock-start').textContent === 'Pause' && /^0:0[1-9] of 8 min$/.test(document.querySelector('#clock-section').textContent)`)
	n.run(`{ const now = Date.now; Date.now = () => now() + 9 * 60_000; }`)
	n.until(`document.querySelector('#clock-section').textContent.startsWith('9:') && document.querySelector('#clock-late').textContent === '1 min late' && document.querySelector('#clock-step').textContent.endsWith(' of 14 min')`)
	n.click("#clock-start")
	n.until(`document.querySelector('#clock-start').textContent === 'Start'`)
	n.until(`document.querySelector('#status').textContent === ''`)
	n.accessible("the notes")
	n.screenshot("trainer-notes")
	n.do("reloading", chromedp.Reload())
	n.until(`document.querySelector('#clock-section').textContent.startsWith('9:') && document.querySelector('#clock-late').textContent === '1 min late'`)
	n.click("#clock-reset")
	n.until(`/^0:.* of 8 min$/.test(document.querySelector('#clock-section').textContent)`)
	n.do("reloading", chromedp.Reload())
	n.until(`/^0:.* of 8 min$/.test(document.querySelector('#clock-section').textContent)`)
	n.keys(kb.End)
	n.until(`document.querySelector('#notes').textContent.includes('no script for this section')`)
	b.front()
	b.until(slide("Text, 1 of 1", "Nothing."))

	// A link leads to its section. After a rehearsal what has run is forgotten, so that the room can predict it.
	b.click(`.slide:not([hidden]) a`)
	b.until(slide("Text, 1 of 1", "More."))
	n.until(`document.querySelector('#notes h1').textContent === 'Count again'`)
	b.keys(kb.Home, kb.ArrowRight, kb.ArrowRight)
	b.until(slide("Commands, 2 of 4", "echo"))
	b.keys("r")
	b.until(`document.querySelector('#status').textContent.startsWith('No command of this slide is left')`)
	n.front()
	n.keys("x")
	b.until(output + `.open === false`)
	n.keys("r")
	b.until(output + `.open && document.querySelector('.slide .outcome').dataset.state === 'ok'`)

	// Everything is readable in both themes, also at 200 % zoom.
	for _, w := range []*tab{b, n} {
		w.front()
		w.keys(kb.Home, kb.ArrowRight, kb.ArrowRight)
		w.accessible("a window of the trainer")
		w.size(640, 360)
		if wide := eval[[]string](w, `[document.documentElement, ...document.querySelectorAll('#lesson, #notes, #main, #slide-bar')].filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.tagName)`); len(wide) > 0 {
			t.Errorf("at 200 %% zoom, %v can be scrolled to the side", wide)
		}
		w.accessible("a window of the trainer at 200 % zoom")
		w.size(1280, 720)
	}
	b.front()
	b.keys(kb.Escape)
	b.arrives(`location.search === '?step=1' && !document.body.classList.contains('trainer') && document.querySelector('#follow')`)
}

// A learner's page goes where the trainer is, takes the focus from nothing, and stops when the learner goes elsewhere.
func TestBrowserTrainerFollow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "place")
	ws := taught(t)
	long := strings.Repeat("A line of a long lesson.\n\n", 60)
	lesson, err := os.ReadFile(filepath.Join(ws.Root, "01-one", "README.md"))
	fatal.If(t, err)
	testfile.WriteAll(t, ws.Root, map[string]string{"01-one/README.md": string(lesson) + long, "02-two/README.md": "# Two\n\n" + long + "## 1. Other\n\n" + long})
	c := beginWith(t, Options{Workspace: ws, Follow: file})
	b := open(t, c, "/?step=1")
	says := func(text string) string {
		return fmt.Sprintf(`document.querySelector('#follow').checkVisibility() && document.querySelector('#follow').textContent.includes(%q)`, text)
	}
	is := func(step int, id, title string) {
		t.Helper()
		fatal.If(t, workspace.WriteWhole(file, fmt.Appendf(nil, `{"step": %d, "id": %q, "title": %q}`, step, id, title), 0o644))
	}
	inView := func(id string) string {
		return fmt.Sprintf(`(({top}) => top > 0 && top < 300)(document.getElementById(%q).getBoundingClientRect())`, id)
	}
	b.arrives(says("The trainer has not begun"))
	b.ready(1)
	is(1, "2-count-again", "Count again")
	b.until(says("The trainer is at step 1, Count again."))
	b.accessible("the line about the trainer")
	b.click(`.screen[data-terminal="1"]`)
	b.run(`document.querySelectorAll('#follow button')[0].click()`) // as a pointer would not: it leaves the focus
	b.until(inView("2-count-again"))
	is(2, "1-other", "Other")
	b.until(says("step 2, Other"))
	if eval[bool](b, `Boolean(document.getElementById('1-other'))`) {
		t.Error("the page follows, though nobody has said so")
	}
	b.run(`document.querySelectorAll('#follow button')[1].click()`)
	b.until(inView("1-other"))
	is(1, "1-count", "Count")
	b.until(inView("1-count"))
	if at := eval[string](b, `document.activeElement.className`); at != "xterm-helper-textarea" {
		t.Errorf("the focus has gone from the terminal to %q", at)
	}
	b.keys("echo $((6 * 7))-typed", kb.Enter)
	b.until(shows(1, "42-typed"))
	fatal.If(t, os.WriteFile(file, []byte("{"), 0o600))
	b.until(says("does not say where the trainer is"))
	is(1, "clean-up", "Clean up")
	b.until(inView("clean-up"))
	b.until(`document.querySelector('#follow [aria-pressed="true"]')`)
	// Scrolling ends it.
	if _, err := chromedp.Call(b.ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: "mouseWheel", X: 200, Y: 400, DeltaX: 1, DeltaY: 100}); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector('#follow [aria-pressed="false"]')`)
	is(2, "1-other", "Other")
	b.until(says("step 2, Other"))
	if eval[bool](b, `Boolean(document.getElementById('1-other'))`) {
		t.Error("the page still follows")
	}
}

// On paper there are all slides of the step, each section on a new page; from the notes, all notes.
func TestBrowserTrainerPrint(t *testing.T) {
	t.Parallel()
	c := beginWith(t, Options{Workspace: taught(t)})
	b := open(t, c, "/?view=trainer&step=1")
	b.arrives(slide("Text, 1 of 1", "A lesson."))
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}); err != nil {
		t.Fatal(err)
	}
	if hidden := eval[[]string](b, `[...document.querySelectorAll('.section > *, .slide > p:not(.to-code), .slide pre, .slide code')].filter((e) => !e.checkVisibility()).map((e) => e.textContent)`); len(hidden) > 0 {
		t.Errorf("on paper, %q cannot be seen", hidden)
	}
	pages, text := b.print()
	if pages != 4 {
		t.Errorf("the slides have %d pages, want one for each of 4 sections", pages)
	}
	for _, want := range []string{"A lesson.", "what is the sum?", "echo 4$((1+1))", "42", "it was 42", "func main", "More.", "Nothing."} {
		if text != "" && !strings.Contains(text, want) {
			t.Errorf("the printed slides lack %q:\n%s", want, text)
		}
	}
	b.do("opening the notes", chromedp.Navigate(c.base+"/?view=notes"))
	b.arrives(`document.querySelector('#notes h1')`)
	pages, text = b.print()
	if pages != 1 {
		t.Errorf("the notes have %d pages", pages)
	}
	for _, want := range []string{"with me", "How many?", "chance", "Once more", "And now?"} {
		if text != "" && !strings.Contains(text, want) {
			t.Errorf("the printed notes lack %q:\n%s", want, text)
		}
	}
}

// print prints the page, and returns how many sheets there are, and what is on them where pdftotext is there to say so.
func (b *tab) print() (pages int, text string) {
	b.t.Helper()
	ctx := b.ctx
	answer, err := chromedp.Call(ctx, cdppage.PrintToPDF, cdppage.PrintToPDFParams{PreferCSSPageSize: new(true)})
	if err != nil {
		b.fail("printing", err)
	}
	data := answer.Data
	if program, err := exec.LookPath("pdftotext"); err == nil {
		cmd := exec.CommandContext(ctx, program, "-layout", "-", "-")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		if err != nil {
			b.fail("reading the PDF", err)
		}
		text = string(out)
	}
	return len(regexp.MustCompile(`/Type\s*/Page\b`).FindAll(data, -1)), text
}
