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

// Of returns n ports of an address of this machine that nobody listens on. They are below those
// that systems hand out to whoever asks for any port (from 32768 on Linux, from 49152 on others), so
// that nobody gets one while its server is away. They are random: two who look for some at the same
// moment seldom get the same.
func Of(host string, n int) (ports []int, err error) {
	for range 1000 {
		port := 10000 + rand.IntN(22768)
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are found, so that none is found twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("of 1000 ports of %s between 10000 and 32767, fewer than %d are free", host, n)
}
