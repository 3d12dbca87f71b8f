package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
)

// downBetween makes the server unreachable between the moment in which the
// kernel has accepted a connection and the one in which the proxy sees it.
type downBetween struct {
	net.Listener
	p *Proxy
}

func (l downBetween) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.p.Down()
	}
	return c, err
}

func TestDownMissesNoConnection(t *testing.T) {
	_, p := start(t)
	p.Down()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	l := downBetween{inner, p}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	c, err := net.Dial("tcp", inner.Addr().String())
	fatal.If(t, err)
	defer c.Close()
	if _, err := (&listener{l, p}).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v, want the end of the listener", err)
	}
	fatal.If(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("error %v of the connection", err)
	}
}

// A request that was read when the server became unreachable, and that no
// handler has seen, does not reach it afterwards.
func TestDownStopsWhatWasRead(t *testing.T) {
	u, p := start(t)
	c, other := net.Pipe()
	defer other.Close()
	p.conns[c] = struct{}{}
	p.Down()
	r := httptest.NewRequest("POST", pods, nil)
	func() {
		defer func() {
			if got := recover(); got != http.ErrAbortHandler {
				t.Errorf("the handler ended with %v", got)
			}
		}()
		p.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), connKey, c)))
	}()
	if n, _ := p.Count(Match{}); n != 0 || u.committed.Load() != 0 {
		t.Errorf("%d requests recorded, %d reached the server", n, u.committed.Load())
	}
}

// A request that is held back when the server becomes unreachable does not
// reach it afterwards.
func TestDownStopsWhatIsHeldBack(t *testing.T) {
	u, p := start(t)
	held, goOn := make(chan struct{}), make(chan struct{})
	inject(t, p, Rule{Fault: Call, Call: func(context.Context, Request) error {
		close(held)
		<-goOn
		return nil
	}})
	ended := make(chan error)
	go func() {
		_, _, err := do(t, p, "POST", pods)
		ended <- err
	}()
	<-held
	p.Down()
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	close(goOn)
	eventually(t, "the request has ended", func() bool {
		r, _ := p.Requests(Match{})
		return len(r) == 1 && r[0].Took > 0
	})
	if n := u.committed.Load(); n != 0 {
		t.Errorf("%d requests have reached a server that cannot be reached", n)
	}
}

// Active names what can still strike, and nothing that has struck or was cleared.
func TestActive(t *testing.T) {
	_, p := start(t)
	expect := func(what string, want ...Fault) {
		t.Helper()
		if got := p.Active(); !slices.Equal(got, want) {
			t.Errorf("%s: %v can still strike, want %v", what, got, want)
		}
	}
	expect("at first")
	for _, rule := range []Rule{{Fault: Answer, Code: http.StatusConflict}, {Fault: Stall, Times: -1, Match: Match{Verb: "watch"}}} {
		if _, err := p.Inject(rule); err != nil {
			t.Fatal(err)
		}
	}
	expect("once both wait", Answer, Stall)
	r, err := client(t, p).Get(p.URL() + "/api/v1/namespaces/a/configmaps/b")
	if err != nil || r.StatusCode != http.StatusConflict || r.Body.Close() != nil {
		t.Fatal(r, err)
	}
	expect("once the conflict has struck", Stall)
	p.Down()
	expect("without a server", Unreachable, Stall)
	fatal.If(t, p.Up())
	p.Clear()
	expect("once all is cleared")
}
