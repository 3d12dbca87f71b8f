package xray

import (
	"sync"
	"time"
)

// owners finds the process that a connection to the proxy belongs to: on Linux,
// and as well as it goes.
type owners struct {
	proxy string // host:port

	mu          sync.Mutex
	connections map[string]*owner
	looking     sync.Mutex
	found       []int     // processes, the latest last
	rest        time.Time // after a search in vain, until then no further one: they must cost little
}

// An owner is a process that is being looked for until the channel is closed.
type owner struct {
	known chan struct{}
	pid   int // 0 if nobody knows
}

const (
	mostConnections = 1000 // are remembered
	mostFound       = 20
)

func newOwners(proxy string) *owners {
	return &owners{proxy: proxy, connections: map[string]*owner{}}
}

// connected begins to look for the owner of a new connection at once, because
// its process may end in some milliseconds.
func (o *owners) connected(remote string) {
	own := &owner{known: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.connections) >= mostConnections {
		clear(o.connections)
	}
	o.connections[remote] = own
	go func() {
		defer close(own.known)
		o.looking.Lock()
		defer o.looking.Unlock()
		if own.pid = o.find(remote); own.pid != 0 {
			o.found = append(o.found[max(0, len(o.found)-mostFound):], own.pid)
		}
	}()
}

// of returns the process that has the connection, or 0.
func (o *owners) of(remote string) int {
	o.mu.Lock()
	own := o.connections[remote]
	o.mu.Unlock()
	if own == nil {
		return 0
	}
	<-own.known
	return own.pid
}
