package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A client is a browser that has opened the page.
type client struct {
	*http.Client
	t     testing.TB
	base  string // "http://127.0.0.1:12345"
	token string
	s     *Server // unless another process serves it
}

// visit opens an address of make web.
func visit(t testing.TB, address string) *client {
	t.Helper()
	base, token, ok := strings.Cut(address, "/#token=")
	c := &client{Client: &http.Client{Timeout: time.Minute}, t: t, base: base, token: token}
	if r := c.get(address); !ok || r.StatusCode != http.StatusOK || len(r.Cookies()) > 0 {
		t.Fatalf("opening the page at %s: %s, cookies %v", address, r.Status, r.Cookies())
	}
	return c
}

// serve serves a clone until the test ends.
func serve(t testing.TB, options Options) *client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan *Server, 1)
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, options, func(s *Server) { ready <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	s := <-ready
	c := visit(t, "http://"+listener.Addr().String()+"/#token="+s.token)
	c.s = s
	return c
}

func (c *client) get(url string) *http.Response {
	c.t.Helper()
	r, err := c.Get(url)
	fatal.If(c.t, err)
	c.t.Cleanup(func() { _ = r.Body.Close() })
	return r
}

// call sends a request to the API as the page does, and decodes the answer into v, if that is not nil.
func (c *client) call(method, path, body string, v any) (code int, text string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	fatal.If(c.t, err)
	r.Header.Set("Origin", c.base)
	r.Header.Set(tokenHeader, c.token)
	answer, err := c.Do(r)
	fatal.If(c.t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	fatal.If(c.t, err)
	if v != nil {
		if err := json.Unmarshal(data, v); err != nil {
			c.t.Fatalf("%s %s: %s, %v: %s", method, path, answer.Status, err, data)
		}
	}
	return answer.StatusCode, string(data)
}

// A screen is a terminal as a page sees it.
type screen struct {
	t      testing.TB
	c      *client
	id     int
	conn   *websocket.Conn
	output bytes.Buffer
	bytes  int // how many there were, also when output was cut
	drawn  int // of those that the server is not told of yet, unless it is negative
}

func (c *client) terminal() *screen {
	c.t.Helper()
	var answer struct{ ID int }
	if code, text := c.call("POST", "/api/terminals", "", &answer); code != http.StatusOK {
		c.t.Fatalf("opening a terminal: %d %s", code, text)
	}
	s := c.join(answer.ID)
	s.until("prompt")
	return s
}

// terminals returns which there are.
func (c *client) terminals() []int {
	c.t.Helper()
	var all struct {
		Changed struct{ Terminals []int }
	}
	c.call("GET", "/api/state", "", &all)
	return all.Changed.Terminals
}

func (c *client) join(id int) *screen {
	c.t.Helper()
	conn, _, err := c.dial(fmt.Sprintf("/api/terminals/%d/ws", id), c.base)
	fatal.If(c.t, err)
	conn.SetReadLimit(1 << 20)
	c.t.Cleanup(func() { _ = conn.CloseNow() })
	return &screen{t: c.t, c: c, id: id, conn: conn}
}

// dial opens a WebSocket as a page of this origin would that knows the token.
func (c *client) dial(path, origin string) (*websocket.Conn, *http.Response, error) {
	header := http.Header{}
	if origin != "" {
		header.Set("Origin", origin)
	}
	return websocket.Dial(c.t.Context(), strings.Replace(c.base, "http", "ws", 1)+path, &websocket.DialOptions{HTTPHeader: header, Subprotocols: []string{"workshop", c.token}})
}

// received is what the server may say in a text frame.
type received struct {
	Type                 string
	Step, Block, Command int
	ExitCode             *int
	OK                   *bool
	Difference           string
	Writer               *bool
	Cols, Rows           uint16
}

// next reads one frame, and returns the message if it is one.
func (s *screen) next(ctx context.Context) (m received, err error) {
	kind, data, err := s.conn.Read(ctx)
	if err != nil {
		return m, err
	}
	if kind == websocket.MessageBinary {
		s.bytes += len(data)
		if s.drawn >= 0 {
			if s.drawn += len(data); s.drawn >= 64<<10 {
				err, s.drawn = s.conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"type":"drawn","bytes":%d}`, s.drawn)), 0
			}
		}
		s.output.Write(data)
		if over := s.output.Len() - 1<<20; over > 0 {
			s.output.Next(over)
		}
		return m, err
	}
	return m, json.Unmarshal(data, &m)
}

// until reads on to the first message of one of these types.
func (s *screen) until(types ...string) received {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	for {
		m, err := s.next(ctx)
		if err != nil {
			s.t.Fatalf("waiting for %v: %v; the terminal shows:\n%q", types, err, s.output.String())
		}
		for _, t := range types {
			if m.Type == t {
				return m
			}
		}
	}
}

func (s *screen) ask(request string) {
	s.t.Helper()
	fatal.If(s.t, s.conn.Write(s.t.Context(), websocket.MessageText, []byte(request)))
}

// run asks for a command of a lesson as it is now.
func (s *screen) run(step, block, command int) {
	s.t.Helper()
	s.ask(s.c.request(step, block, command))
}

func (c *client) request(step, block, command int) string {
	c.t.Helper()
	now, err := c.s.command(step, block, command)
	fatal.If(c.t, err)
	return fmt.Sprintf(`{"type":"run","step":%d,"block":%d,"command":%d,"hash":%q}`, step, block, command, hashOf(now.Text))
}

func (s *screen) keys(keys string) {
	s.t.Helper()
	fatal.If(s.t, s.conn.Write(s.t.Context(), websocket.MessageBinary, []byte(keys)))
}

// clone makes a small clone whose step 1 has these console blocks.
func clone(t testing.TB, blocks ...string) workspace.Workspace {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	text := "# One\n"
	for _, b := range blocks {
		text += "\n```console\n" + b + "\n```\n"
	}
	testfile.WriteAll(t, root, map[string]string{
		"go.mod":           "module " + workspace.Module + "\n\ngo 1.26.0\n",
		"01-one/README.md": text,
		"01-one/main.go":   "package main\n\nfunc main() {}\n",
		".git/config":      "[secret]\n",
		".workshop/secret": "secret\n",
	})
	return workspace.Workspace{Root: root}
}

func TestRunJudgesACommand(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t,
		"$ echo one; printf '\\e[31mred\\e[0m\\r\\n'\none\nred",
		"$ for i in 1 2; do\n>   echo $i\n> done\n1\n2\n$ (exit 3)\n[exit status 3]\n$ echo four\nfive\n$ sleep 100 & p=$!\n$ kill $p; true\n$ tab='a\tb'; echo ${#tab}\n3",
	), Env: os.Environ()})
	s := c.terminal()
	for _, tc := range []struct {
		block, command, exit int
		ok                   bool
		difference           string
	}{
		{1, 1, 0, true, ""}, {2, 1, 0, true, ""}, {2, 2, 3, true, ""}, {2, 3, 0, false, `expects "five"`}, {2, 4, 0, true, ""}, {2, 5, 0, true, ""}, {2, 6, 0, true, ""},
	} {
		s.run(1, tc.block, tc.command)
		s.until("started")
		m := s.until("result")
		if m.Block != tc.block || m.Command != tc.command || *m.ExitCode != tc.exit || *m.OK != tc.ok || !strings.Contains(m.Difference, tc.difference) {
			t.Errorf("command %d of block %d: exit code %d, ok %v, difference %q\n%q", tc.command, tc.block, *m.ExitCode, *m.OK, m.Difference, s.output.String())
		}
	}
}

// Every command of step 1, clicked in the page, prints what the lesson says.
func TestWholeLessonInATerminal(t *testing.T) {
	e := testenv.New(t)
	const prefix = lesson.Prefix("web-")
	if commands := walk(t, e, prefix, "1"); commands < 30 {
		t.Errorf("only %d commands: this was not the lesson", commands)
	}
}

// walk runs all commands of a lesson in a terminal, and returns their number.
func walk(t *testing.T, e *testenv.Env, prefix lesson.Prefix, number string) (commands int) {
	t.Helper()
	step, err := e.Workspace().Step(number)
	fatal.If(t, err)
	proxy := e.Proxy()
	c := serve(t, Options{Workspace: e.Workspace(), Prefix: prefix,
		Env: append(workspace.Without(e.Cluster().Environ(), lesson.PrefixVariable), prefix.Environ(), "KUBECONFIG="+proxy.Kubeconfig)})
	var page struct{ Title, HTML string }
	c.call("GET", "/api/lessons/"+number, "", &page)
	s := c.terminal()
	before := 0 // the page counts the blocks of a step's documents on
	for _, file := range step.Documents() {
		source, err := os.ReadFile(file)
		fatal.If(t, err)
		doc, err := readme.Parse(source)
		fatal.If(t, err)
		// Each document begins with the namespace that the one before it has deleted.
		removeNamespace(t, e, prefix.Namespace(step))
		for i, b := range doc.Blocks {
			for j := range b.Commands {
				block := before + i + 1
				at := fmt.Sprintf(`data-step="%s" data-block="%d" data-command="%d"`, number, block, j+1)
				if strings.Contains(page.HTML, at) == b.ByHand {
					t.Fatalf("command %d of block %d: its button is on the page: %v; by hand: %v", j+1, block, !b.ByHand, b.ByHand)
				}
				if b.ByHand {
					continue
				}
				commands++
				s.run(step.Number, block, j+1)
				if m := s.until("result", "busy"); m.OK == nil || !*m.OK {
					t.Fatalf("%s, line %d: $ %s\n%+v: %s\n%q", filepath.Base(file), b.Commands[j].Line, b.Commands[j].Text, m, m.Difference, s.output.String())
				}
			}
		}
		before += len(doc.Blocks)
	}
	if len(proxy.Requests(faultproxy.Match{Verb: "create"})) == 0 {
		t.Error("nothing was created through the proxy")
	}
	return commands
}

// removeNamespace removes what an interrupted run has left, now and when the test ends.
func removeNamespace(t *testing.T, e *testenv.Env, name string) {
	t.Helper()
	gone := func(ctx context.Context) {
		err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
			err := e.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("namespace %s is still there (%v)", name, err)
		})
		if err != nil {
			t.Error(err)
		}
	}
	gone(t.Context())
	t.Cleanup(func() { gone(context.WithoutCancel(e.Context())) })
}

// A step that somebody with a prefix cannot do has its row all the same, and only its lesson is refused.
func TestStepsWithAPrefix(t *testing.T) {
	ws := clone(t, "$ true\n$ true")
	testfile.WriteAll(t, ws.Root, map[string]string{"04-two/README.md": "# Two\n\n<!-- cluster-scoped objects: 04 -->\n\n```console\n$ true\n```\n"})
	c := serve(t, Options{Workspace: ws, Prefix: "anna-"})
	var rows []struct {
		Step, Commands int
		Hashes         map[string]string
	}
	if code, text := c.call("GET", "/api/steps", "", &rows); code != http.StatusOK || len(rows) != 2 || rows[0].Commands != 2 || rows[1].Commands != 0 {
		t.Errorf("the steps: %d %s", code, text)
	} else if rows[0].Hashes["1/2"] != hashOf("true") {
		t.Errorf("the second command's hash is not among %v", rows[0].Hashes)
	}
}
