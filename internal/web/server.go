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
	"io/fs"
	"net"
	"net/http"
	"os"
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
	lessons lessons
	hosts   []string // what the Host header may say
	origins []string // and the Origin header, the one of Address last
	token   string
	handler http.Handler

	state     *state
	outcomes  sync.Mutex // of the commands of the lessons, in state
	terminals *terminals
}

// maxConnections is more than all windows of all terminals and of the X-ray need.
const maxConnections = 200

// Serve serves the page on the listener until ctx ends. Once it has returned,
// nothing that it started runs any more. It calls ready when the page can be opened.
func Serve(ctx context.Context, listener net.Listener, options Options, ready func(*Server)) error {
	// Not localhost: another user may listen on the same port of [::1], which that may be.
	host := listener.Addr().String()
	s := &Server{options: options, hosts: []string{host}, origins: []string{"http://" + host}, token: rand.Text()}
	if options.Origin != "" {
		_, host, _ := strings.Cut(options.Origin, "://")
		s.hosts, s.origins = append(s.hosts, host), append(s.origins, options.Origin)
	}
	var problem string
	var err error
	if s.state, problem, err = openState(options.State); err != nil {
		return err
	}
	if problem != "" {
		fmt.Fprintln(os.Stderr, problem)
	}
	s.lessons = lessons{options.Workspace, options.Prefix}
	s.terminals = newTerminals(ctx, options.Workspace.Root, options.Env, options.State)
	s.handler = s.routes()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, strangerKey{}, sync.OnceValue(func() bool { return stranger(c) }))
	}}
	defer s.teach(ctx)()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	var looking sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	if options.Look != nil {
		looking.Go(func() { s.look(watching) })
	}
	ready(s)
	err = server.Serve(netutil.LimitListener(listener, maxConnections))
	if ctx.Err() != nil {
		err = nil
	}
	err = errors.Join(err, s.terminals.close())
	stop()
	looking.Wait()
	return err
}

// look tells the windows how the cluster is, until ctx ends.
func (s *Server) look(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.state.tell("cluster", s.options.Look(ctx)) // a full state has said so already
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
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // static is a valid path, as the compiler has seen
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "index.html") })
	mux.Handle("GET /static/", gzhttp.GzipHandler(http.StripPrefix("/static/", http.FileServerFS(files))))
	mux.HandleFunc("GET /api/state", answer(s.getState))
	mux.HandleFunc("GET /api/state/ws", s.followState)
	mux.HandleFunc("PUT /api/state/{name}", answer(s.putState))
	mux.HandleFunc("GET /api/steps", answer(func(*http.Request) (any, error) { return s.lessons.steps() }))
	mux.HandleFunc("GET /api/lessons/{step}", answer(func(r *http.Request) (any, error) { return s.lessons.lesson(r.PathValue("step")) }))
	mux.HandleFunc("GET /api/trainer/{step}", answer(s.trainer))
	mux.HandleFunc("GET /api/board", answer(s.board))
	mux.HandleFunc("GET /api/file", answer(func(r *http.Request) (any, error) {
		return readFile(s.options.Workspace.Root, r.URL.Query().Get("path"))
	}))
	mux.HandleFunc("GET /api/glossary", answer(func(*http.Request) (any, error) { return s.lessons.glossary() }))
	mux.HandleFunc("GET /api/edit", answer(func(r *http.Request) (any, error) {
		return readWork(s.options.Workspace.Root, r.URL.Query().Get("path"))
	}))
	mux.HandleFunc("PUT /api/edit", answer(func(r *http.Request) (any, error) {
		return saveWork(s.options.Workspace.Root, r.URL.Query().Get("path"), r.Body)
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
// (xterm.js) and the editor write style sheets of their own while they run. The one script in the
// page itself is the list of the editor's modules, which has to be there, and is named by its hash.
var policy = "default-src 'none'; script-src 'self' '" + importMapHash() + "'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// importMapHash names the list of modules of index.html as a browser does.
func importMapHash() string {
	page, err := fs.ReadFile(static, "static/index.html")
	if err != nil {
		panic(err) // it is compiled in
	}
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
	case !slices.Contains(s.hosts, r.Host):
		// A name of somebody else's that leads to this machine (DNS rebinding) is none of ours.
		reason = fmt.Sprintf("The page is not served as %q, but as %s. If you forward its port, start it with HOST= and the beginning of the address that your browser shows, such as HOST=https://%[1]s.", r.Host, s.origins[0])
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
