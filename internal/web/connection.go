package web

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"
)

// accept makes a WebSocket of a request. ServeHTTP has checked its origin, and its token, which is the other protocol.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	return websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{"workshop"}})
}

// keepAlive says every half a minute that there is still somebody, until ctx ends: forwarders drop what is silent.
func keepAlive(ctx context.Context, conn *websocket.Conn) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
			waiting, cancel := context.WithTimeout(ctx, time.Minute)
			err := conn.Ping(waiting)
			cancel()
			if err != nil { // the other side sleeps, or the way to it is broken
				_ = conn.CloseNow() // which whoever reads and writes hears
				return
			}
		}
	}
}

// connect shows a terminal in a page, for as long as both are there.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	t, err := s.terminals.find(r.PathValue("id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	p, ok := t.join()
	if !ok {
		http.Error(w, "Too many windows show this terminal.", http.StatusConflict)
		return
	}
	defer t.leave(p)
	conn, err := accept(w, r)
	if err != nil {
		return // the answer is written
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	cols, _ := strconv.ParseUint(r.URL.Query().Get("cols"), 10, 16) // none: the size stays
	rows, _ := strconv.ParseUint(r.URL.Query().Get("rows"), 10, 16)
	t.resize(p, uint16(cols), uint16(rows))
	ctx, cancel := context.WithCancel(s.terminals.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { t.leave(p) })() // which wakes show
	go keepAlive(ctx, conn)
	go func() {
		defer cancel()
		for {
			kind, data, err := conn.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageBinary {
				if t.write(p, false) {
					_, err = t.tty.Write(data)
				}
			} else {
				err = s.obey(t, p, data)
			}
			if err != nil {
				reason := err.Error()
				_ = conn.Close(websocket.StatusUnsupportedData, reason[:min(len(reason), 120)]) // what fits into the frame
				return
			}
		}
	}()
	err = t.show(ctx, p, conn)
	t.leave(p) // nobody waits for it while its connection is closed
	if err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "the shell has ended")
	}
}

// maxPages is how many windows may show one terminal.
const maxPages = 8

func (t *terminal) join() (*page, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pages) >= maxPages {
		return nil, false
	}
	p := &page{}
	t.pages[p] = struct{}{}
	if t.writer == nil {
		t.writer = p
	}
	t.tellRoles() // the size comes before what was written for it
	p.put(websocket.MessageBinary, t.output[max(len(t.output)-kept, 0):])
	switch {
	case t.run != nil:
		p.tell(message{Type: "started", asked: t.run.asked})
	case t.ready:
		p.tell(message{Type: "prompt"})
	default:
		p.tell(message{Type: "running"})
	}
	return p, true
}

func (t *terminal) leave(p *page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pages, p)
	if t.writer == p {
		t.writer = nil // the next one that types
		t.tellRoles()
	}
	t.changed.Broadcast()
}

// show sends output and messages in their order until the page has left (an error)
// or the terminal has ended.
func (t *terminal) show(ctx context.Context, p *page, conn *websocket.Conn) error {
	for {
		t.mu.Lock()
		_, here := t.pages[p]
		for here && len(p.frames) == 0 && !t.ended {
			t.changed.Wait()
			_, here = t.pages[p]
		}
		frames, ended := p.frames, t.ended
		*p = page{}
		t.changed.Broadcast()
		t.mu.Unlock()
		if !here {
			return context.Canceled
		}
		for _, f := range frames {
			ctx, cancel := context.WithTimeout(ctx, patience) // with a page that does not read
			err := conn.Write(ctx, f.kind, f.data)
			cancel()
			if err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}
