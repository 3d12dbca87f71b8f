// Package web is the workshop in the browser: one page with the lessons at the
// left and real terminals at the right, for the learner at this machine alone.
package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"golang.org/x/net/netutil"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/peer"
	"github.com/k8s-go/workshop/internal/workspace"
)

//go:embed static
var static embed.FS

// Options say what a Server serves.
type Options struct {
	Workspace workspace.Workspace
	Prefix    lesson.Prefix
	Env       []string // of the terminals, as in exec.Cmd
	Origin    string   // of a forwarded port, such as https://learner.example.org; empty if only this machine reaches the page
	State     string   // the file of what the page remembers; empty if that ends with the server

	Board  string // a folder of learners' progress files
	Place  string // a file that says where this page's trainer is
	Follow string // such a file of another trainer

	// Xray answers below /api/xray/, and Tour returns the command of one of its tours. Both may be nil.
	Xray http.Handler
	Tour func(name string) (command string, ok bool)

	// Look returns what the page shows of the cluster; nil: nothing. It is asked again and again.
	Look func(ctx context.Context) Cluster
}

// A Cluster is what the page shows of it.
type Cluster struct {
	Name   string   `json:"name"`
	Error  string   `json:"error,omitempty"`  // why it does not answer
	Faults []string `json:"faults,omitempty"` // that can still strike, by their names in the X-ray
}

// A Server serves the page, and runs its terminals.
type Server struct {
	options Options
	origins []string // what the Origin header may say, and after :// the Host header; the one of Address is the last
	token   string
	handler http.Handler

	state     *state
	terminals *terminals
	moved     chan struct{} // a value: the trainer's place has to be written
}

// maxConnections is more than all windows of all terminals and of the X-ray need.
const maxConnections = 200

// Serve serves the page on the listener until ctx ends. Once it has returned,
// nothing that it started runs any more, but for what waits for a file on a share that hangs. It calls ready when the page can be opened.
func Serve(ctx context.Context, listener net.Listener, options Options, ready func(*Server)) error {
	// Not localhost: another user may listen on the same port of [::1], which that may be.
	s := &Server{options: options, origins: []string{"http://" + listener.Addr().String()}, token: rand.Text(), moved: make(chan struct{}, 1)}
	if options.Origin != "" {
		s.origins = append(s.origins, options.Origin)
	}
	var problem string
	var err error
	if s.state, problem, err = openState(options.State); err != nil {
		return err
	}
	if problem != "" {
		fmt.Fprintln(os.Stderr, problem)
	}
	s.terminals = &terminals{ctx: ctx, dir: options.Workspace.Root, env: options.Env, all: map[int]*terminal{}, tell: func(ids []int) {
		s.state.Lock()
		defer s.state.Unlock()
		s.state.tell("terminals", ids)
	}}
	if options.State != "" {
		s.terminals.past = filepath.Join(filepath.Dir(options.State), "history")
	}
	s.handler = s.routes()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, strangerKey{}, sync.OnceValue(func() bool { return stranger(c) }))
	}}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	defer func() {
		stop()
		done := make(chan struct{})
		go func() {
			looks.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(2 * time.Second): // a file on a share that hangs is waited for no longer
		}
	}()
	if options.Place != "" {
		looks.Go(func() { s.writePlaces(looking) })
		s.move() // as it was when the page ended
	}
	if options.Look != nil {
		looks.Go(func() { s.look(looking, "cluster", func(ctx context.Context) any { return options.Look(ctx) }) })
	}
	if options.Follow != "" {
		looks.Go(func() { s.look(looking, trainerFollow, s.trainersPlace) })
	}
	ready(s)
	err = server.Serve(netutil.LimitListener(listener, maxConnections))
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, s.terminals.close())
}

// look tells the windows what f finds every second, until ctx ends: a change on another machine wakes nobody.
func (s *Server) look(ctx context.Context, name string, f func(context.Context) any) {
	for ctx.Err() == nil {
		found := f(ctx)
		s.state.Lock()
		s.state.tell(name, found)
		s.state.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Address is where a person opens the page. Its token is good for as long as the
// server runs. It is in the fragment, which browsers send to nobody: a cookie would
// go to every port of this machine.
func (s *Server) Address() string { return s.origins[len(s.origins)-1] + "/#token=" + s.token }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, static, "static/index.html") })
	mux.Handle("GET /static/", gzhttp.GzipHandler(http.FileServerFS(static)))
	mux.HandleFunc("GET /api/state/ws", s.followState)
	mux.HandleFunc("GET /api/terminals/{id}/ws", s.connect)
	for pattern, f := range map[string]func(*http.Request) (any, error){
		"GET /api/state":                      s.getState,
		"PUT /api/state/{name}":               s.putState,
		"GET /api/steps":                      s.steps,
		"GET /api/lessons/{step}":             s.ofStep(s.lesson),
		"GET /api/glossary":                   s.glossary,
		"GET /api/file":                       s.readFile,
		"GET /api/edit":                       s.readWork,
		"PUT /api/edit":                       s.saveWork,
		"GET /api/exercises/{step}":           s.ofStep(s.exercises),
		"POST /api/exercises/{step}/{action}": s.ofStep(s.doExercise),
		"POST /api/tours/{name}":              s.tour,
		"GET /api/trainer/{step}":             s.ofStep(s.trainer),
		"GET /api/board":                      s.board,
		"POST /api/terminals":                 s.terminals.open,
		"DELETE /api/terminals/{id}":          s.terminals.remove,
	} {
		mux.HandleFunc(pattern, answer(f))
	}
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

// fail answers an error.
func fail(w http.ResponseWriter, err error) {
	p := problem{code: http.StatusInternalServerError}
	_ = errors.As(err, &p)
	http.Error(w, err.Error(), p.code)
}

// answer makes a handler that answers in JSON.
func answer(f func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(r)
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // a page that has gone needs no answer
	}
}

// ofStep finds the step that a request's path names.
func (s *Server) ofStep(f func(workspace.Step, *http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		step, err := s.options.Workspace.Step(r.PathValue("step"))
		if err != nil {
			return nil, problem{http.StatusNotFound, err}
		}
		return f(step, r)
	}
}

// policy lets the page use what this server serves, and nothing else. The terminals
// (xterm.js) and the editor write style sheets of their own while they run. The one script in the
// page itself is the list of the editor's modules, which has to be there, and is named by its hash.
var policy = "default-src 'none'; script-src 'self' '" + importMapHash() + "'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// importMapHash names the list of modules of index.html as a browser does.
func importMapHash() string {
	page, _ := static.ReadFile("static/index.html") // it is compiled in
	_, list, _ := strings.Cut(string(page), `<script type="importmap">`)
	list, _, _ = strings.Cut(list, "</script>")
	sum := sha256.Sum256([]byte(list))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// tokenHeader proves that a request comes from the page. A browser's WebSocket has no
// headers of its own, and brings the token as the name of a protocol.
const tokenHeader = "Workshop-Token"

// ServeHTTP answers only who knows the token, but for the page itself, which is no
// secret; and no page of another origin, nor another user of this machine.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		w.Header().Set(name, value)
	}
	code, reason := http.StatusForbidden, ""
	switch isStranger := r.Context().Value(strangerKey{}).(func() bool); {
	case s.options.Origin == "" && isStranger():
		w.Header().Set("Connection", "close")
		reason = "This page belongs to another user of this machine. Run make web as the user of this browser."
	case !slices.ContainsFunc(s.origins, func(origin string) bool { return strings.HasSuffix(origin, "://"+r.Host) }):
		// A name of somebody else's that leads to this machine (DNS rebinding) is none of ours.
		scheme := "https"
		if host, _, err := net.SplitHostPort(r.Host); err == nil && (host == "localhost" || host == "127.0.0.1") {
			scheme = "http" // a tunnel, such as that of ssh -L
		}
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.origins[0], "http://"))
		reason = fmt.Sprintf("The page is not served as %q, but as %s. If you forward its port, start it with that port, and with the beginning of the address that your browser shows, such as PORT=%s HOST=%s://%[1]s.", r.Host, s.origins[0], port, scheme)
	case !s.sameOrigin(r):
		reason = "This request comes from another page."
	case r.URL.Path != "/" && !strings.HasPrefix(r.URL.Path, "/static/") && !s.admits(r):
		code, reason = http.StatusUnauthorized, "This page has no valid session. Open the address that make web has printed."
	default:
		s.handler.ServeHTTP(w, r)
		return
	}
	http.Error(w, reason, code)
}

type strangerKey struct{}

// stranger reports whether a connection comes from another user of this machine, other
// than root, who can do everything anyway. What no process of this machine has comes
// from a forwarder outside of it, as WSL has one, and needs the token like any other.
func stranger(c net.Conn) bool {
	client, known := peer.Of(c.RemoteAddr().String(), c.LocalAddr().String())
	return known && (client.Inode == 0 || client.UID != 0 && client.UID != uint64(os.Getuid()))
}

func (s *Server) admits(r *http.Request) bool {
	for _, token := range append(strings.Split(r.Header.Get("Sec-WebSocket-Protocol"), ","), r.Header.Get(tokenHeader)) {
		if subtle.ConstantTimeCompare([]byte(strings.TrimSpace(token)), []byte(s.token)) == 1 {
			return true
		}
	}
	return false
}

// sameOrigin reports whether a request comes from a page of this server. Browsers
// name the origin in all requests that may change something, and in those of
// other sites' scripts.
func (s *Server) sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		return slices.Contains(s.origins, origin)
	}
	safe := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	site := r.Header.Get("Sec-Fetch-Site")
	return safe && (r.URL.Path == "/" || site == "" || site == "same-origin" || site == "none")
}
