package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/pagesocket"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
)

// shows reads on until the terminal has shown a text.
func (s *screen) shows(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for !strings.Contains(s.output.String(), text) {
		if _, err := s.next(ctx); err != nil {
			s.t.Fatalf("waiting for %q: %v; the terminal shows:\n%q", text, err, s.output.String())
		}
	}
}

func TestBusyTerminalRefuses(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ read -r line\nline\n$ echo again\nagain"), Env: os.Environ(),
		Tour: func(name string) (string, bool) { return "echo tour " + name, name == "one" }})
	s := c.terminal()
	run := func(command int) { s.run(1, 1, command) }
	run(1)
	s.shows("\x1b]133;C")
	run(2)
	if m := s.until("busy", "started", "result"); m.Type != "busy" || m.Command != 2 {
		t.Errorf("a second command got %+v", m)
	}
	if code, text := c.call("POST", "/api/exercises/1/progress?terminal=1", "", nil); code != http.StatusConflict {
		t.Errorf("make progress got %d %s", code, text)
	}
	if code, text := c.call("POST", "/api/tours/one?terminal=1", "", nil); code != http.StatusConflict {
		t.Errorf("a tour got %d %s", code, text)
	}
	// The command goes on, and ends as the lesson says.
	s.keys("line\r")
	if m := s.until("result"); m.Command != 1 || !*m.OK {
		t.Errorf("the first command has ended with %+v", m)
	}
	// A command that waits for its end on the next line keeps the terminal busy, too. Its prompt
	// comes after it; before that, Ctrl-C would take away what bash has not read yet.
	s.until("prompt")
	s.keys("echo 'half\r")
	for s.shows("half"); !strings.Contains(s.output.String()[strings.LastIndex(s.output.String(), "half"):], "\x1b]133;P"); {
		if _, err := s.next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	run(2)
	s.until("busy")
	s.keys("\x03")
	// Where bash gets the signal just before it waits for a key, it acts on it after the next one.
	again := time.AfterFunc(10*time.Second, func() { _ = s.conn.Write(t.Context(), websocket.MessageBinary, []byte("\x03")) })
	s.until("prompt")
	again.Stop()
	// What was half typed goes; it is not run together with the command.
	s.keys("rm -rf nothing")
	s.shows("nothing")
	run(2)
	if m := s.until("result"); !*m.OK {
		t.Errorf("after half a line: %+v", m)
	}
	c.call("POST", "/api/tours/one?terminal=1", "", nil)
	s.shows("\atour one\r\n")
	s.until("prompt")
	// Ctrl-C ends a command, and the lesson expects another end.
	s.output.Reset()
	run(1)
	s.shows("\x1b]133;C")
	s.keys("\x03")
	if m := s.until("result"); *m.OK || *m.ExitCode != 130 {
		t.Errorf("after Ctrl-C: %+v", m)
	}
}

func TestBadRequestsEndTheConnectionOnly(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	s := c.terminal()
	for _, request := range []string{
		"", "{", "[]", "null", `{"type":"nothing"}`,
		`{"type":"resize","cols":-1}`, `{"type":"resize","cols":100000,"rows":1}`,
	} {
		bad := c.join(s.id)
		bad.ask(request)
		for {
			if _, err := bad.next(t.Context()); websocket.CloseStatus(err) == websocket.StatusUnsupportedData {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", request, err)
			}
		}
	}
	// A command that no lesson has is refused like one that the lesson has no more.
	for _, request := range []string{
		`{"type":"run"}`, `{"type":"run","step":9,"block":1,"command":1}`, `{"type":"run","step":1,"block":0,"command":1}`, `{"type":"run","step":1,"block":1,"command":1}`,
		`{"type":"run","step":1,"block":1,"command":2}`, `{"type":"run","step":1,"block":-1,"command":-1}`,
	} {
		s.ask(request)
		if m := s.until("stale", "started"); m.Type != "stale" {
			t.Errorf("%s: %+v", request, m)
		}
	}
	s.run(1, 1, 1)
	s.until("result")
	for path, want := range map[string]int{
		"/api/lessons/9": 404, "/api/lessons/x": 404, "/api/exercises/9": 404, "/api/terminals/9/ws": 404, "/api/terminals/x/ws": 404, "/api/terminals/1/ws": 426,
	} {
		if got, text := c.call("GET", path, "", nil); got != want {
			t.Errorf("%s: %d %s, want %d", path, got, text, want)
		}
	}
	for path, want := range map[string]int{
		"/api/exercises/1/solution?terminal=1": 404, "/api/exercises/9/check?terminal=1": 404, "/api/exercises/1/check?terminal=1&task=none%3Breboot": 404, "/api/exercises/1/check": 404,
		"/api/tours/none?terminal=1": 404,
	} {
		if got, text := c.call("POST", path, "", nil); got != want {
			t.Errorf("%s: %d %s, want %d", path, got, text, want)
		}
	}
}

// What a page has missed it gets when it comes back, as it was.
func TestTerminalSurvivesAReload(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ echo before; read -r line; echo after\nbefore\nx\nafter"), Env: os.Environ()})
	s := c.terminal()
	s.run(1, 1, 1)
	s.shows("before\r\n")
	_ = s.conn.CloseNow()
	again := c.join(s.id)
	if m := again.until("started", "prompt"); m.Type != "started" || m.Step != 1 {
		t.Errorf("a page that comes back is told %+v", m)
	}
	if !strings.Contains(again.output.String(), "before\r\n") {
		t.Errorf("a page that comes back sees %q", again.output.String())
	}
	again.keys("x\r")
	if m := again.until("result"); !*m.OK {
		t.Errorf("the result is %+v", m)
	}
	// The size is that of the window.
	again.ask(`{"type":"resize","cols":123,"rows":45}`)
	again.keys("stty size\r")
	again.shows("45 123\r\n")
}

// A line of 100 MB passes, and neither the server nor its memory of it grows.
func TestLongLineIsBounded(t *testing.T) {
	const size = 100 << 20
	c := serve(t, Options{Workspace: clone(t, fmt.Sprintf("$ head -c %d /dev/zero | tr '\\0' x; echo\nx", size)), Env: os.Environ()})
	s := c.terminal()
	s.bytes = 0
	heap := watchHeap()
	s.run(1, 1, 1)
	started := time.Now()
	m := s.until("result")
	t.Logf("%d MiB in %s", size>>20, time.Since(started))
	if s.bytes < maxBehind || *m.OK || len(m.Difference) > 4<<10 { // a busy reader misses some of it
		t.Errorf("%d bytes have come, with %d bytes about the difference", s.bytes, len(m.Difference))
	}
	again := c.join(s.id)
	again.until("prompt")
	if again.bytes > kept {
		t.Errorf("a page that comes back gets %d bytes", again.bytes)
	}
	// A page that does not read holds nobody up for long.
	c.join(s.id)
	s.bytes = 0
	s.run(1, 1, 1)
	started = time.Now()
	s.until("result")
	t.Logf("with two pages that do not read: %s", time.Since(started))
	if most := heap(); most > 64 {
		t.Errorf("the heap had %d MiB", most)
	}
}

// A page that draws more slowly than a program prints gets no more than it can keep, slows nobody
// down, and sees the end of the output as soon as it has caught up.
func TestSlowPageSeesTheEnd(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ head -c 20000000 /dev/zero | tr '\\0' x | fold -w 80; echo; echo the end"), Env: os.Environ()})
	s := c.terminal()
	s.drawn = -1 // it draws nothing
	s.bytes = 0
	s.run(1, 1, 1)
	s.until("result")
	if s.bytes < maxBehind || s.bytes > maxBehind+2*kept {
		t.Errorf("a page that draws nothing gets %d bytes", s.bytes)
	}
	if strings.Contains(s.output.String(), "the end\r\n") {
		t.Error("it has got all of it")
	}
	s.output.Reset()
	s.ask(fmt.Sprintf(`{"type":"drawn","bytes":%d}`, s.bytes))
	s.until("again")
	s.shows("the end\r\n")
	s.ask(`{"type":"drawn","bytes":-9}`)
	s.keys("echo and $((6 * 7))\r")
	s.shows("and 42\r\n")
}

// Whoever pastes much into a program that does not read is told so, and the page goes on.
func TestUnreadPaste(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs writes to a terminal that can time out")
	}
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	s := c.terminal()
	s.keys("sleep 1000\r")
	s.until("running")
	s.keys(strings.Repeat("a line\n", 10_000))
	s.until("unread")
	s.ask(`{"type":"resize","cols":101,"rows":20}`)
	if m := s.until("role"); m.Cols != 101 {
		t.Errorf("after that, the page hears of %+v", m)
	}
}

// What the page begins it begins at the root of the clone, wherever somebody has gone in the terminal.
func TestBeginsAtTheRoot(t *testing.T) {
	ws := clone(t, "$ test -e 01-one/README.md && echo here\nhere")
	fatal.If(t, os.MkdirAll(filepath.Join(ws.Root, "work", "it's mine"), 0o755))
	c := serve(t, Options{Workspace: ws, Env: os.Environ()})
	s := c.terminal()
	s.keys("cd \"work/it's mine\"\r")
	s.until("prompt")
	s.run(1, 1, 1)
	if m := s.until("result"); !*m.OK {
		t.Errorf("in another folder: %+v\n%s", m, s.output.String())
	}
	s.until("prompt")
	s.output.Reset()
	s.run(1, 1, 1)
	if m := s.until("result"); !*m.OK || strings.Contains(s.output.String(), "cd ") {
		t.Errorf("and then: %+v\n%s", m, s.output.String())
	}
}

// watchHeap returns a function that ends it, and returns the most that there was on the heap, in MiB.
func watchHeap() func() uint64 {
	percent := debug.SetGCPercent(50) // make test sets GOGC=400, and four fifths of the heap would be garbage
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		var largest uint64
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			largest = max(largest, m.HeapAlloc)
			select {
			case <-stop:
				most <- largest >> 20
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(stop)
		debug.SetGCPercent(percent)
		return <-most
	}
}

// A program of the learner's may read the nonce and print the marks of a prompt, too, and a page may ask and not listen.
func TestMessagesAreBounded(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	s := c.terminal()
	c.join(s.id) // and does not listen
	tm, err := c.s.terminals.find("1")
	fatal.If(t, err)
	tm.mu.Lock()
	nonce := tm.marks.nonce
	tm.mu.Unlock()
	heap := watchHeap()
	s.keys("printf '\\e]133;;" + nonce + "\\a'\r") // no mark of ours
	s.until("prompt")
	s.keys("yes $'\\e]133;P;" + nonce + "\\a\\e]133;B;" + nonce + "\\a' | head -c 5000000; sleep 1000\r")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for prompts := 0; prompts < 50_000; {
		m, err := s.next(ctx)
		if err != nil {
			t.Fatalf("after %d prompts: %v", prompts, err)
		}
		if m.Type == "prompt" {
			prompts++
		}
	}
	deaf, request := c.join(s.id), c.request(1, 1, 1)
	for range 1_000_000 { // until the server has enough of it
		if deaf.conn.Write(ctx, websocket.MessageText, []byte(request)) != nil {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("the server listens for a minute to a page that does not")
	}
	if most := heap(); most > 64 {
		t.Errorf("the heap had %d MiB", most)
	}
}

func TestAtMostEightTerminals(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	opened, refused := 0, 0
	for range 50 {
		switch code, text := c.call("POST", "/api/terminals", "", nil); code {
		case http.StatusOK:
			opened++
		case http.StatusConflict:
			refused++
		default:
			t.Errorf("%d %s", code, text)
		}
	}
	if opened != maxTerminals || refused != 50-maxTerminals {
		t.Errorf("%d terminals are open, %d were refused", opened, refused)
	}
	// As many windows of one terminal as there are terminals.
	for range maxPages {
		c.join(1)
	}
	conn, answer, err := c.dial("/api/terminals/1/ws", c.base)
	if err == nil {
		_ = conn.CloseNow()
		t.Error("there is no limit for the windows of one terminal")
	} else if answer == nil || answer.StatusCode != http.StatusConflict {
		t.Error(err)
	}
	// One that is closed makes room.
	if code, text := c.call("DELETE", "/api/terminals/3", "", nil); code != http.StatusOK {
		t.Errorf("closing: %d %s", code, text)
	}
	var answered struct{ ID int }
	if c.call("POST", "/api/terminals", "", &answered); answered.ID != maxTerminals+1 {
		t.Errorf("the new terminal is %d", answered.ID)
	}
}

// The end of a terminal is the end of all that was started in it, and of its files.
func TestNothingIsLeftOfATerminal(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	pids := regexp.MustCompile(`pid (\d+)\r\n`)
	for name, end := range map[string]func(s *screen){
		"closed by the page": func(s *screen) { c.call("DELETE", fmt.Sprintf("/api/terminals/%d", s.id), "", nil) },
		"left with exit":     func(s *screen) { s.keys("exit\r") },
		"bash killed":        func(s *screen) { s.keys("kill -9 $$\r") },
	} {
		s := c.terminal()
		// In the background, ignoring what a terminal's end sends, and as a daemon's child would be.
		s.keys("sleep 1000 & echo pid $!\r")
		s.keys("nohup sleep 1000 >/dev/null 2>&1 & echo pid $!\r")
		s.keys("(trap '' HUP TERM INT; sleep 1000 & echo pid $!); touch \"$TMPDIR/left\"; echo do\"\"ne\r")
		s.shows("done\r\n")
		var running []int
		for _, m := range pids.FindAllStringSubmatch(s.output.String(), -1) {
			pid, err := strconv.Atoi(m[1])
			if err != nil || !runs(pid) {
				t.Fatalf("%s: process %s does not run", name, m[1])
			}
			running = append(running, pid)
		}
		if len(running) != 3 {
			t.Fatalf("%s: processes %v\n%q", name, running, s.output.String())
		}
		end(s)
		s.until("exited")
		for _, pid := range running {
			err := poll.Until(t.Context(), 50*time.Millisecond, 20*time.Second, func(context.Context) error {
				if runs(pid) {
					return errors.New("it still runs")
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: process %d: %v", name, pid, err)
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		err := poll.Until(t.Context(), 50*time.Millisecond, 20*time.Second, func(context.Context) error {
			list := c.terminals()
			files, err := filepath.Glob(filepath.Join(temp, "*"))
			if len(list)+len(files) > 0 || err != nil {
				return fmt.Errorf("%d terminals are listed; files %v (%v)", len(list), files, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A daemon that has left the terminal's session, and ignores its end, keeps nothing of the server's.
func TestDaemonKeepsNoTerminal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	open := func() (n int) {
		files, err := filepath.Glob("/proc/self/fd/*")
		fatal.If(t, err)
		for _, file := range files {
			if target, _ := os.Readlink(file); strings.Contains(target, "ptmx") {
				n++
			}
		}
		return n
	}
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: os.Environ()})
	before := open()
	s := c.terminal()
	file := filepath.Join(t.TempDir(), "pid")
	s.keys(fmt.Sprintf("setsid bash -c \"trap '' HUP; echo \\$\\$ >%[1]s; exec sleep 1000\" & until [ -s %[1]s ]; do sleep 0.1; done; echo do\"\"ne\r", file))
	s.shows("done\r\n")
	text, err := os.ReadFile(file)
	fatal.If(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !runs(pid) || open() == before {
		t.Fatalf("process %s does not run", text)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	c.call("DELETE", fmt.Sprintf("/api/terminals/%d", s.id), "", nil)
	if n := open(); n != before {
		t.Errorf("%d pseudo-terminals are open, %d were before", n, before)
	}
	err = poll.Until(t.Context(), 10*time.Millisecond, 10*time.Second, func(context.Context) error {
		if stacks := make([]byte, 1<<20); bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*terminals).start")) {
			return errors.New("the terminal is still read")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// runs reports whether there is such a process that has not ended.
func runs(pid int) bool {
	p, err := process.NewProcess(int32(pid))
	return err == nil && !proc.Ended(context.Background(), p)
}

func TestPlain(t *testing.T) {
	for output, want := range map[string]string{
		"":                                "",
		"one\r\ntwo\r\n":                  "one|two",
		"no newline":                      "no newline",
		"\x1b[1;31mred\x1b[0m\r\n":        "red",
		"\x1b]0;title\aone":               "one",
		"\x1b]8;;http://x\x1b\\link":      "link",
		"\x1b[2J\x1b[Hone\x1b(B":          "one",
		"10%\r20%\r100%\r\n":              "100%",
		"long line\rshort\x1b[K\r\n":      "short",
		"one\r\ntwo\rthree\r\r\nfour":     "one|three|four",
		"10%\r20%\r\r":                    "20%",
		"\b\bx\b":                         "",
		"bü\b\b\ban":                      "an",
		"a\n\b\bb":                        "a|b",
		"abc\b\bX\r\n":                    "aX",
		"[1] 1234\r\none\r\n":             "one",
		"[1]+  Terminated   sleep\r\none": "one",
		"[1] is no job\r\n":               "[1] is no job",
		`["v1"]`:                          `["v1"]`,
		"ü\r\n":                           "ü",
	} {
		if got := strings.Join(plain(output), "|"); got != want {
			t.Errorf("%q becomes %q, want %q", output, got, want)
		}
	}
}

// However the output is cut into pieces, the marks and what is between them are the same.
func TestMarksInPieces(t *testing.T) {
	const output = "a\x1b]133;C;N\ab\x1b[31mc\x1b]133;D;3;N\a\x1b]133\x1b]133;B;N\ad\x1b]133;B\a\x1b]133;B;M\a\x1b]0;t\a\x1b]133;"
	const want = "a<C>b\x1b[31mc<D;3>\x1b]133<B>d\x1b]133;B\a\x1b]133;B;M\a\x1b]0;t\a"
	for size := 1; size <= len(output); size++ {
		m := marks{nonce: "N"}
		var b strings.Builder
		for rest := output; rest != ""; {
			n := min(size, len(rest))
			m.scan([]byte(rest[:n]), func(mark string, output []byte) {
				if output == nil {
					mark = "<" + mark + ">"
				}
				b.WriteString(mark + string(output))
			})
			rest = rest[n:]
		}
		if b.String() != want {
			t.Errorf("in pieces of %d: %q", size, b.String())
		}
	}
	var m marks
	m.scan([]byte("\x1b]133;"+strings.Repeat("x", 1<<20)), func(string, []byte) {})
	if len(m.held) > maxMark {
		t.Errorf("%d bytes of a mark without an end are held", len(m.held))
	}
}

// Bash draws a prompt again when it shows a command of several lines, or when the window
// changes its size. That is not the end of the command.
func TestPromptDrawnAgain(t *testing.T) {
	pages := make(chan *websocket.Conn, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := pagesocket.Accept(w, r)
		if err != nil {
			t.Error(err)
		}
		pages <- p
	}))
	defer server.Close()
	conn, _, err := websocket.Dial(t.Context(), server.URL, nil)
	fatal.If(t, err)
	defer conn.CloseNow()
	p := <-pages
	tm := &terminal{run: &run{}, marks: marks{nonce: "N"}, pages: map[*websocket.Conn]*page{p: {}}}
	for _, step := range []struct{ output, messages string }{
		{"\x1b]133;A;N\a$ \x1b]133;B;N\aecho\r\n", ""},
		{"\x1b]133;C;N\aoutput\r\n", ""},
		{"\x1b]133;D;7;N\a\x1b]133;C;N\amore\r\n", ""}, // a paste of two commands
		{"\x1b]133;D;5;N\a\x1b]133;A;N\a$ \x1b]133;B;N\a", "result 5 prompt"},
	} {
		_, _ = tm.Write([]byte(step.output)) // it never fails
		tell(p, message{Type: "end of this step"})
		var got []string
		for {
			kind, data, err := conn.Read(t.Context())
			fatal.If(t, err)
			if kind != websocket.MessageText {
				continue
			}
			var m message
			fatal.If(t, json.Unmarshal(data, &m))
			if m.Type == "end of this step" {
				break
			}
			if got = append(got, m.Type); m.ExitCode != nil {
				got = append(got, strconv.Itoa(*m.ExitCode))
			}
		}
		if strings.Join(got, " ") != step.messages {
			t.Errorf("after %q the page is told %q, want %q", step.output, got, step.messages)
		}
	}
}

// role reads on until the server has said whether this window's keys count.
func (s *screen) role(writer bool) (cols uint16) {
	s.t.Helper()
	for {
		if m := s.until("role"); *m.Writer == writer {
			return m.Cols
		}
	}
}

// Two windows of a terminal do not fight: the keys and the size of one count, and the other may take over.
func TestOneWindowWrites(t *testing.T) {
	c := serve(t, Options{Workspace: clone(t, "$ echo run\nrun"), Env: os.Environ()})
	one := c.terminal()
	two := c.join(one.id)
	two.role(false)
	two.ask(`{"type":"resize","cols":40,"rows":10}`)
	two.keys("echo two-$((6 * 7))\r")
	one.ask(`{"type":"resize","cols":100,"rows":30}`)
	for two.role(false) != 100 { // the first ones have the size from before
	}
	one.output.Reset()
	one.keys("echo one-$((6 * 7)); stty size\r")
	one.shows("30 100\r\n")
	if strings.Contains(one.output.String(), "two-42") {
		t.Error("the keys of the second window have counted")
	}
	two.ask(`{"type":"write"}`)
	one.role(false)
	two.role(true)
	one.keys("echo one-again-$((6 * 7))\r")
	two.ask(`{"type":"resize","cols":90,"rows":20}`)
	two.keys("echo two-$((6 * 7)); stty size\r")
	two.shows("20 90\r\n")
	terminal, err := c.s.terminals.find(strconv.Itoa(one.id))
	fatal.If(t, err)
	waitUntil := func(what string, f func() bool) {
		t.Helper()
		err := poll.Until(t.Context(), 10*time.Millisecond, time.Minute, func(context.Context) error {
			terminal.mu.Lock()
			defer terminal.mu.Unlock()
			if !f() {
				return errors.New(what)
			}
			return nil
		})
		fatal.If(t, err)
	}
	waitUntil("the command has not ended", func() bool { return terminal.ready }) // of prompts, there are several on their way
	if strings.Contains(two.output.String(), "one-again-42") {
		t.Error("the keys of the first window have counted")
	}
	// Run means the window in which it was clicked.
	one.run(1, 1, 1)
	one.role(true)
	one.until("result")
	// Once the one that writes has gone, the next one that types does.
	_ = one.conn.CloseNow()
	waitUntil("the window that writes is still there", func() bool { return terminal.writer == nil })
	two.role(true) // and it has been told
	two.keys("echo alone-$((6 * 7))\r")
	two.shows("alone-42")
}

// What was typed in a terminal comes back in the one of the same number after a restart.
func TestHistoryOutlivesAServer(t *testing.T) {
	options := Options{Workspace: clone(t, "$ true"), Env: os.Environ(), State: filepath.Join(t.TempDir(), "page.json")}
	t.Run("before", func(t *testing.T) {
		s := serve(t, options).terminal()
		s.keys("echo before-$((6 * 7))\r")
		s.shows("before-42")
		s.until("prompt")
	})
	s := serve(t, options).terminal()
	s.keys("\x10\r") // the last line again
	s.shows("\abefore-42\r\n")
}

// kubectl's words are completed, with and without the package bash-completion.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	const script = `__complete_it() { _get_comp_words_by_ref -n "=:" cur prev words cword; COMPREPLY=($(compgen -W "configmaps/one:1 $prev-$cword" -- "$cur")); }; complete -F __complete_it kubectl`
	fatal.If(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\ncase $1 in completion) echo '"+script+"';; *) echo got \"$@\";; esac\n"), 0o755))
	c := serve(t, Options{Workspace: clone(t, "$ true"), Env: append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))})
	s := c.terminal()
	s.keys("kubectl get configmaps/one:\t\r")
	s.shows("got get configmaps/one:1")
	s.keys("kubectl get get-\t\r")
	s.shows("got get get-2")
}
