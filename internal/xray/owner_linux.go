package xray

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// find looks for the connection's socket among all connections, and then for
// the process that has it: first among those that were found before.
func (o *owners) find(remote string) int {
	inode := inodeOf(remote, o.proxy)
	if inode == "" {
		return 0
	}
	socket := "socket:[" + inode + "]"
	tried := map[int]bool{}
	for _, pid := range o.found {
		if !tried[pid] && holds(pid, socket) {
			return pid
		}
		tried[pid] = true
	}
	began := time.Now()
	if began.Before(o.rest) {
		return 0
	}
	all, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer all.Close()
	names, err := all.Readdirnames(-1)
	if err != nil {
		return 0
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && !tried[pid] {
			pids = append(pids, pid)
		}
	}
	for _, pid := range youngestFirst(pids) { // kubectl may end in some milliseconds
		if holds(pid, socket) {
			return pid
		}
	}
	o.rest = time.Now().Add(3 * time.Since(began))
	return 0
}

// youngestFirst sorts processes: downwards from the one that was started last,
// because the numbers begin anew when they are used up.
func youngestFirst(pids []int) []int {
	slices.Sort(pids)
	slices.Reverse(pids)
	load, err := os.ReadFile("/proc/loadavg") // 0.20 0.18 0.12 1/80 11206
	if err != nil {
		return pids
	}
	fields := strings.Fields(string(load))
	last, err := strconv.Atoi(fields[len(fields)-1])
	at := slices.IndexFunc(pids, func(pid int) bool { return pid <= last })
	if err != nil || at < 0 {
		return pids
	}
	return append(pids[at:len(pids):len(pids)], pids[:at]...)
}

// inodeOf returns the inode of the client's end of a connection.
func inodeOf(client, server string) string {
	from, err := netip.ParseAddrPort(client)
	if err != nil {
		return ""
	}
	to, err := netip.ParseAddrPort(server)
	if err != nil || !from.Addr().Is4() || !to.Addr().Is4() {
		return ""
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	want := kernel(from) + " " + kernel(to) + " "
	at := strings.Index(string(table), want)
	if at < 0 {
		return ""
	}
	line, _, _ := strings.Cut(string(table[at:]), "\n")
	// The addresses, the state, two queues, two timers, retransmissions, the user, a timeout, the inode.
	if fields := strings.Fields(line); len(fields) > 8 && fields[8] != "0" {
		return fields[8]
	}
	return ""
}

// kernel is how /proc/net/tcp writes an address on a little-endian machine.
func kernel(a netip.AddrPort) string {
	ip := a.Addr().As4()
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], a.Port())
}

// holds reports whether a process has the socket open.
func holds(pid int, socket string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.Open(dir)
	if err != nil {
		return false // another user's, or it has ended
	}
	defer open.Close()
	names, err := open.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		if target, err := os.Readlink(dir + "/" + name); err == nil && target == socket {
			return true
		}
	}
	return false
}
