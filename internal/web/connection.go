package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/pagesocket"
)

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
	ctx, cancel := context.WithCancel(s.terminals.ctx)
	defer cancel()
	go pagesocket.KeepAlive(ctx, p)
	wait := patience
	for {
		kind, data, err := p.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			err = s.obey(t, p, data)
		} else if t.write(p, false) {
			if err = t.typeIn(data, wait); errors.Is(err, os.ErrDeadlineExceeded) {
				tell(p, message{Type: "unread"})
				err, wait = nil, patience/50 // for further keys, until one is taken
			} else {
				wait = patience
			}
		}
		if err != nil {
			reason := err.Error()
			_ = p.Close(websocket.StatusUnsupportedData, reason[:min(len(reason), 120)]) // what fits into the frame
			return
		}
	}
}

// typeIn passes keys on. A program that does not read them must not stop what else the page asks for.
func (t *terminal) typeIn(data []byte, wait time.Duration) error {
	_ = t.tty.SetWriteDeadline(time.Now().Add(wait)) // on a Mac there is none
	_, err := t.tty.Write(data)
	_ = t.tty.SetWriteDeadline(time.Time{})
	return err
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
	p, err := pagesocket.Accept(w, r)
	if err != nil {
		return nil, err
	}
	t.pages[p] = &page{}
	if t.writer == nil {
		t.writer = p
	}
	t.tellRoles() // the size comes before what was written for it
	t.show(p, t.tail())
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
