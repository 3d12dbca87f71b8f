package xray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// Handler answers what follows /api/xray. Whoever mounts it checks the cookie,
// the Host and the Origin of each request before.
func (h *Hub) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws", h.view)
	mux.HandleFunc("POST /faults/{fault}", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		message, err := h.press(r.PathValue("fault"), target{resource: query.Get("resource"), program: query.Get("program")})
		switch {
		case errors.Is(err, errNoFault):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			answer(w, map[string]string{"message": message})
		}
	})
	mux.HandleFunc("GET /recording", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=xray-%s.json", time.Now().Format("2006-01-02-150405")))
		answer(w, map[string]any{"version": 1, "items": h.recorded()})
	})
	mux.HandleFunc("GET /tours", func(w http.ResponseWriter, _ *http.Request) { answer(w, tours) })
	return mux
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // a page that is gone needs no answer
}

// patience is how long a viewer may take to receive one batch.
const patience = time.Minute

// view sends batches to one viewer until it leaves.
func (h *Hub) view(w http.ResponseWriter, r *http.Request) {
	v := h.newViewer()
	if v == nil {
		http.Error(w, fmt.Sprintf("%d windows already show the X-ray: close one", mostViewers), http.StatusServiceUnavailable)
		return
	}
	defer h.remove(v)
	// The Origin is checked already, and behind a forwarded port it is not the Host.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	ctx := c.CloseRead(r.Context())
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.ctx.Done():
			_ = c.Close(websocket.StatusGoingAway, "the workshop has ended")
			return
		case frame := <-v.frames:
			if err := h.write(ctx, c, frame); err != nil {
				return
			}
		}
	}
}

func (h *Hub) write(ctx context.Context, c *websocket.Conn, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	return c.Write(ctx, websocket.MessageText, frame)
}
