package faultproxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/fatal"
)

// echo upgrades as asked and sends back, in capitals, each line that it gets.
func echo(w http.ResponseWriter, r *http.Request) {
	protocol := r.Header.Get("Upgrade")
	if protocol == "" || r.ProtoMajor != 1 {
		http.Error(w, "no upgrade in "+r.Proto, http.StatusBadRequest)
		return
	}
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Authorization: %s\r\n\r\n", protocol, r.Header.Get("Authorization"))
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := io.WriteString(c, strings.ToUpper(line)); err != nil {
			return
		}
	}
}

// dial connects to a proxy, until the test ends.
func dial(t *testing.T, p *Proxy) *tls.Conn {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca)
	c, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: roots})
	fatal.If(t, err)
	t.Cleanup(func() { _ = c.Close() })
	fatal.If(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func TestUpgrades(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	server.EnableHTTP2 = true // as an API server offers it
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p, err := Start(&rest.Config{Host: server.URL, BearerToken: "own", TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	fatal.If(t, err)
	defer p.Close()
	if code, body, err := do(t, p, "GET", pods); code != http.StatusBadRequest || !strings.Contains(body, "HTTP/2") {
		t.Errorf("%d %s %v: without an upgrade, the server should be asked in HTTP/2", code, body, err)
	}
	exec := Match{Verb: "create", Resource: "pods/exec", Name: "a"}
	for _, protocol := range []string{"websocket", "SPDY/3.1"} {
		t.Run(protocol, func(t *testing.T) {
			c := dial(t, p)
			fmt.Fprintf(c, "POST %s/a/exec HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", pods, p.addr, p.token, protocol)
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			fatal.If(t, err)
			if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol || resp.Header.Get("X-Authorization") != "Bearer own" {
				t.Fatalf("%s %v", resp.Status, resp.Header)
			}
			for _, word := range []string{"one\n", "two\n"} {
				if _, err := io.WriteString(c, word); err != nil {
					t.Fatal(err)
				}
				if got, err := r.ReadString('\n'); got != strings.ToUpper(word) || err != nil {
					t.Errorf("%q %v", got, err)
				}
			}
			if n := p.Cut(exec); n != 1 {
				t.Errorf("%d cut", n)
			}
			if got, err := r.ReadString('\n'); err == nil {
				t.Errorf("%q after the cut", got)
			}
			eventually(t, "the connection is forgotten", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return len(p.conns) == 0 && len(p.open) == 0
			})
		})
	}
	if r, _ := p.Requests(exec); len(r) != 2 || r[0].Code != http.StatusSwitchingProtocols {
		t.Errorf("recorded %v", r)
	}
}

// A watch by WebSocket has events that no fault could reach: the client is to watch by HTTP.
func TestNoWatchIsUpgraded(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(echo))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p, err := Start(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	fatal.If(t, err)
	defer p.Close()
	c := dial(t, p)
	if leaf := c.ConnectionState().PeerCertificates[0]; leaf.IsCA { // which rustls takes for no server
		t.Error("the server's certificate is that of an authority")
	}
	fmt.Fprintf(c, "GET %s?watch=true HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", pods, p.addr, p.token)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	fatal.If(t, err)
	if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || len(body) > 0 || err != nil {
		t.Errorf("%s %q %v", resp.Status, body, err)
	}
	if all, _ := p.Requests(Match{}); len(all) != 1 || all[0].Code != http.StatusOK {
		t.Errorf("the proxy has seen %v", all)
	}
}
