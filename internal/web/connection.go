package web

import (
	"context"
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
	// ServeHTTP has checked the origin, and the token, which is the other protocol.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{"workshop"}})
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
	p := &page{}
	p.put(websocket.MessageBinary, t.output[max(len(t.output)-kept, 0):])
	switch {
	case t.run != nil:
		p.tell(message{Type: "started", asked: t.run.asked})
	case t.ready:
		p.tell(message{Type: "prompt"})
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
