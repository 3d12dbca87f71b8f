// Package faultproxy stands between a program and the API server and breaks
// what a test tells it to break: a watch is cut, an event is lost, a request
// gets another answer than the server's, the server cannot be reached.
//
// Every request and every injected fault is recorded, so that a test can
// assert that its fault has really happened. Observers hear of all of that
// while it happens.
//
// The proxy offers HTTP/1.1 only: with HTTP/2, client-go would put all its
// watches on one connection, and resetting that would end them all. It speaks
// TLS, with a throwaway certificate, because client-go sends no token of a
// kubeconfig over plain HTTP. It listens on 127.0.0.1. What follows an upgrade
// (exec, port-forward) passes through as it is.
package faultproxy

import (
	"bytes"
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/workspace"
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

	keepBodies atomic.Bool

	mu        sync.Mutex
	listener  net.Listener // nil while the server is made unreachable
	conns     map[net.Conn]struct{}
	connected func(remote string)
	lastID    int
	open      map[*exchange]struct{}
	ended     ring
	rules     []*Injection
	observers map[*observer]func() bool // nil once the proxy is closed; the functions end the wait for the context
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
	transports, closeIdle, err := transportsFor(config)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		token: rand.Text(), closed: make(chan struct{}), closeIdle: closeIdle,
		conns: map[net.Conn]struct{}{}, open: map[*exchange]struct{}{}, observers: map[*observer]func() bool{}, ended: ring{size: remembered},
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { p.rewrite(r, target) },
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			t := transport{upgrade: r.Header.Get("Upgrade") != "", own: p.own(r)}
			if t.own {
				r.Header.Del("Authorization")
			}
			return transports[t].RoundTrip(r)
		}),
		ModifyResponse: p.modifyResponse,
		ErrorHandler:   p.failed,
		BufferPool:     &buffers{},
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	certificate, ca, err := certificates()
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
	l, err := freeport.Listen("127.0.0.1") // nobody is to answer there between Down and Up
	if err != nil {
		return nil, err
	}
	p.addr = l.Addr().String()
	return p, p.serve(l)
}

// StartFor starts a proxy in front of the cluster that the rules choose, and
// returns also the default namespace there.
func StartFor(rules *clientcmd.ClientConfigLoadingRules) (p *Proxy, namespace string, err error) {
	chosen := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := chosen.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if namespace, _, err = chosen.Namespace(); err != nil {
		return nil, "", fmt.Errorf("reading the namespace: %w", err)
	}
	if p, err = Start(config); err != nil {
		return nil, "", fmt.Errorf("starting the proxy: %w", err)
	}
	return p, namespace, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// buffers are what answers are copied through. Without them each request would leave 32 KiB behind.
type buffers struct{ sync.Pool }

func (b *buffers) Get() []byte {
	if buffer, ok := b.Pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(buffer []byte) { b.Pool.Put(&buffer) }

// A transport is one of the four ways to the server: with the credentials of
// the config or without; HTTP/1.1 only, for there is no upgrade in HTTP/2, or not.
type transport struct{ own, upgrade bool }

func transportsFor(config *rest.Config) (transports map[transport]http.RoundTripper, closeIdle func(), err error) {
	transports = map[transport]http.RoundTripper{}
	for _, t := range []transport{{}, {own: true}, {upgrade: true}, {own: true, upgrade: true}} {
		c := rest.AnonymousClientConfig(config)
		if t.own {
			c = rest.CopyConfig(config)
		}
		if t.upgrade {
			c.NextProtos = []string{"http/1.1"}
		}
		if transports[t], err = rest.TransportFor(c); err != nil {
			return nil, nil, fmt.Errorf("a transport to the server: %w", err)
		}
	}
	return transports, func() {
		for _, t := range transports {
			utilnet.CloseIdleConnectionsFor(t)
		}
	}, nil
}

// serve serves a listener until Down or Close.
func (p *Proxy) serve(l net.Listener) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return errors.Join(http.ErrServerClosed, l.Close())
	default:
	}
	p.listener = l
	p.handlers.Go(func() { _ = p.server.ServeTLS(&listener{l, p}, "", "") })
	return nil
}

// A listener has the proxy know each connection before anybody reads from it.
type listener struct {
	net.Listener
	p *Proxy
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.listener != l.Listener { // Down was quicker, and would miss this one
		reset(c)
		return nil, net.ErrClosed
	}
	l.p.conns[c] = struct{}{}
	if l.p.connected != nil {
		l.p.connected(c.RemoteAddr().String())
	}
	return c, nil
}

// OnConnect has f called with the address of each client that connects, before
// anything is read from it. f must neither block nor call the proxy.
func (p *Proxy) OnConnect(f func(remote string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connected = f
}

// tcp returns the connection below TLS, which Accept has seen.
func tcp(c net.Conn) net.Conn {
	if secure, ok := c.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return c
}

// connState forgets a connection, but for one with an upgrade: its handler does that.
func (p *Proxy) connState(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, tcp(c))
}

// Close ends all connections and waits until nothing runs any more.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	for x := range p.open {
		x.cancel()
	}
	p.mu.Unlock()
	_ = p.server.Close()
	p.handlers.Wait()
	p.closeIdle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for o := range p.observers {
		p.removeObserver(o)
	}
	p.observers = nil
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
	const name = workspace.ProxyContext
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
// Once it has returned, no request reaches the server that had not yet been
// forwarded; one that had may still be carried out.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		reset(c)
	}
	clear(p.conns)
	for x := range p.open {
		p.end(x, Unreachable)
	}
}

// end does what Down and Cut do to a request under way, and reports whether it
// was the first. The caller holds p.mu.
func (p *Proxy) end(x *exchange, f Fault) bool {
	if x.ended {
		return false
	}
	x.ended = true
	x.Faults = append(x.Faults, f)
	p.tell(Observation{Moment: FaultStruck, Fault: f}, x)
	reset(x.conn)
	x.cancel()
	return true
}

// hangUp resets the connection of a request that a fault has struck. From then on
// the request no longer counts as under way, though its handler has still to end.
func (p *Proxy) hangUp(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.ended = true
	reset(x.conn)
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
	// The port is free, unless somebody has just looked whether it is, or a process that is being started holds it still.
	for range 50 {
		var l net.Listener
		if l, err = net.Listen("tcp", p.addr); err == nil {
			return p.serve(l)
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
	c = tcp(c) // or TLS would say goodbye first
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// Cut resets the connections of the matching requests that are under way,
// and returns their number.
func (p *Proxy) Cut(m Match) int {
	n := 0
	for x, r := range p.underWay() {
		if !m.matches(r) {
			continue
		}
		p.mu.Lock()
		if _, open := p.open[x]; open && p.end(x, Cut) {
			n++
		}
		p.mu.Unlock()
	}
	return n
}

// begin records a request, unless the proxy is closed or down.
func (p *Proxy) begin(r *http.Request, cancel context.CancelFunc) *exchange {
	x := &exchange{Request: describe(r), cancel: cancel}
	c, _ := r.Context().Value(connKey).(net.Conn)
	x.conn = tcp(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed: // nobody waits for this handler any more
		return nil
	default:
	}
	if _, ok := p.conns[x.conn]; !ok {
		return nil
	}
	p.handlers.Add(1)
	p.lastID++
	x.ID = p.lastID
	p.open[x] = struct{}{}
	p.tell(Observation{Moment: Begun}, x)
	return x
}

// finish makes the request a part of the past.
func (p *Proxy) finish(x *exchange) {
	p.mu.Lock()
	x.Took = time.Since(x.Started)
	delete(p.open, x)
	if x.Code == http.StatusSwitchingProtocols {
		delete(p.conns, x.conn)
	}
	p.ended.add(x.Request)
	p.tell(Observation{Moment: Ended}, x)
	p.mu.Unlock()
	p.handlers.Done()
}

const (
	maxBody    = 16 << 20 // more than any API server takes
	maxForeign = 64 << 10 // of somebody who may not know the proxy's token
)

// ServeHTTP applies the faults of requests and forwards the others.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	x := p.begin(r, cancel)
	if x == nil {
		panic(http.ErrAbortHandler)
	}
	defer p.finish(x)
	r = r.WithContext(context.WithValue(ctx, exchangeKey, x))
	// While a body is unread, the server does not notice that the client is gone.
	keep := int64(maxForeign)
	if p.own(r) {
		keep = maxBody
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, keep))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if p.keepBodies.Load() && x.Write() {
		p.mu.Lock()
		x.Body = body
		p.mu.Unlock()
	}
	// The transport looks once more behind the end of a body, and the server closes its own when the answer
	// begins: that look would then fail, and the transport would break the answer off.
	if int64(len(body)) < keep {
		r.Body = io.NopCloser(bytes.NewReader(body))
	} else { // there may be more
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	}
	if x.watch() && r.Header.Get("Upgrade") != "" {
		// A watch by WebSocket, whose events no fault could reach. A client that tries that first (fabric8)
		// takes this answer for no upgrade, and watches by HTTP.
		p.write(w, x, http.StatusOK, nil)
		return
	}
	if !p.strikeRequest(w, r, x) {
		p.reverse.ServeHTTP(w, r)
	}
}

// KeepBodies has the proxy remember what the writes from now on send.
func (p *Proxy) KeepBodies() { p.keepBodies.Store(true) }

// own reports whether a request comes with the proxy's own token.
func (p *Proxy) own(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+p.token }

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
	ctx := resp.Request.Context()
	x := ctx.Value(exchangeKey).(*exchange)
	p.mu.Lock()
	x.Code = resp.StatusCode
	p.mu.Unlock()
	if err := p.strikeAnswer(ctx, x); err != nil {
		return err
	}
	switch {
	case x.watch() && resp.StatusCode == http.StatusOK:
		resp.Body = newEventFilter(ctx, resp.Body, p, x)
	case resp.StatusCode != http.StatusSwitchingProtocols: // its body is written to, as well
		resp.Body = &answer{resp.Body, p, x}
	}
	return nil
}

// An answer notes why it has no end.
type answer struct {
	io.ReadCloser
	p *Proxy
	x *exchange
}

func (a *answer) Read(data []byte) (int, error) {
	n, err := a.ReadCloser.Read(data)
	if err != nil && err != io.EOF {
		a.p.mu.Lock()
		a.x.Broken = err.Error()
		a.p.mu.Unlock()
	}
	return n, err
}

// failed answers a request that got no answer from the server.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey).(*exchange)
	if errors.Is(err, errReset) {
		p.abort(x)
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, and nobody waits for an answer
	}
	p.mu.Lock()
	x.Code = http.StatusBadGateway
	p.mu.Unlock()
	http.Error(w, "faultproxy: "+err.Error(), http.StatusBadGateway)
}

// abort ends a handler whose client is to see a reset connection.
func (p *Proxy) abort(x *exchange) {
	p.hangUp(x)
	panic(http.ErrAbortHandler)
}
