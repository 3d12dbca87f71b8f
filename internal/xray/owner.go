package xray

import (
	"sync"
	"time"
)

// owners finds the process that a connection to the proxy belongs to: on Linux,
// and as well as it goes.
type owners struct {
	proxy string // host:port

	mu   sync.Mutex
	pids map[string]func() int // by the client's address; each function waits for the answer

	looking sync.Mutex
	found   []int     // processes, the latest last
	rest    time.Time // after a search in vain, until then no further one: they must cost little
}

// connected begins to look for the owner of a new connection at once, because
// its process may end in some milliseconds.
func (o *owners) connected(remote string) {
	const most = 1000
	pid := sync.OnceValue(func() int {
		o.looking.Lock()
		defer o.looking.Unlock()
		return o.find(remote)
	})
	go pid()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pids) >= most {
		clear(o.pids)
	}
	o.pids[remote] = pid
}

// of returns the process that has the connection, or 0 if nobody knows.
func (o *owners) of(remote string) int {
	o.mu.Lock()
	pid := o.pids[remote]
	o.mu.Unlock()
	if pid == nil {
		return 0
	}
	return pid()
}
