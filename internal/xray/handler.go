package xray

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket/wsjson"

	"github.com/k8s-go/workshop/internal/pagesocket"
)

// Handler answers what follows /api/xray. Whoever mounts it checks the token,
// the Host and the Origin of each request before.
func (h *Hub) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws", h.view)
	mux.HandleFunc("POST /faults/{fault}", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		message, err := h.press(r.PathValue("fault"), target{resource: query.Get("resource"), program: query.Get("program")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, map[string]string{"message": message})
	})
	mux.HandleFunc("GET /recording", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, h.Recording())
	})
	mux.Handle("GET /tours/", http.FileServerFS(tours))
	return mux
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // a page that is gone needs no answer
}

// view sends batches to one viewer until it leaves.
func (h *Hub) view(w http.ResponseWriter, r *http.Request) {
	defer h.viewers.Add(-1)
	if h.viewers.Add(1) > mostViewers {
		http.Error(w, fmt.Sprintf("%d windows already show the X-ray: close one", mostViewers), http.StatusServiceUnavailable)
		return
	}
	c, err := pagesocket.Accept(w, r)
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	left := c.CloseRead(h.ctx)
	go pagesocket.KeepAlive(left, c)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for v := (viewer{seen: -1}); ; {
		if b, ok := h.next(&v); ok {
			ctx, cancel := context.WithTimeout(left, time.Minute) // for a viewer that does not read
			err := wsjson.Write(ctx, c, b)
			cancel()
			if err != nil {
				return
			}
		}
		select {
		case <-left.Done():
			return
		case <-tick.C:
		}
	}
}
