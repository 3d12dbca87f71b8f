package xray

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"
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

// find looks for the connection's socket among all connections, and then for the
// process that has it, beginning with the one that was started last.
func (o *owners) find(remote string) int {
	socket := socketOf(remote, o.proxy)
	began := time.Now()
	if socket == "" {
		return 0
	}
	pids := slices.Clone(o.found)
	if began.After(o.rest) {
		all, _ := procfs.AllProcs() // none if /proc cannot be read
		slices.SortFunc(all, func(a, b procfs.Proc) int { return b.PID - a.PID })
		for _, p := range all {
			pids = append(pids, p.PID)
		}
	}
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			continue // it has ended
		}
		files, _ := p.FileDescriptorTargets() // none of another user's
		if slices.Contains(files, socket) {
			const most = 20
			o.found = append(o.found[max(0, len(o.found)-most):], pid)
			return pid
		}
	}
	o.rest = time.Now().Add(3 * time.Since(began))
	return 0
}

// socketOf names the socket of the client's end of a connection as /proc does.
func socketOf(client, server string) string {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return "" // not Linux
	}
	is := func(address string, ip net.IP, port uint64) bool {
		a, err := netip.ParseAddrPort(address)
		return err == nil && ip.Equal(a.Addr().AsSlice()) && uint64(a.Port()) == port
	}
	connections, _ := proc.NetTCP()
	for _, c := range connections {
		if c.Inode != 0 && is(client, c.LocalAddr, c.LocalPort) && is(server, c.RemAddr, c.RemPort) {
			return fmt.Sprintf("socket:[%d]", c.Inode)
		}
	}
	return ""
}
