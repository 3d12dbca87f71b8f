package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

const (
	maxTerminals = 8
	maxPages     = 8         // windows of one terminal
	maxBehind    = 2 << 20   // bytes that a page may have to draw before it gets no more
	kept         = 256 << 10 // bytes of output that a page sees again when it comes back
)

//go:embed bashrc
var bashrc []byte

// terminals are the shells of the page. They outlive a page, but not the server.
type terminals struct {
	ctx  context.Context
	dir  string // where a shell starts
	env  []string
	past string          // the folder of the shells' histories; "" keeps none
	tell func(ids []int) // which there are

	telling sync.Mutex // from the look at which there are until they are told
	wait    sync.WaitGroup

	mu   sync.Mutex
	last int
	all  map[int]*terminal
	err  error // of those that have ended
}

// A terminal is a bash on a pseudo-terminal.
type terminal struct {
	ID   int      `json:"id"` // which is all that a page is told of it
	tty  *os.File // our side of it
	dir  string   // where it has started
	stop context.CancelFunc
	done chan struct{} // closed when nothing of it is left

	mu     sync.Mutex
	output []byte // the last of it, at least kept bytes
	marks  marks
	ready  bool // bash waits for a command
	away   bool // and not where it has started
	run    *run // what the page has asked for, until bash is ready again
	ended  bool
	pages  map[*websocket.Conn]*page
	writer *websocket.Conn // the window whose keys and size count; nil if it has gone
	size   unix.Winsize
}

// A page is a window that shows a terminal.
type page struct {
	behind int  // bytes that it was sent and has not drawn
	skips  bool // it is too far behind, and gets the last output as soon as it has caught up
}

// asked names a command of a lesson.
type asked struct {
	Step    int    `json:"step,omitempty"`
	Block   int    `json:"block,omitempty"`
	Command int    `json:"command,omitempty"`
	Hash    string `json:"hash,omitempty"` // of the command's text, as the page has it
}

// A run is what a terminal does for the page.
type run struct {
	asked
	judge    func(result *message, printed []string) // nil if it is not judged
	output   proc.Buffer
	running  bool // what comes is its output
	ended    bool // and what comes is the next prompt, or the next command of a paste
	exitCode int
}

// A message goes to the page as JSON.
type message struct {
	Type string `json:"type,omitempty"` // of what happens now
	asked
	ExitCode   *int   `json:"exitCode,omitempty"`
	OK         *bool  `json:"ok,omitempty"`
	Difference string `json:"difference,omitempty"`

	Writer *bool  `json:"writer,omitempty"` // whether this window's keys count
	Cols   uint16 `json:"cols,omitempty"`   // of the window whose keys count
	Rows   uint16 `json:"rows,omitempty"`
}

func (ts *terminals) open(*http.Request) (any, error) {
	t, err := ts.add()
	if err != nil {
		return nil, err
	}
	ts.tellAll()
	return t, nil
}

func (ts *terminals) add() (*terminal, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.all) >= maxTerminals {
		return nil, refuse(http.StatusConflict, "There are %d terminals already. Close one first.", maxTerminals)
	}
	t, err := ts.start(ts.last + 1)
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	ts.last++
	ts.all[t.ID] = t
	return t, nil
}

// start starts bash. All of it ends with ctx, with the terminal, or by itself.
func (ts *terminals) start(id int) (_ *terminal, err error) {
	dir, err := os.MkdirTemp("", "workshop-terminal-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	rc, past, nonce := filepath.Join(dir, ".bashrc"), cmp.Or(ts.past, dir), rand.Text()
	err = errors.Join(os.WriteFile(rc, bytes.ReplaceAll(bashrc, []byte("NONCE"), []byte(nonce)), 0o600), os.WriteFile(filepath.Join(dir, ".curlrc"), nil, 0o600), os.MkdirAll(past, 0o700))
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("getting a pseudo-terminal: %w", err)
	}
	if runtime.GOOS == "linux" {
		// So that closing ours ends a read from it, also while a daemon keeps theirs open. On a Mac it cannot
		// be polled, and the daemon keeps the file and a thread.
		_ = unix.SetNonblock(int(ours.Fd()), true)
	}
	size := unix.Winsize{Col: 80, Row: 24} // until a page has another one
	setSize(ours, size)
	env := append(environ(ts.env, dir), "WORKSHOP_HISTORY="+filepath.Join(past, strconv.Itoa(id)))
	ctx, stop := context.WithCancel(ts.ctx)
	p, err := proc.Start(ctx, proc.Cmd{
		Path: "bash", Args: []string{"--noprofile", "--rcfile", rc, "-i"}, Dir: ts.dir, Env: env, Terminal: theirs,
		Session: true, Signal: syscall.SIGHUP, Grace: 2 * time.Second, // bash runs its EXIT trap, and passes the signal on
	})
	_ = theirs.Close() // bash has its own
	if err != nil {
		stop()
		return nil, errors.Join(err, ours.Close())
	}
	t := &terminal{ID: id, tty: ours, dir: ts.dir, size: size, stop: stop, done: make(chan struct{}), marks: marks{nonce: nonce}, pages: map[*websocket.Conn]*page{}}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(t, ours) // until ours is closed
	}()
	ts.wait.Go(func() {
		defer stop()
		_ = p.Wait() // an exit code is the learner's
		_, err := p.KillSession(context.WithoutCancel(ctx))
		select {
		case <-drained:
		case <-time.After(time.Second): // a daemon of the learner's has kept the terminal
		}
		t.mu.Lock()
		t.ended = true
		t.tell(message{Type: "exited"})
		t.mu.Unlock()
		err = errors.Join(err, ours.Close(), os.RemoveAll(dir))
		defer close(t.done) // when there is room for another one
		ts.mu.Lock()
		delete(ts.all, id)
		ts.err = errors.Join(ts.err, err)
		ts.mu.Unlock()
		ts.tellAll()
	})
	return t, nil
}

// setSize does not use File.Fd, after which reads block.
func setSize(tty *os.File, size unix.Winsize) {
	if conn, err := tty.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &size)
		})
	}
}

// environ is the environment of a lesson's shell, on a terminal that shows colours
// and every character.
func environ(env []string, dir string) []string {
	locale := "C.UTF-8"
	if runtime.GOOS == "darwin" {
		locale = "en_US.UTF-8" // which sorts like C there
	}
	return append(workspace.Without(readme.Environment(env, dir), "NO_COLOR", "LC_ALL", "TERM", "HISTFILE", "INPUTRC"), "LC_ALL="+locale, "TERM=xterm-256color")
}

// close ends all terminals, and waits until nothing is left of them.
func (ts *terminals) close() error {
	ts.mu.Lock()
	for _, t := range ts.all {
		t.stop()
	}
	ts.mu.Unlock()
	ts.wait.Wait()
	return ts.err
}

func (ts *terminals) find(id string) (*terminal, error) {
	n, err := strconv.Atoi(id)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.all[n]; err == nil && t != nil {
		return t, nil
	}
	return nil, refuse(http.StatusNotFound, "There is no terminal %s.", id)
}

// tellAll tells which terminals there are.
func (ts *terminals) tellAll() {
	ts.telling.Lock()
	defer ts.telling.Unlock()
	ts.mu.Lock()
	ids := slices.AppendSeq([]int{}, maps.Keys(ts.all)) // none is [], and not null
	ts.mu.Unlock()
	slices.Sort(ids)
	ts.tell(ids)
}

// remove ends a terminal, and waits until nothing of it is left.
func (ts *terminals) remove(r *http.Request) (any, error) {
	t, err := ts.find(r.PathValue("id"))
	if err == nil {
		t.stop()
		<-t.done
	}
	return struct{}{}, err
}

// Write sends output to the pages, and keeps it for those that come later. No page slows the
// program down: one that draws too slowly gets the last of the output later, and one that has
// stopped reading loses its connection after a few seconds.
func (t *terminal) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.output = append(t.output, data...)
	for p := range t.pages {
		t.show(p, data)
	}
	t.marks.scan(data, t.mark)
	if len(t.output) > 2*kept { // not with each piece, which would move all of it
		t.output = append(t.output[:0], t.output[len(t.output)-kept:]...)
	}
	return len(data), nil
}

// show sends output to a page that can keep up. The caller holds t.mu.
func (t *terminal) show(p *websocket.Conn, data []byte) {
	page := t.pages[p]
	if page.skips = page.skips || page.behind > maxBehind; !page.skips {
		page.behind += len(data)
		send(p, websocket.MessageBinary, data)
	}
}

// tail is what a page sees that comes back. The caller holds t.mu.
func (t *terminal) tail() []byte { return t.output[max(len(t.output)-kept, 0):] }

// drawn hears from a page how many bytes more are on its screen.
func (t *terminal) drawn(p *websocket.Conn, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	page := t.pages[p]
	page.behind -= min(max(bytes, 0), page.behind)
	if page.skips && page.behind < maxBehind/4 {
		page.skips = false
		tell(p, message{Type: "again"})
		t.show(p, t.tail())
	}
}

// tell tells all pages. The caller holds t.mu.
func (t *terminal) tell(m message) {
	for p := range t.pages {
		tell(p, m)
	}
}

// mark takes a mark of bashrc, or output between two of them.
func (t *terminal) mark(mark string, output []byte) {
	r := t.run
	if output != nil {
		if r != nil && r.running {
			_, _ = r.output.Write(output) // it never fails
		}
		return
	}
	switch mark[0] {
	case 'C':
		t.ready = false
		if r != nil {
			r.running = true
		} else {
			t.tell(message{Type: "running"}) // what was typed
		}
	case 'D':
		if r != nil && len(mark) > 2 {
			r.running, r.ended = false, true
			r.exitCode, _ = strconv.Atoi(mark[2:])
		}
	case 'P':
		t.ready = false
	case 'B':
		if r != nil && !r.ended {
			return // bash has drawn the prompt again, to show the command below it
		}
		t.ready, t.away = true, mark != "B"
		if t.run = nil; r != nil {
			m := message{Type: "result", asked: r.asked, ExitCode: &r.exitCode}
			if r.judge != nil {
				r.judge(&m, plain(r.output.String()))
			}
			t.tell(m)
		}
		t.tell(message{Type: "prompt"})
	}
}

// begin types a command and Return, if bash is ready for one.
func (t *terminal) begin(text string, r *run) bool {
	t.mu.Lock()
	if !t.ready {
		t.mu.Unlock()
		return false
	}
	if t.away {
		text = "cd " + proc.Quoted(t.dir) + "; " + text
	}
	t.ready, t.run = false, r
	t.tell(message{Type: "started", asked: r.asked})
	t.mu.Unlock()
	// To the end of the line, and away with it; then the text as a paste, which may have several lines.
	_, err := fmt.Fprintf(t.tty, "\x05\x15\x1b[200~%s\x1b[201~\r", text)
	return err == nil
}

// A request comes from the page as JSON.
type request struct {
	Type  string `json:"type"`
	Cols  uint16 `json:"cols"`
	Rows  uint16 `json:"rows"`
	Bytes int    `json:"bytes"`
	asked
}

// resize takes the size of the window whose keys count.
func (t *terminal) resize(p *websocket.Conn, cols, rows uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer != p && t.writer != nil || cols == 0 || rows == 0 {
		return
	}
	t.size = unix.Winsize{Col: min(cols, 1000), Row: min(rows, 1000)}
	setSize(t.tty, t.size)
	t.tellRoles()
}

// write makes a window the one whose keys count, if there is none or if the window
// asks for it, and reports whether it is.
func (t *terminal) write(p *websocket.Conn, takeOver bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer != p && (t.writer == nil || takeOver) {
		t.writer = p
		t.tellRoles()
	}
	return t.writer == p
}

// tellRoles tells each window whether its keys count, and the size that does. The caller holds t.mu.
func (t *terminal) tellRoles() {
	for p := range t.pages {
		tell(p, message{Type: "role", Writer: new(t.writer == p || t.writer == nil), Cols: t.size.Col, Rows: t.size.Row})
	}
}

// obey does what a page asks for.
func (s *Server) obey(t *terminal, p *websocket.Conn, data []byte) error {
	var r request
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("a request of the page: %w", err)
	}
	switch r.Type {
	case "resize":
		t.resize(p, r.Cols, r.Rows)
	case "drawn":
		t.drawn(p, r.Bytes)
	case "write":
		t.write(p, true)
	case "run":
		c, err := s.command(r.Step, r.Block, r.Command)
		if err != nil || hashOf(c.Text) != r.Hash {
			tell(p, message{Type: "stale", asked: r.asked}) // the lesson has changed since the page was loaded
			return nil
		}
		t.write(p, true) // whoever clicks means this window
		if !t.begin(c.Text, &run{asked: r.asked, judge: func(m *message, printed []string) {
			m.Difference = c.Difference(printed, *m.ExitCode)
			m.OK = new(m.Difference == "")
			s.remember(*m)
		}}) {
			tell(p, message{Type: "busy", asked: r.asked})
		}
	default:
		return fmt.Errorf("there is no request %q", r.Type)
	}
	return nil
}

// beginIn types a command into the terminal that a request names.
func (s *Server) beginIn(r *http.Request, command string) (any, error) {
	t, err := s.terminals.find(r.URL.Query().Get("terminal"))
	if err != nil {
		return nil, err
	}
	if !t.begin(command, &run{}) {
		return nil, refuse(http.StatusConflict, "A command runs in terminal %d. Wait for its end, or open another terminal.", t.ID)
	}
	return map[string]string{"command": command}, nil
}

// tour begins a tour of the X-ray.
func (s *Server) tour(r *http.Request) (any, error) {
	if s.options.Tour != nil {
		if command, ok := s.options.Tour(r.PathValue("name")); ok {
			return s.beginIn(r, command)
		}
	}
	return nil, refuse(http.StatusNotFound, "There is no tour %s.", r.PathValue("name"))
}

// remember keeps what a command of a lesson came to. Of a command that was written since, with
// another hash, it says nothing.
func (s *Server) remember(result message) {
	s.state.Lock()
	defer s.state.Unlock()
	name, all := fmt.Sprintf("outcomes-%d", result.Step), map[string]message{}
	_ = json.Unmarshal(s.state.kept[name], &all) // a value of somebody else's making is as good as none
	if all == nil {                              // it is null
		all = map[string]message{}
	}
	result.Type = ""
	all[fmt.Sprintf("%d/%d", result.Block, result.Command)] = result
	value, err := json.Marshal(all)
	if err := errors.Join(err, s.state.set(name, value)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
