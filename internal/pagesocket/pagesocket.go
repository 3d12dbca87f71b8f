// Package pagesocket is what the page's WebSockets have in common.
package pagesocket

import (
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// Accept makes a WebSocket of a request, or answers it with an error. The server has checked its
// origin, which behind a forwarded port is not the Host, and its token, which is the other protocol.
func Accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	return websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{"workshop"}})
}

// KeepAlive says every half a minute that there is still somebody, until ctx ends: forwarders drop
// what is silent. Somebody has to read from the connection meanwhile.
func KeepAlive(ctx context.Context, conn *websocket.Conn) {
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
