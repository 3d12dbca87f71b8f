package faultproxy

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// A Request is what a client asked for, in the API's terms, and what it got.
type Request struct {
	ID        int    // requests are numbered from 1 in the order in which they begin
	Verb      string // get list watch watch-list create update patch delete deletecollection
	Group     string // empty for the core group
	Resource  string // plural, with the subresource after a slash; empty for paths that are no resource
	Namespace string
	Name      string
	UserAgent string
	Remote    string // the client's address and port
	Path      string
	Query     string
	Content   string // the type of its body, as its header says

	Started time.Time
	Took    time.Duration // zero while it is under way
	Code    int           // the HTTP status of the answer; zero while there is none
	Events  int           // for a watch: how many went to the client, bookmarks included
	Faults  []Fault       // what was done to it
	Body    []byte        // of a write, if the proxy keeps bodies
	Broken  string        // why the answer has no end, if the server or the way to it is at fault; not of a watch
}

// watch-list is a watch that begins with the present state (sendInitialEvents).
const (
	verbWatch     = "watch"
	verbWatchList = "watch-list"
)

func (r Request) watch() bool { return r.Verb == verbWatch || r.Verb == verbWatchList }

// Write reports whether the request is to change something: it is no read and no dry run.
func (r Request) Write() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return !strings.Contains(r.Query, "dryRun=")
	}
	return false
}

// String is one line for a log.
func (r Request) String() string {
	what := r.Resource
	if what == "" {
		what = r.Path
	}
	if r.Name != "" {
		what += "/" + r.Name
	}
	s := fmt.Sprintf("%d %s %s", r.Code, r.Verb, what)
	if r.watch() {
		s += fmt.Sprintf(", %d events", r.Events)
	}
	for _, f := range r.Faults {
		s += fmt.Sprintf(", fault %s", f)
	}
	if r.Broken != "" {
		s += ", broken: " + r.Broken
	}
	return s
}

func describe(r *http.Request) Request {
	req := Request{UserAgent: r.UserAgent(), Remote: r.RemoteAddr, Path: r.URL.Path, Query: r.URL.RawQuery, Content: r.Header.Get("Content-Type"), Started: time.Now(), Verb: strings.ToLower(r.Method)}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch { // leave what comes after the version
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		req.Group, parts = parts[1], parts[3:]
	default:
		return req
	}
	// "namespaces" is a scope, unless nothing or a subresource of it follows.
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		req.Namespace, parts = parts[1], parts[2:]
	}
	req.Resource = parts[0]
	if len(parts) > 1 {
		req.Name = parts[1]
	}
	if len(parts) > 2 {
		req.Resource += "/" + parts[2]
	}
	query := r.URL.Query()
	switch r.Method {
	case http.MethodGet:
		switch {
		case req.Name != "": // of one object the API server does not look at watch
		case isTrue(query["watch"]) && isTrue(query["sendInitialEvents"]):
			req.Verb = verbWatchList
		case isTrue(query["watch"]):
			req.Verb = verbWatch
		default:
			req.Verb = "list"
		}
	case http.MethodPost:
		req.Verb = "create"
	case http.MethodPut:
		req.Verb = "update"
	case http.MethodDelete:
		if req.Name == "" {
			req.Verb = "deletecollection"
		}
	}
	return req
}

// isTrue reads a parameter as the API server does, to which "True" and "" are true, too.
func isTrue(values []string) (is bool) {
	_ = runtime.Convert_Slice_string_To_bool(&values, &is, nil) // it returns no error
	return is
}

// A Match says which requests are meant. The strings are patterns as in
// path.Match, in which * also matches what holds a slash; an empty one matches all.
type Match struct {
	Verb      string
	Group     string
	Resource  string // "pods" is without its subresources, "pods/*" means only these
	Namespace string
	Name      string
	UserAgent string

	If func(Request) bool // if not nil, has to agree; it is called at any time and by several goroutines
}

// Watches are the requests that stay open, whether they begin with the present state or not.
var Watches = Match{Verb: "watch*"}

// Writes are the requests that are to change something.
var Writes = Match{If: Request.Write}

func (m Match) matches(r Request) bool {
	return matches(m.Verb, r.Verb) && matches(m.Group, r.Group) && matches(m.Resource, r.Resource) && matches(m.Namespace, r.Namespace) &&
		matches(m.Name, r.Name) && matches(m.UserAgent, r.UserAgent) && (m.If == nil || m.If(r))
}

func matches(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	const slash = "\x00" // path.Match treats / as a border, which a user agent is full of
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(s, "/", slash))
	return ok && err == nil
}

func (m Match) check() error {
	for _, pattern := range []string{m.Verb, m.Group, m.Resource, m.Namespace, m.Name, m.UserAgent} {
		if err := checkPattern(pattern); err != nil {
			return err
		}
	}
	return nil
}

func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return nil
}
