package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
)

// Without the token, nothing but the page itself is served, whatever is asked for.
func TestNoToken(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	for name, tc := range map[string]struct {
		path   string
		header http.Header
		code   int
	}{
		"the page":                {"/", nil, http.StatusOK},
		"a file of the page":      {"/static/app.js", nil, http.StatusOK},
		"the API":                 {"/api/steps", nil, http.StatusUnauthorized},
		"past a file of the page": {"/static/..%2fapi/steps", nil, http.StatusNotFound},
		"a file of the clone":     {"/api/file?path=go.mod", nil, http.StatusUnauthorized},
		"a file of the learner's": {"/api/edit?path=work/main.go", nil, http.StatusUnauthorized},
		"what is remembered":      {"/api/state", nil, http.StatusUnauthorized},
		"its changes":             {"/api/state/ws", nil, http.StatusUnauthorized},
		"the X-ray":               {"/api/xray/recording", nil, http.StatusUnauthorized},
		"a terminal":              {"/api/terminals/1/ws", nil, http.StatusUnauthorized},
		"what does not exist":     {"/nothing", nil, http.StatusUnauthorized},
		"token in the address":    {"/api/steps?token=" + c.token, nil, http.StatusUnauthorized},
		"token as a cookie":       {"/api/steps", http.Header{"Cookie": {"workshop=" + c.token + "; " + tokenHeader + "=" + c.token}}, http.StatusUnauthorized},
		"empty token":             {"/api/steps", http.Header{tokenHeader: {""}}, http.StatusUnauthorized},
		"wrong token":             {"/api/steps", http.Header{tokenHeader: {"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}}, http.StatusUnauthorized},
		"wrong protocol":          {"/api/terminals/1/ws", http.Header{"Sec-Websocket-Protocol": {"workshop, ABCDEFGHIJKLMNOPQRSTUVWXYZ"}}, http.StatusUnauthorized},
		"the token":               {"/api/steps", http.Header{tokenHeader: {c.token}}, http.StatusOK},
		"the token as a protocol": {"/api/terminals/1/ws", http.Header{"Sec-Websocket-Protocol": {"workshop, " + c.token}}, http.StatusNotFound},
	} {
		if answer := c.bare(http.MethodGet, tc.path, "", tc.header); answer.StatusCode != tc.code || len(answer.Cookies()) > 0 {
			t.Errorf("%s: %s, cookies %v, want %d", name, answer.Status, answer.Cookies(), tc.code)
		}
	}
}

// Who has forwarded the port is told how to start the page so that its requests are accepted, too.
func TestRefusedHostSaysWhatToDo(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	own := strings.TrimPrefix(c.base, "http://")
	for host, want := range map[string]string{"localhost:8080": "HOST=http://localhost:8080", "127.0.0.1:8080": "HOST=http://127.0.0.1:8080", "a.example.org": "HOST=https://a.example.org"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base, nil)
		fatal.If(t, err)
		r.Host = host
		answer, err := http.DefaultTransport.RoundTrip(r)
		fatal.If(t, err)
		said, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		want = "PORT=" + own[strings.LastIndex(own, ":")+1:] + " " + want
		if err != nil || answer.StatusCode != http.StatusForbidden || !strings.Contains(string(said), want) {
			t.Errorf("%s: %s %q (%v), want %q", host, answer.Status, said, err, want)
		}
	}
}

// bare sends a request with these headers alone, and follows no redirect.
func (c *client) bare(method, path, host string, header http.Header) *http.Response {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, nil)
	fatal.If(c.t, err)
	r.Host = host
	maps.Copy(r.Header, header)
	answer, err := http.DefaultTransport.RoundTrip(r)
	fatal.If(c.t, err)
	_ = answer.Body.Close()
	return answer
}

// A page of somebody else's in the same browser gets nothing, even if it knew the token.
func TestForeignPages(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), Origin: "https://learner.example.org"})
	if want := "https://learner.example.org/#token=" + c.token; c.s.Address() != want {
		t.Errorf("the address is %s, want %s", c.s.Address(), want)
	}
	port := c.base[strings.LastIndex(c.base, ":"):]
	s := c.terminal()
	for name, tc := range map[string]struct {
		method, path, host string
		header             http.Header
		code               int
	}{
		"our own page":                         {"POST", "/api/terminals", "", http.Header{"Origin": {c.base}}, http.StatusOK},
		"our own port, encrypted":              {"POST", "/api/terminals", "", http.Header{"Origin": {"https" + c.base[4:]}}, http.StatusForbidden},
		"localhost, which may be ::1":          {"GET", "/api/steps", "localhost" + port, nil, http.StatusForbidden},
		"localhost's page":                     {"POST", "/api/terminals", "localhost" + port, http.Header{"Origin": {"http://localhost" + port}}, http.StatusForbidden},
		"::1, where somebody else may listen":  {"GET", "/api/steps", "[::1]" + port, nil, http.StatusForbidden},
		"the forwarded port":                   {"POST", "/api/terminals", "learner.example.org", http.Header{"Origin": {"https://learner.example.org"}}, http.StatusOK},
		"the forwarded port, host replaced":    {"POST", "/api/terminals", "", http.Header{"Origin": {"https://learner.example.org"}}, http.StatusOK},
		"another port of the forwarder":        {"POST", "/api/terminals", "learner.example.org", http.Header{"Origin": {"https://learner.example.org:8443"}}, http.StatusForbidden},
		"another port of the forwarder, asked": {"GET", "/api/steps", "learner.example.org:8443", nil, http.StatusForbidden},
		"our port of the forwarder":            {"GET", "/api/steps", "learner.example.org" + port, nil, http.StatusForbidden},
		"another scheme of the forwarder":      {"POST", "/api/terminals", "learner.example.org", http.Header{"Origin": {"http://learner.example.org"}}, http.StatusForbidden},
		"a name that leads here":               {"GET", "/api/steps", "evil.example.org" + port, nil, http.StatusForbidden},
		"a name that leads here, its page":     {"POST", "/api/terminals", "evil.example.org" + port, http.Header{"Origin": {"http://evil.example.org" + port}}, http.StatusForbidden},
		"a name that leads here, and the page": {"GET", "/", "evil.example.org" + port, nil, http.StatusForbidden},
		"the forwarded port of another":        {"GET", "/api/steps", "other.example.org", nil, http.StatusForbidden},
		"no host":                              {"GET", "/api/steps", " ", nil, http.StatusForbidden},
		"another site":                         {"POST", "/api/terminals", "", http.Header{"Origin": {"https://evil.example.org"}}, http.StatusForbidden},
		"another port of this machine":         {"POST", "/api/terminals", "", http.Header{"Origin": {"http://127.0.0.1:1"}}, http.StatusForbidden},
		"a page without an origin":             {"POST", "/api/terminals", "", http.Header{"Origin": {"null"}}, http.StatusForbidden},
		"a page that hides its origin":         {"POST", "/api/terminals", "", nil, http.StatusForbidden},
		"a page that reads":                    {"GET", "/api/steps", "", http.Header{"Origin": {"https://evil.example.org"}}, http.StatusForbidden},
		"a script tag of another port":         {"GET", "/api/steps", "", http.Header{"Sec-Fetch-Site": {"same-site"}}, http.StatusForbidden},
		"a script tag of another port, static": {"GET", "/static/app.js", "", http.Header{"Sec-Fetch-Site": {"same-site"}}, http.StatusForbidden},
		"a link in another page":               {"GET", "/", "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, http.StatusOK},
		"DELETE without an origin":             {"DELETE", "/api/terminals/1", "", nil, http.StatusForbidden},
		"a preflight of another port":          {"OPTIONS", "/api/terminals", "", http.Header{"Origin": {"http://127.0.0.1:1"}}, http.StatusForbidden},
	} {
		header := http.Header{tokenHeader: {c.token}}
		maps.Copy(header, tc.header)
		if answer := c.bare(tc.method, tc.path, tc.host, header); answer.StatusCode != tc.code {
			t.Errorf("%s: %s, want %d", name, answer.Status, tc.code)
		}
	}
	for _, origin := range []string{"https://evil.example.org", "http://127.0.0.1:1", "null", ""} {
		conn, answer, err := c.dial("/api/terminals/1/ws", origin)
		if err == nil {
			_ = conn.CloseNow()
			t.Errorf("a page of origin %q has got a terminal", origin)
		} else if answer == nil || answer.StatusCode != http.StatusForbidden {
			t.Errorf("a page of origin %q: %v", origin, err)
		}
	}
	s.keys("\r")
	s.until("prompt") // it is still there
}

// The host of a request is what counts, also where its first line names another one.
func TestAbsoluteURI(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	own := strings.TrimPrefix(c.base, "http://")
	for line, code := range map[string]int{
		c.base + "/api/steps":                 http.StatusOK,
		"http://evil.example.org/api/steps":   http.StatusForbidden,
		"https://evil.example.org/api/steps":  http.StatusForbidden,
		"http://evil@" + own + "/api/steps":   http.StatusOK,
		"http://" + own + "@evil/api/steps":   http.StatusForbidden,
		"http://evil.example.org:1/api/steps": http.StatusForbidden,
	} {
		conn, err := net.Dial("tcp", own)
		fatal.If(t, err)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s: %s\r\nConnection: close\r\n\r\n", line, own, tokenHeader, c.token)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if _ = conn.Close(); answer.StatusCode != code {
			t.Errorf("GET %s: %s, want %d", line, answer.Status, code)
		}
	}
}

// Another user of this machine gets nothing, not even with the token, unless the port is
// forwarded: then the forwarder may run as anybody.
func TestOtherUserOfThisMachine(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs Linux, and root to be somebody else")
	}
	for origin, want := range map[string]string{"": "403", "https://learner.example.org": "200"} {
		c := serve(t, Options{Workspace: clone(t, "$ true"), Origin: origin})
		mapped := strings.Replace(c.base, "127.0.0.1", "[::ffff:127.0.0.1]", 1) // the same from a socket of IPv6
		for _, base := range []string{c.base, mapped} {
			for uid, want := range map[uint32]string{0: "200", 65534: want} {
				cmd := exec.CommandContext(t.Context(), "curl", "--noproxy", "*", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}",
					"--header", tokenHeader+": "+c.token, "--header", "Host: "+strings.TrimPrefix(c.base, "http://"), base+"/api/steps")
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				if code, err := cmd.Output(); err != nil || string(code) != want {
					t.Errorf("user %d with the token at %s, forwarded to %q: %s, want %s (%v)", uid, base, origin, code, want, err)
				}
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	for _, path := range []string{"/", "/static/", "/api/steps", "/nothing"} {
		header := c.get(c.base + path).Header
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self' '" + importMapHash() + "'; style-src ",
			"X-Content-Type-Options":  "nosniff",
			"Referrer-Policy":         "no-referrer",
			"Cache-Control":           "no-store",
		} {
			if !strings.HasPrefix(header.Get(name), want) {
				t.Errorf("%s: %s is %q, want %q", path, name, header.Get(name), want)
			}
		}
	}
}

// The page shows the clone's own files, and neither what Git and the workshop keep
// to themselves nor what is elsewhere on the machine.
func TestFilesOfTheCloneOnly(t *testing.T) {
	ws := clone(t, "$ true")
	elsewhere := filepath.Join(t.TempDir(), "secret")
	fatal.If(t, os.WriteFile(elsewhere, []byte("elsewhere"), 0o600))
	for name, target := range map[string]string{
		"out":              elsewhere,
		"out-dir":          filepath.Dir(elsewhere),
		"01-one/relative":  "../.workshop/secret",
		"01-one/dir":       "../.workshop",
		"01-one/to-itself": "to-itself",
	} {
		fatal.If(t, os.Symlink(target, filepath.Join(ws.Root, name)))
	}
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "binary"), []byte{0x7f, 'E', 'L', 'F', 0}, 0o600))
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "long"), bytes.Repeat([]byte("line\n"), 1<<19), 0o600))
	big, err := os.Create(filepath.Join(ws.Root, "big"))
	fatal.If(t, err)
	fatal.If(t, big.Truncate(1<<40))
	_ = big.Close()
	c := serve(t, Options{Workspace: ws})
	for path, code := range map[string]int{
		"01-one/main.go": 200, "./01-one//main.go": 200, "01-one": 200, "01-one/": 200, ".": 200, "go.mod": 200, "01-one/../go.mod": 200,
		"": 200, "..": 403, "../": 403, "../../etc/passwd": 403, "01-one/../../x": 403, "/etc/passwd": 403, "//etc/passwd": 403, elsewhere: 403,
		"....//etc": 404, "nothing": 404, "01-one/main.go/x": 404, "go.mod\x00": 404, strings.Repeat("a", 1<<14): 404,
		".git/config": 403, ".GIT/config": 404, ".git": 403, "01-one/../.git/config": 403, ".workshop/secret": 403, ".workshop": 403, "./.workshop/secret": 403,
		"out": 403, "out-dir/secret": 404, "01-one/relative": 403, "01-one/dir/secret": 403, "01-one/to-itself": 403,
		"binary": 415, "big": 415, "long": 415,
	} {
		got, text := c.call("GET", "/api/file?path="+url.QueryEscape(path), "", nil)
		if got != code {
			t.Errorf("%.100q: %d, want %d: %.200s", path, got, code, text)
		}
		if strings.Contains(text, "elsewhere") && code != 200 && !strings.Contains(path, "elsewhere") || strings.Contains(text, "[secret]") {
			t.Errorf("%.100q shows %.200s", path, text)
		}
	}
	var file struct{ Path, HTML string }
	c.call("GET", "/api/file?path=01-one/main.go", "", &file)
	if !strings.Contains(file.HTML, `<span class="line" id="L3"><span class="kd">func</span>`) || strings.Contains(file.HTML, "style=") {
		t.Errorf("main.go is shown as\n%s", file.HTML)
	}
	// The files of the page are as closed.
	for _, path := range []string{"/static/../server.go", "/static/..%2fserver.go", "/static/%2e%2e/%2e%2e/go.mod", "/../go.mod"} {
		if r := c.get(c.base + path); r.StatusCode == http.StatusOK && !strings.HasSuffix(r.Request.URL.Path, "/") {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
}

// Whoever opens connections without end takes no more than so many.
func TestConnectionsAreLimited(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	address := strings.TrimPrefix(c.base, "http://")
	c.CloseIdleConnections()
	var idle []net.Conn
	for range maxConnections {
		conn, err := net.Dial("tcp", address)
		fatal.If(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		idle = append(idle, conn)
	}
	quick := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	if answer, err := quick.Get(c.base + "/"); err == nil {
		_ = answer.Body.Close()
		t.Errorf("beside %d connections there is one more: %s", len(idle), answer.Status)
	}
	_ = idle[0].Close()
	c.get(c.base + "/")
}

// The list of the editor's modules is the one script that may be in the page itself, and only as it is.
func TestTheOnlyInlineScript(t *testing.T) {
	page, err := static.ReadFile("static/index.html")
	fatal.If(t, err)
	if n := strings.Count(string(page), "<script"); n != 2 {
		t.Errorf("the page has %d scripts, want the list of modules and app.js", n)
	}
	_, list, _ := strings.Cut(string(page), `<script type="importmap">`)
	list, _, _ = strings.Cut(list, "</script>")
	var modules struct{ Imports map[string]string }
	if err := json.Unmarshal([]byte(list), &modules); err != nil || len(modules.Imports) == 0 {
		t.Fatalf("the list of modules: %v", err)
	}
	for name, file := range modules.Imports {
		if _, err := static.ReadFile(strings.TrimPrefix(file, "/")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
