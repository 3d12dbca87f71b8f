// Package web is the workshop in the browser: one page with the lessons at the
// left and real terminals at the right, for the learner at this machine alone.
package web

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/workspace"
)

//go:embed static
var static embed.FS

// Options say what a Server serves.
type Options struct {
	Workspace workspace.Workspace
	Prefix    lesson.Prefix
	Env       []string // of the terminals, as in exec.Cmd
	Host      string   // one more host, besides this machine's own names, under which the page may be reached

	// Xray answers below /api/xray/, and Tour returns the command of one of its tours. Both may be nil.
	Xray http.Handler
	Tour func(name string) (command string, ok bool)
}

// A Server serves the page, and runs its terminals.
type Server struct {
	options Options
	lessons lessons
	hosts   []string // what the Host header may say
	cookie  string   // its name: cookies do not keep ports apart
	token   string
	once    sync.Map // tokens that open the page once
	handler http.Handler

	terminals *terminals
}

// Serve serves the page on the listener until ctx ends. Once it has returned,
// nothing that it started runs any more. It calls ready when the page can be opened.
func Serve(ctx context.Context, listener net.Listener, options Options, ready func(*Server)) error {
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s := &Server{options: options, cookie: "workshop-" + port, token: rand.Text()}
	for _, name := range []string{"127.0.0.1", "localhost", "[::1]"} {
		s.hosts = append(s.hosts, name+":"+port)
	}
	s.lessons = lessons{options.Workspace, options.Prefix}
	s.terminals = newTerminals(ctx, options.Workspace.Root, options.Env)
	s.handler = s.routes()
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	ready(s)
	err = server.Serve(listener)
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, s.terminals.close())
}

// Address is where a person opens the page. Its token is good for as long as
// the server runs.
func (s *Server) Address() string { return s.address(s.token) }

// AddressOnce is an address that works once. Others of this machine may see it, because
// it is on the command line of the program that opens a browser.
func (s *Server) AddressOnce() string {
	token := rand.Text()
	s.once.Store(token, nil)
	return s.address(token)
}

func (s *Server) address(token string) string { return "http://" + s.hosts[0] + "/?token=" + token }

func (s *Server) routes() http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // static is a valid path, as the compiler has seen
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "index.html") })
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(files)))
	mux.HandleFunc("GET /api/steps", answer(func(*http.Request) (any, error) { return s.lessons.steps() }))
	mux.HandleFunc("GET /api/lessons/{step}", answer(func(r *http.Request) (any, error) { return s.lessons.lesson(r.PathValue("step")) }))
	mux.HandleFunc("GET /api/file", answer(func(r *http.Request) (any, error) {
		return readFile(s.options.Workspace.Root, r.URL.Query().Get("path"))
	}))
	mux.HandleFunc("GET /api/exercises/{step}", answer(s.exercises))
	mux.HandleFunc("POST /api/exercises/{step}/{action}", answer(s.doExercise))
	mux.HandleFunc("GET /api/terminals", answer(func(*http.Request) (any, error) { return s.terminals.list(), nil }))
	mux.HandleFunc("POST /api/terminals", answer(func(*http.Request) (any, error) { return s.terminals.open() }))
	mux.HandleFunc("DELETE /api/terminals/{id}", answer(func(r *http.Request) (any, error) {
		t, err := s.terminals.find(r.PathValue("id"))
		if err == nil {
			t.stop()
			<-t.done // nothing of it is left
		}
		return struct{}{}, err
	}))
	mux.HandleFunc("GET /api/terminals/{id}/ws", s.connect)
	if s.options.Xray != nil {
		mux.Handle("/api/xray/", http.StripPrefix("/api/xray", s.options.Xray))
	}
	return mux
}

// A problem is an error with the status code of its answer.
type problem struct {
	code int
	error
}

func refuse(code int, format string, args ...any) error {
	return problem{code, fmt.Errorf(format, args...)}
}

// answer makes a handler that answers in JSON.
func answer(f func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(r)
		var p problem
		switch {
		case errors.As(err, &p):
			http.Error(w, err.Error(), p.code)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // a page that has gone needs no answer
	}
}

// policy lets the page use what this server serves, and nothing else. The terminals
// (xterm.js) write style sheets of their own while they run.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP answers only who knows the token, and no page of another origin.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		w.Header().Set(name, value)
	}
	// A name of somebody else's that leads to this machine (DNS rebinding) is none of ours.
	if !s.known(r.Host) {
		http.Error(w, fmt.Sprintf("The page is not served as %q. If you forward its port, start it with HOST=%s.", r.Host, r.Host), http.StatusForbidden)
		return
	}
	if !s.sameOrigin(r) {
		http.Error(w, "This request comes from another page.", http.StatusForbidden)
		return
	}
	query := r.URL.Query()
	if r.URL.Path == "/" && r.Method == http.MethodGet && s.admit(query.Get("token")) {
		query.Del("token")
		http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: s.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/?"+query.Encode(), http.StatusSeeOther)
		return
	}
	if cookie, err := r.Cookie(s.cookie); err != nil || !equal(cookie.Value, s.token) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusUnauthorized)
		// A browser that comes from a link in another page has the cookie, and sends it only with a click in this one.
		fmt.Fprint(w, "<!doctype html><title>Workshop</title><p>Open the address that <code>make web</code> has printed. If you have just done so, <a href=\"/\">continue</a>.")
		return
	}
	s.handler.ServeHTTP(w, r)
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (s *Server) admit(token string) bool {
	if equal(token, s.token) {
		return true
	}
	_, fresh := s.once.LoadAndDelete(token)
	return fresh
}

func (s *Server) known(host string) bool {
	if slices.Contains(s.hosts, host) {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return s.options.Host != "" && (host == s.options.Host || name == s.options.Host)
}

// sameOrigin reports whether a request comes from a page of this server. Browsers
// name the origin in all requests that may change something, and in those of
// other sites' scripts.
func (s *Server) sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		safe := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
		site := r.Header.Get("Sec-Fetch-Site")
		return safe && (r.URL.Path == "/" || site == "" || site == "same-origin" || site == "none")
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	// Behind a forwarded port, the Host header may be this machine's, and the origin the other host.
	return u.Host == r.Host || s.known(u.Host)
}
