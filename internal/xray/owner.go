package xray

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"github.com/k8s-go/workshop/internal/peer"
)

// owners finds the process that a connection to the proxy belongs to: on Linux,
// if its process can be read.
type owners struct {
	proxy string // host:port

	mu   sync.Mutex
	pids map[string]func() int // by the client's address; each function waits for the answer

	searches atomic.Int32 // that go on or wait
	looking  sync.Mutex
	found    []procfs.Proc // the latest last
	rest     time.Time     // after a search in vain, until then no further one: they must cost little
}

// connected begins to look for the owner of a new connection at once, because
// its process may end in some milliseconds.
func (o *owners) connected(remote string) {
	const most = 1000
	const atOnce = 20 // further ones are not looked for: whoever connects without end costs no more than that
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.pids, remote) // of an earlier connection from this port
	if o.searches.Add(1) > atOnce {
		o.searches.Add(-1)
		return
	}
	pid := sync.OnceValue(func() int {
		defer o.searches.Add(-1)
		o.looking.Lock()
		defer o.looking.Unlock()
		return o.find(remote)
	})
	go pid()
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

// find looks for the connection's socket among all connections, and then for the
// process that has it, beginning with the one that was started last.
func (o *owners) find(remote string) int {
	end, known := peer.Of(remote, o.proxy)
	if !known || end.Inode == 0 {
		return 0
	}
	socket := fmt.Sprintf("socket:[%d]", end.Inode)
	began := time.Now()
	processes := slices.Clone(o.found)
	if began.After(o.rest) {
		all, _ := procfs.AllProcs() // none if /proc cannot be read
		sort.Sort(sort.Reverse(all))
		processes = append(processes, all...)
	}
	for _, p := range processes {
		files, _ := p.FileDescriptorTargets() // none of another user's, and of one that has ended
		if slices.Contains(files, socket) {
			const most = 20
			o.found = append(o.found[max(0, len(o.found)-most):], p)
			return p.PID
		}
	}
	o.rest = time.Now().Add(3 * time.Since(began))
	return 0
}
