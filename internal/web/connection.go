package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/coder/websocket"
)

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
	// ServeHTTP has checked the origin.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // the answer is written
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	cols, _ := strconv.ParseUint(r.URL.Query().Get("cols"), 10, 16) // none: the size stays
	rows, _ := strconv.ParseUint(r.URL.Query().Get("rows"), 10, 16)
	t.resize(uint16(cols), uint16(rows))
	ctx, cancel := context.WithCancel(s.terminals.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { t.leave(p) })() // which wakes show
	go func() {
		defer cancel()
		for {
			kind, data, err := conn.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageBinary {
				_, err = t.tty.Write(data)
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
	p := &page{seen: t.written - int64(min(len(t.output), kept))}
	switch {
	case t.run != nil:
		p.messages = []message{{Type: "started", asked: t.run.asked}}
	case t.ready:
		p.messages = []message{{Type: "prompt"}}
	}
	t.pages[p] = struct{}{}
	return p, true
}

func (t *terminal) leave(p *page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pages, p)
	t.changed.Broadcast()
}

// show sends output and messages in their order until the page has left (an error)
// or the terminal has ended.
func (t *terminal) show(ctx context.Context, p *page, conn *websocket.Conn) error {
	for {
		t.mu.Lock()
		_, here := t.pages[p]
		for here && p.seen == t.written && len(p.messages) == 0 && !t.ended {
			t.changed.Wait()
			_, here = t.pages[p]
		}
		first := t.written - int64(len(t.output))
		data := append([]byte(nil), t.output[max(p.seen-first, 0):]...)
		p.seen = t.written
		messages, ended := p.messages, t.ended
		p.messages = nil
		t.changed.Broadcast()
		t.mu.Unlock()
		if !here {
			return context.Canceled
		}
		if len(data) > 0 {
			if err := send(ctx, conn, websocket.MessageBinary, data); err != nil {
				return err
			}
		}
		for _, m := range messages {
			text, err := json.Marshal(m)
			if err != nil {
				return err
			}
			if err := send(ctx, conn, websocket.MessageText, text); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

// send gives up on a page that does not read.
func send(ctx context.Context, conn *websocket.Conn, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.Write(ctx, kind, data)
}
