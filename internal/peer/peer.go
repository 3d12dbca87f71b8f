// Package peer finds out who has the other end of a connection within this machine.
// It knows only on Linux.
package peer

import (
	"net"
	"net/netip"

	"github.com/prometheus/procfs"
)

// A Socket is an end of a TCP connection. Its inode is 0 if its process has closed it.
type Socket struct{ UID, Inode uint64 }

// Of returns the client's end of a connection, and false if no process of this
// machine has it, or if nobody can tell.
func Of(client, server string) (Socket, bool) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return Socket{}, false // not Linux
	}
	is := func(address string, ip net.IP, port uint64) bool {
		a, err := netip.ParseAddrPort(address)
		return err == nil && ip.Equal(a.Addr().AsSlice()) && uint64(a.Port()) == port
	}
	// A socket of IPv6 can connect to an address of IPv4, too.
	for _, list := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		connections, _ := list()
		for _, c := range connections {
			if is(client, c.LocalAddr, c.LocalPort) && is(server, c.RemAddr, c.RemPort) {
				return Socket{c.UID, c.Inode}, true
			}
		}
	}
	return Socket{}, false
}
