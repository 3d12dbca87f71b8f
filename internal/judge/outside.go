package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// outsideVersion is the apiVersion that the steps of a contract give to what is not in Kubernetes.
const outsideVersion = "outside"

// An Outside is a service whose things the controller makes. It keeps a ledger of all that has
// happened, which is the judge's witness.
type Outside struct {
	Start  string // a command; {{.Address}} is where it has to listen, {{.Folder}} what outlives a restart
	Ledger string // the path whose GET answers with a JSON object a line
	Kind   string // what the contract's steps call a thing

	Thing, Key []string       // where in a line the thing as it is now is, and the idempotency key
	ID, Name   []string       // where in a thing its ID is, and the NAMESPACE/NAME of its object
	Gone       map[string]any // what a thing is like that was given up

	Create, Patch, Delete string // "METHOD PATH" of what somebody sends who works there by hand
	Full, Free, Later     string // "METHOD PATH BODY": the quota is used up, and is free again; a day has passed
}

// outside reads that part of a contract.
func (r *reader) outside(n *yaml.Node, path string) *Outside {
	o := &Outside{}
	known := map[string]func(*yaml.Node, string){
		"gone": func(n *yaml.Node, path string) {
			if err := n.Decode(&o.Gone); err != nil || len(o.Gone) == 0 {
				r.fail(n, path, "it has to be fields, such as {state: Deleted}")
			}
		},
	}
	for name, text := range map[string]*string{"start": &o.Start, "ledger": &o.Ledger, "kind": &o.Kind, "create": &o.Create, "patch": &o.Patch,
		"delete": &o.Delete, "full": &o.Full, "free": &o.Free, "later": &o.Later} {
		known[name] = func(n *yaml.Node, path string) { *text = r.text(n, path) }
	}
	for name, field := range map[string]*[]string{"thing": &o.Thing, "key": &o.Key, "id": &o.ID, "name": &o.Name} {
		known[name] = func(n *yaml.Node, path string) {
			var err error
			if *field, err = parsePath(r.text(n, path)); err != nil {
				r.fail(n, path, "%v", err)
			}
		}
	}
	r.fields(n, path, known, "the outside", "start", "ledger", "kind", "thing", "id", "name", "gone", "create")
	if (o.Full == "") != (o.Free == "") {
		r.fail(n, path, "full and free belong together: what is used up has to be given back")
	}
	return o
}

// byHands complains about what nobody can do outside.
func (r *reader) byHands(c *Contract) {
	fail := func(s Step, format string, args ...any) {
		r.errs = append(r.errs, fmt.Errorf("%s: "+format, append([]any{s.where}, args...)...))
	}
	steps := slices.Clone(c.Hundred)
	for _, t := range c.Scenario {
		steps = append(steps, t.Steps...)
	}
	for _, s := range slices.Concat(c.Bystanders, steps) {
		if s.Object.GetAPIVersion() == outsideVersion && !c.Outside.is(outsideVersion, s.Object.GetKind()) {
			fail(s, "the contract has no outside with a %s", s.Object.GetKind())
		}
	}
	for _, s := range steps {
		switch outside := c.Outside.is(s.Object.GetAPIVersion(), s.Object.GetKind()); {
		case outside && s.Verb == apply:
			fail(s, "only the controller makes a %s: people can patch and delete one", c.Outside.Kind)
		case outside && s.Verb == patch && c.Outside.Patch == "", outside && s.Verb == remove && c.Outside.Delete == "":
			fail(s, "for that, outside needs the field %s", s.Verb)
		case outside && s.Verb == remove && s.Object.GetName() == "":
			fail(s, "it needs the field metadata.name")
		}
	}
}

// is says whether a step or a part of the end state is about the outside.
func (o *Outside) is(apiVersion, kind string) bool {
	return o != nil && apiVersion == outsideVersion && kind == o.Kind
}

// An outside is the service of one case, and the wire between it and the controller.
type outside struct {
	*Outside
	s    *scene
	wire *httptest.Server

	mu      sync.Mutex
	fault   fault // what goes wrong; nil for nothing
	process *proc.Process
	address string
	calls   []*call         // of the controller
	others  map[string]bool // the IDs of the things that were there before the controller
}

// A call is one that the controller has made, as the wire has seen it, or a line of the ledger.
type call struct {
	at, ended          time.Time
	method, path, body string
	query              string
	key                string // the idempotency key
	code               int    // 0 if it got no answer
	hangUp             <-chan struct{}

	thing map[string]any // of a line: as it is now
	id    string
}

func (c *call) changes() bool { return c.method != http.MethodGet && c.method != http.MethodHead }

// what is the same for a call that is sent once more.
func (c *call) what() string { return c.method + " " + c.path + " " + c.body }

// A reply is what a call is answered with; nil ends the connection without an answer.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// A fault has a call carried out by pass, or not, and says what the controller gets.
type fault func(c *call, pass func() *reply) *reply

// openOutside starts the service, and lets those in who were there before.
func (s *scene) openOutside(ctx context.Context) error {
	o := &outside{Outside: s.contract.Outside, s: s, others: map[string]bool{}}
	if err := o.start(ctx); err != nil {
		return err
	}
	s.outside, o.wire = o, httptest.NewServer(o)
	return nil
}

func (o *outside) close() {
	o.wire.CloseClientConnections()
	o.wire.Close()
	o.kill()
}

// start starts the service at a port that is free.
func (o *outside) start(ctx context.Context) error {
	var last error
	for range 3 { // in between, somebody else may have taken the port
		address, err := freeport.Address("127.0.0.1")
		if err != nil {
			return err
		}
		command, err := fill("outside.start", o.s.service, struct{ Address, Folder string }{address, filepath.Join(o.s.dir, o.s.ns)})
		if err != nil {
			return err
		}
		p, err := proc.Start(o.s.ctx, proc.Cmd{Path: "bash", Args: []string{"-c", "exec " + command}, Dir: o.s.ws.Root, Env: workspace.Without(workspace.Environ(), "KUBECONFIG")})
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.process, o.address = p, address
		o.mu.Unlock()
		last = poll.Until(ctx, 20*time.Millisecond, 30*time.Second, func(ctx context.Context) error {
			if p.Ended() {
				return poll.Stop(fmt.Errorf("%s: it has ended:\n%s", command, (&program{Process: p}).log()))
			}
			_, err := o.lines(ctx)
			return err
		})
		if last == nil || ctx.Err() != nil {
			return last
		}
		o.kill()
	}
	return unusable("the outside does not work: %w", last)
}

func (o *outside) kill() {
	o.mu.Lock()
	p := o.process
	o.mu.Unlock()
	p.Kill()
	<-p.Done()
}

// sender keeps no connections: on one that was used before, it would send a call twice by itself.
var sender = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// send makes a call to the service itself.
func (o *outside) send(ctx context.Context, method, path string, header http.Header, body string) (*reply, error) {
	o.mu.Lock()
	url := "http://" + o.address + path
	o.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header.Clone()
	}
	answer, err := sender.Do(r)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(answer.Body)
	return &reply{answer.StatusCode, answer.Header, data}, errors.Join(err, answer.Body.Close())
}

// ServeHTTP is the wire.
func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	c := &call{at: time.Now(), method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, body: string(body), key: r.Header.Get("Idempotency-Key"), hangUp: r.Context().Done()}
	o.mu.Lock()
	o.calls = append(o.calls, c)
	o.mu.Unlock()
	pass := func() *reply {
		answer, err := o.send(context.WithoutCancel(r.Context()), r.Method, r.URL.RequestURI(), r.Header, c.body)
		if err != nil {
			return nil // the service is away
		}
		return answer
	}
	var answer *reply
	o.mu.Lock()
	f := o.fault
	o.mu.Unlock()
	if f != nil {
		answer = f(c, pass)
	} else {
		answer = pass()
	}
	o.mu.Lock()
	if c.ended = time.Now(); answer != nil {
		c.code = answer.code
	}
	o.mu.Unlock()
	if answer == nil {
		panic(http.ErrAbortHandler) // ends the connection
	}
	for name, values := range answer.header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.code)
	_, _ = w.Write(answer.body) // whoever does not read it has lost it
}

// made are the calls that were to change something.
func (o *outside) made() (all []call) {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.calls {
		if c.changes() {
			all = append(all, *c)
		}
	}
	return all
}

// at is the field at a path.
func at(value any, path []string) any {
	for _, key := range path {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

func textAt(value any, path []string) string {
	if v := at(value, path); v != nil && len(path) > 0 {
		return fmt.Sprint(v)
	}
	return ""
}

// lines is the ledger.
func (o *outside) lines(ctx context.Context) (all []call, err error) {
	answer, err := o.send(ctx, http.MethodGet, o.Ledger, nil, "")
	if err != nil {
		return nil, err
	}
	if answer.code != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %d %s", o.Ledger, answer.code, answer.body)
	}
	for d := json.NewDecoder(bytes.NewReader(answer.body)); ; {
		var line struct {
			Time         time.Time
			Method, Path string
			Code         int
		}
		var raw json.RawMessage
		var fields map[string]any
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return all, nil
		} else if err := errors.Join(err, json.Unmarshal(raw, &line), json.Unmarshal(raw, &fields)); err != nil {
			return nil, fmt.Errorf("GET %s: %w", o.Ledger, err)
		}
		thing, _ := at(fields, o.Thing).(map[string]any)
		all = append(all, call{at: line.Time, method: line.Method, path: line.Path, code: line.Code, key: textAt(fields, o.Key), thing: thing, id: textAt(thing, o.ID)})
	}
}

// owner is the name of the object that a thing is for.
func (o *outside) owner(thing map[string]any) string {
	return strings.TrimPrefix(textAt(thing, o.Name), o.s.ns+"/")
}

// given says whether a thing was given up.
func (o *outside) given(thing map[string]any) bool { return holds(thing, o.Gone) }

// things are those that are there, as objects, without those of others.
func (o *outside) things(ctx context.Context) (all []unstructured.Unstructured, err error) {
	lines, err := o.lines(ctx)
	if err != nil {
		return nil, err
	}
	now := map[string]map[string]any{}
	var ids []string
	for _, l := range lines {
		if l.thing != nil && !o.others[l.id] {
			if now[l.id] == nil {
				ids = append(ids, l.id)
			}
			now[l.id] = l.thing
		}
	}
	for _, id := range ids {
		if o.given(now[id]) {
			continue
		}
		content := now[id]
		name := o.owner(content)
		if err := unstructured.SetNestedField(content, name, o.Name...); err != nil { // each case has another namespace
			return nil, err
		}
		content["apiVersion"], content["kind"], content["metadata"] = outsideVersion, o.Kind, map[string]any{"name": name}
		data, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		thing := unstructured.Unstructured{}
		if err := thing.UnmarshalJSON(data); err != nil {
			return nil, err
		}
		all = append(all, thing)
	}
	return all, nil
}

var errNoThing = errors.New("there is no")

// byHand does what a step says, as somebody who works there.
func (o *outside) byHand(ctx context.Context, step Step) error {
	fields := step.Object.DeepCopy().Object
	for _, field := range []string{"apiVersion", "kind", "metadata"} {
		delete(fields, field)
	}
	order, id := map[string]string{apply: o.Create, patch: o.Patch, remove: o.Delete}[step.Verb], ""
	if step.Verb == apply {
		if err := unstructured.SetNestedField(fields, o.s.ns+"/"+step.Object.GetName(), o.Name...); err != nil {
			return err
		}
	} else {
		things, err := o.things(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(things, func(t unstructured.Unstructured) bool { return t.GetName() == step.Object.GetName() })
		if i < 0 {
			return fmt.Errorf("%w %s", errNoThing, step)
		}
		id = textAt(things[i].Object, o.ID)
	}
	order, err := fill(step.where, order, struct{ ID string }{id})
	if err != nil {
		return err
	}
	if step.Verb != remove {
		order += " " + text(fields)
	}
	return o.order(ctx, order)
}

// order sends "METHOD PATH BODY".
func (o *outside) order(ctx context.Context, order string) error {
	parts := strings.SplitN(order, " ", 3)
	if len(parts) < 2 {
		return unusable("the contract's outside has %q where it needs a METHOD and a path", order)
	}
	answer, err := o.send(ctx, parts[0], parts[1], http.Header{"Content-Type": {"application/json"}}, strings.Join(parts[2:], ""))
	if err == nil && answer.code >= 300 {
		err = unusable("%s: %d %s", order, answer.code, answer.body)
	}
	return err
}

// list returns the objects of a kind, or those of a name.
func (s *scene) list(ctx context.Context, apiVersion, kind, name string) ([]unstructured.Unstructured, error) {
	if s.contract.Outside.is(apiVersion, kind) {
		things, err := s.outside.things(ctx)
		return slices.DeleteFunc(things, func(t unstructured.Unstructured) bool { return name != "" && t.GetName() != name }), err
	}
	client, err := s.client(apiVersion, kind)
	if err != nil {
		return nil, err
	}
	options := metav1.ListOptions{}
	if name != "" {
		options.FieldSelector = "metadata.name=" + name
	}
	list, err := client.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// meet remembers the things that are there before the controller: they are somebody else's.
func (o *outside) meet(ctx context.Context) error {
	lines, err := o.lines(ctx)
	for _, l := range lines {
		if l.thing != nil {
			o.others[l.id] = true
		}
	}
	return err
}
