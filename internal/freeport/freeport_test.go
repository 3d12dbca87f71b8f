package freeport

import (
	"fmt"
	"net"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

func TestOf(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		ports, err := Of("127.0.0.1", 6)
		fatal.If(t, err)
		distinct := map[int]bool{}
		for _, port := range ports {
			distinct[port], seen[port] = true, true
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Errorf("port %d is not free: %v", port, err)
				continue
			}
			l.Close()
			if port >= 32768 { // where Linux begins to hand out ports to others
				t.Errorf("somebody can get port %d while its server is away", port)
			}
		}
		if len(distinct) != 6 {
			t.Errorf("ports %v are not distinct", ports)
		}
	}
	if len(seen) < 60 { // 120 of 22768; two at once would collide if these were always the same
		t.Errorf("twenty times six ports are only %d", len(seen))
	}
	if address, err := Address("no address"); err == nil {
		t.Errorf("a port of what is no address: %s", address)
	}
}
