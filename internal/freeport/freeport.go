// Package freeport finds ports for servers that are to find them free again after a restart.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Address returns an address, host:port, of this machine with a port as Of finds it.
func Address(host string) (string, error) {
	ports, err := Of(host, 1)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(ports[0])), nil
}

// Of returns n ports of an address of this machine that nobody listens on, as Listen finds them.
func Of(host string, n int) (ports []int, err error) {
	for range n {
		l, err := Listen(host)
		if err != nil {
			return nil, err
		}
		defer l.Close() // held until all are found, so that none is found twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Listen listens on a port below those that systems hand out to whoever asks for any port (from 32768
// on Linux, from 49152 on others), so that nobody gets it while its server is away. It is random: two
// who look for one at the same moment seldom get the same.
//
// Whoever listens in this process had better use this than Address: a process that is being started
// at that moment holds what its parent has closed, until it is another program.
func Listen(host string) (net.Listener, error) {
	for range 1000 {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(10000+rand.IntN(22768)))); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("of 1000 ports of %s between 10000 and 32767, none is free", host)
}
