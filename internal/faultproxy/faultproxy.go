// Package faultproxy stands between a program and the API server and breaks
// what a test tells it to break: a watch is cut, an event is lost, a request
// gets another answer than the server's, the server cannot be reached.
//
// Every request and every injected fault is recorded, so that a test can
// assert that its fault has really happened.
//
// The proxy offers HTTP/1.1 only: with HTTP/2, client-go would put all its
// watches on one connection, and resetting that would end them all. It speaks
// TLS, with a throwaway certificate, because client-go sends no token of a
// kubeconfig over plain HTTP. It listens on 127.0.0.1. Upgrades (exec,
// port-forward) are not proxied.
package faultproxy

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A Proxy forwards requests to an API server, except for the faults injected.
type Proxy struct {
	addr      string // host:port, the same after Up as before Down
	ca        []byte // PEM
	token     string // for the credentials of the config
	server    *http.Server
	reverse   *httputil.ReverseProxy
	closed    chan struct{}
	handlers  sync.WaitGroup // requests and listeners being served
	closeIdle func()

	mu        sync.Mutex
	listener  net.Listener // nil while the server is made unreachable
	conns     map[net.Conn]struct{}
	exchanges []*exchange
	rules     []*Injection
	observe   func(Request)
}

// An exchange is a request and what became of it.
type exchange struct {
	Request
	conn   net.Conn
	active bool
}

type contextKey int

const (
	connKey contextKey = iota
	exchangeKey
)

// errReset ends an exchange whose connection the proxy has reset.
var errReset = errors.New("the connection was reset on purpose")

// Start starts a proxy in front of the API server that the config names.
// A request with the token of Config or WriteKubeconfig reaches the server with
// the config's credentials; any other with those that it brings, if any.
func Start(config *rest.Config) (*Proxy, error) {
	target, _, err := rest.DefaultServerURL(config.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, fmt.Errorf("the server's address %q: %w", config.Host, err)
	}
	own, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("a transport with the config's credentials: %w", err)
	}
	anonymous, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, fmt.Errorf("a transport without credentials: %w", err)
	}
	p := &Proxy{token: rand.Text(), closed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { p.rewrite(r, target) },
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Authorization") != "Bearer "+p.token {
				return anonymous.RoundTrip(r)
			}
			r.Header.Del("Authorization")
			return own.RoundTrip(r)
		}),
		FlushInterval:  -1, // a buffered event would be a delayed event
		ModifyResponse: p.modifyResponse,
		ErrorHandler:   p.failed,
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	certificate, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	p.ca = ca
	p.server = &http.Server{
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		Handler:           p,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey, c) },
		ConnState:         p.connState,
	}
	p.closeIdle = func() {
		utilnet.CloseIdleConnectionsFor(own)
		utilnet.CloseIdleConnectionsFor(anonymous)
	}
	if err := p.listen("127.0.0.1:0"); err != nil {
		return nil, err
	}
	p.addr = p.listener.Addr().String()
	return p, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (p *Proxy) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return errors.Join(http.ErrServerClosed, l.Close())
	default:
	}
	p.listener = l
	p.handlers.Go(func() { _ = p.server.ServeTLS(l, "", "") }) // ends with Down or Close
	return nil
}

func (p *Proxy) connState(c net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	}
}

// Close ends all connections and waits until nothing runs any more.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	_ = p.server.Close()
	p.handlers.Wait()
	p.closeIdle()
}

// URL is the address that clients are to use instead of the server's.
func (p *Proxy) URL() string { return "https://" + p.addr }

// Config returns a config for clients of the proxy.
func (p *Proxy) Config() *rest.Config {
	return &rest.Config{Host: p.URL(), BearerToken: p.token, TLSClientConfig: rest.TLSClientConfig{CAData: p.ca}}
}

// WriteKubeconfig writes a kubeconfig for the proxy. The namespace becomes the
// context's default one. A token that is not empty reaches the server as the
// user's; otherwise the server gets the credentials that the proxy has.
func (p *Proxy) WriteKubeconfig(path, namespace, token string) error {
	const name = "faultproxy"
	if token == "" {
		token = p.token
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: p.URL(), CertificateAuthorityData: p.ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	c.CurrentContext = name
	return clientcmd.WriteToFile(*c, path)
}

// Down makes the server unreachable: connections are reset, new ones refused.
func (p *Proxy) Down() {
	p.mu.Lock()
	l := p.listener
	p.listener = nil
	p.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
	for _, x := range p.exchanges {
		if x.active {
			x.Faults = append(x.Faults, Unreachable)
		}
	}
}

// Up ends what Down began.
func (p *Proxy) Up() error {
	p.mu.Lock()
	up := p.listener != nil
	p.mu.Unlock()
	if up {
		return nil
	}
	var err error
	// The port is free unless another program was just given it, for an
	// outgoing connection that will soon be over.
	for range 50 {
		if err = p.listen(p.addr); err == nil {
			return nil
		}
		select {
		case <-p.closed:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	return err
}

// reset makes the client see "connection reset by peer" rather than an end.
func reset(c net.Conn) {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn() // or TLS would say goodbye first
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Cut resets the connections of the matching requests that are under way,
// and returns their number.
func (p *Proxy) Cut(requests Requests) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, x := range p.exchanges {
		if x.active && requests.match(x.Request) {
			x.Faults = append(x.Faults, Cut)
			reset(x.conn)
			x.active = false
			n++
		}
	}
	return n
}

// Requests returns the recorded requests that match, oldest first.
func (p *Proxy) Requests(requests Requests) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Request
	for _, x := range p.exchanges {
		if requests.match(x.Request) {
			r := x.Request
			r.Faults = slices.Clone(r.Faults)
			found = append(found, r)
		}
	}
	return found
}

// Count returns how many requests match.
func (p *Proxy) Count(requests Requests) int { return len(p.Requests(requests)) }

// Open returns how many matching requests are being answered: of watches, how many are open.
func (p *Proxy) Open(requests Requests) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, x := range p.exchanges {
		if x.active && x.Code == http.StatusOK && requests.match(x.Request) {
			n++
		}
	}
	return n
}

// Observe has f called with each request when it has ended.
func (p *Proxy) Observe(f func(Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = f
}

// ServeHTTP applies the faults of requests and forwards the others.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	select {
	case <-p.closed: // nobody waits for this handler any more
		p.mu.Unlock()
		panic(http.ErrAbortHandler)
	default:
		p.handlers.Add(1)
	}
	p.mu.Unlock()
	defer p.handlers.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	x := &exchange{Request: describe(r), active: true}
	x.conn, _ = ctx.Value(connKey).(net.Conn)
	p.mu.Lock()
	p.exchanges = append(p.exchanges, x)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		x.active = false
		x.Took = time.Since(x.Started)
		observe, ended := p.observe, x.Request
		p.mu.Unlock()
		if observe != nil {
			observe(ended)
		}
	}()
	r = r.WithContext(context.WithValue(ctx, exchangeKey, x))
	if p.strikeRequest(w, r, x) {
		return
	}
	select {
	case <-p.closed: // what it was held back by
		panic(http.ErrAbortHandler)
	default:
	}
	p.reverse.ServeHTTP(w, r)
}

func (p *Proxy) rewrite(r *httputil.ProxyRequest, target *url.URL) {
	r.SetURL(target)
	x := r.In.Context().Value(exchangeKey).(*exchange)
	if !x.watch() {
		return
	}
	// One event is one line only in JSON.
	var accept []string
	for _, media := range strings.Split(strings.Join(r.In.Header.Values("Accept"), ","), ",") {
		if media = strings.TrimSpace(media); strings.HasPrefix(media, "application/json") {
			accept = append(accept, media)
		}
	}
	if accept == nil {
		accept = []string{"application/json"}
	}
	r.Out.Header.Set("Accept", strings.Join(accept, ","))
	r.Out.Header.Set("Accept-Encoding", "identity")
}

func (p *Proxy) modifyResponse(resp *http.Response) error {
	x := resp.Request.Context().Value(exchangeKey).(*exchange)
	p.mu.Lock()
	x.Code = resp.StatusCode
	lost := slices.Contains(x.Faults, Lose)
	p.mu.Unlock()
	switch {
	case lost:
		_, _ = io.Copy(io.Discard, resp.Body)
		return errReset
	case x.watch() && resp.StatusCode == http.StatusOK:
		resp.Body = newEventFilter(resp.Request.Context(), resp.Body, p, x)
	}
	return nil
}

// failed answers a request that got no answer from the server.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey).(*exchange)
	if errors.Is(err, errReset) {
		reset(x.conn)
		panic(http.ErrAbortHandler)
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, and nobody waits for an answer
	}
	p.mu.Lock()
	x.Code = http.StatusBadGateway
	p.mu.Unlock()
	http.Error(w, "faultproxy: "+err.Error(), http.StatusBadGateway)
}
