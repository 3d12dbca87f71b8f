package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"
)

// accept makes a WebSocket of a request. ServeHTTP has checked its origin, and its token, which is the other protocol.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	return websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{"workshop"}})
}

// patience is how long a page may leave unread what it is sent. Then its connection is closed.
const patience = 5 * time.Second

func send(p *websocket.Conn, kind websocket.MessageType, data []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = p.Write(ctx, kind, data) // whoever reads from it hears of its end
}

// tell sends JSON.
func tell(p *websocket.Conn, value any) {
	text, _ := json.Marshal(value) // there is nothing in it that JSON does not know
	send(p, websocket.MessageText, text)
}

// keepAlive says every half a minute that there is still somebody, until ctx ends: forwarders drop what is silent.
func keepAlive(ctx context.Context, conn *websocket.Conn) {
	for err := error(nil); err == nil; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
		}
		waiting, cancel := context.WithTimeout(ctx, time.Minute)
		err = conn.Ping(waiting)
		cancel()
	}
	_ = conn.CloseNow() // the other side sleeps, or the way to it is broken
}

// connect shows a terminal in a page, for as long as the page is there.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	t, err := s.terminals.find(r.PathValue("id"))
	if err != nil {
		fail(w, err)
		return
	}
	p, err := t.join(w, r)
	if err != nil {
		return // the answer is written
	}
	defer p.CloseNow()
	defer t.leave(p)
	p.SetReadLimit(1 << 20)
	cols, _ := strconv.ParseUint(r.URL.Query().Get("cols"), 10, 16) // none: the size stays
	rows, _ := strconv.ParseUint(r.URL.Query().Get("rows"), 10, 16)
	t.resize(p, uint16(cols), uint16(rows))
	ctx, cancel := context.WithCancel(s.terminals.ctx)
	defer cancel()
	go keepAlive(ctx, p)
	for {
		kind, data, err := p.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			err = s.obey(t, p, data)
		} else if t.write(p, false) {
			_, err = t.tty.Write(data)
		}
		if err != nil {
			reason := err.Error()
			_ = p.Close(websocket.StatusUnsupportedData, reason[:min(len(reason), 120)]) // what fits into the frame
			return
		}
	}
}

// join shows the terminal in one more window, which gets what it has missed. It answers the request, also with an error.
func (t *terminal) join(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pages) >= maxPages {
		err := refuse(http.StatusConflict, "Too many windows show this terminal.")
		fail(w, err)
		return nil, err
	}
	p, err := accept(w, r)
	if err != nil {
		return nil, err
	}
	t.pages[p] = struct{}{}
	if t.writer == nil {
		t.writer = p
	}
	t.tellRoles() // the size comes before what was written for it
	send(p, websocket.MessageBinary, t.output[max(len(t.output)-kept, 0):])
	switch {
	case t.ended:
		tell(p, message{Type: "exited"})
	case t.run != nil:
		tell(p, message{Type: "started", asked: t.run.asked})
	case t.ready:
		tell(p, message{Type: "prompt"})
	default:
		tell(p, message{Type: "running"})
	}
	return p, nil
}

func (t *terminal) leave(p *websocket.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pages, p)
	if t.writer == p {
		t.writer = nil // the next one that types
		t.tellRoles()
	}
}
