package web

import (
	"bytes"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// Without the token, nothing is served, whatever is asked for.
func TestNoToken(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	address, err := url.Parse(c.base)
	if err != nil {
		t.Fatal(err)
	}
	own := c.Jar.Cookies(address)[0]
	once := c.s.AddressOnce()
	for name, tc := range map[string]struct {
		path, cookie string
		code         int
	}{
		"no token":                        {"/", "", http.StatusUnauthorized},
		"wrong token":                     {"/?token=ABCDEFGHIJKLMNOPQRSTUVWXYZ", "", http.StatusUnauthorized},
		"empty token":                     {"/?token=", "", http.StatusUnauthorized},
		"wrong cookie":                    {"/", own.Name + "=wrong", http.StatusUnauthorized},
		"cookie of another port":          {"/", "workshop-1=" + own.Value, http.StatusUnauthorized},
		"a file of the page":              {"/static/index.html", "", http.StatusUnauthorized},
		"a file of the page with a token": {"/static/index.html?token=" + own.Value, "", http.StatusUnauthorized},
		"the API":                         {"/api/steps", "", http.StatusUnauthorized},
		"a file of the clone":             {"/api/file?path=go.mod", "", http.StatusUnauthorized},
		"the X-ray":                       {"/api/xray/recording", "", http.StatusUnauthorized},
		"a terminal":                      {"/api/terminals/1/ws", "", http.StatusUnauthorized},
		"what does not exist":             {"/nothing", "", http.StatusUnauthorized},
		"the right cookie":                {"/api/steps", own.Name + "=" + own.Value, http.StatusOK},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.cookie != "" {
			r.Header.Set("Cookie", tc.cookie)
		}
		answer, err := http.DefaultTransport.RoundTrip(r) // no redirect is followed
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != tc.code || tc.code != http.StatusOK && answer.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s, cookie %q, want %d", name, answer.Status, answer.Header.Get("Set-Cookie"), tc.code)
		}
	}
	// What is on the command line of the browser is good for one visit.
	for i, want := range []int{http.StatusSeeOther, http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, once, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("visit %d of the address for one visit: %s, want %d", i+1, answer.Status, want)
		}
		if cookie := answer.Header.Get("Set-Cookie"); want == http.StatusSeeOther &&
			(!strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") || !strings.HasPrefix(cookie, "workshop-"+address.Port()+"=")) {
			t.Errorf("the cookie is %q", cookie)
		}
	}
}

// A page of somebody else's in the same browser sends the cookie along, and gets nothing with it.
func TestForeignPages(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), Host: "learner.example.org"})
	port := c.base[strings.LastIndex(c.base, ":"):]
	s := c.terminal()
	for name, tc := range map[string]struct {
		method, path, host string
		header             http.Header
		code               int
	}{
		"our own page":                      {"POST", "/api/terminals", "", http.Header{"Origin": {c.base}}, http.StatusOK},
		"the same machine by name":          {"GET", "/api/steps", "localhost" + port, nil, http.StatusOK},
		"the forwarded port":                {"POST", "/api/terminals", "learner.example.org", http.Header{"Origin": {"https://learner.example.org"}}, http.StatusOK},
		"the forwarded port, host replaced": {"POST", "/api/terminals", "", http.Header{"Origin": {"https://learner.example.org"}}, http.StatusOK},
		"a name that leads here":            {"GET", "/api/steps", "evil.example.org" + port, nil, http.StatusForbidden},
		"a name that leads here, its page":  {"POST", "/api/terminals", "evil.example.org" + port, http.Header{"Origin": {"http://evil.example.org" + port}}, http.StatusForbidden},
		"the forwarded port of another":     {"GET", "/api/steps", "other.example.org", nil, http.StatusForbidden},
		"no host":                           {"GET", "/api/steps", " ", nil, http.StatusForbidden},
		"another site":                      {"POST", "/api/terminals", "", http.Header{"Origin": {"https://evil.example.org"}}, http.StatusForbidden},
		"another port of this machine":      {"POST", "/api/terminals", "", http.Header{"Origin": {"http://127.0.0.1:1"}}, http.StatusForbidden},
		"a page without an origin":          {"POST", "/api/terminals", "", http.Header{"Origin": {"null"}}, http.StatusForbidden},
		"a page that hides its origin":      {"POST", "/api/terminals", "", nil, http.StatusForbidden},
		"a page that reads":                 {"GET", "/api/steps", "", http.Header{"Origin": {"https://evil.example.org"}}, http.StatusForbidden},
		"a script tag of another port":      {"GET", "/api/steps", "", http.Header{"Sec-Fetch-Site": {"same-site"}}, http.StatusForbidden},
		"a link in another page":            {"GET", "/", "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, http.StatusOK},
		"DELETE without an origin":          {"DELETE", "/api/terminals/1", "", nil, http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tc.method, c.base+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = tc.host
		for name, values := range tc.header {
			r.Header[name] = values
		}
		// The cookie as the browser would send it, whatever the host is.
		r.Header.Set("Cookie", c.s.cookie+"="+c.s.token)
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != tc.code {
			t.Errorf("%s: %s, want %d", name, answer.Status, tc.code)
		}
	}
	for _, origin := range []string{"https://evil.example.org", "http://127.0.0.1:1", "null", ""} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		conn, answer, err := websocket.Dial(t.Context(), strings.Replace(c.base, "http", "ws", 1)+"/api/terminals/1/ws",
			&websocket.DialOptions{HTTPClient: &http.Client{Jar: c.Jar}, HTTPHeader: header})
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

func TestHeaders(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true")})
	for _, path := range []string{"/", "/static/", "/api/steps", "/nothing"} {
		header := c.get(c.base + path).Header
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; ",
			"X-Content-Type-Options":  "nosniff",
			"X-Frame-Options":         "DENY",
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
	if err := os.WriteFile(elsewhere, []byte("elsewhere"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"out":              elsewhere,
		"out-dir":          filepath.Dir(elsewhere),
		"01-one/relative":  "../.workshop/secret",
		"01-one/dir":       "../.workshop",
		"01-one/to-itself": "to-itself",
	} {
		if err := os.Symlink(target, filepath.Join(ws.Root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(ws.Root, "binary"), []byte{0x7f, 'E', 'L', 'F', 0}, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ws.Root, "long"), bytes.Repeat([]byte("line\n"), 1<<19), 0o600); err != nil {
		t.Fatal(err)
	}
	big, err := os.Create(filepath.Join(ws.Root, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
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
