// Package report tells the X-ray of make web what happens inside of a program.
// It does so only if WORKSHOP_XRAY names the page's Unix socket, as in the page's
// terminals. The program never waits for it: what does not fit into a buffer is
// left out and counted.
package report

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Variable names the environment variable that turns reporting on.
const Variable = "WORKSHOP_XRAY"

const (
	buffered   = 1000                   // items
	interval   = 20 * time.Millisecond  // between two writes to the socket
	mostAtOnce = 40                     // items in one write that comes in time, on average; that is 2,000 a second
	burst      = 500                    // so many more pass at once after a rest, as in the page
	stateEvery = 500 * time.Millisecond // how often the caches and the queue are looked at
)

// A Reporter reports what one program does.
type Reporter struct {
	items   chan Item
	missed  atomic.Int64
	reading sync.Mutex // by ServeHTTP

	mu     sync.Mutex
	states []func() Item
}

// New returns a reporter that answers HTTP requests with what it reports: for a
// program in a pod, whose port is forwarded.
func New() *Reporter { return &Reporter{items: make(chan Item, buffered)} }

// ServeHTTP sends lines of JSON to one reader at a time.
func (r *Reporter) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if !r.reading.TryLock() {
		http.Error(w, "another X-ray reads already", http.StatusConflict)
		return
	}
	defer r.reading.Unlock()
	r.write(request.Context(), w)
}

// Open returns the reporter of this process, or nil if nobody wants to know.
var Open = sync.OnceValue(func() *Reporter {
	socket := os.Getenv(Variable)
	if socket == "" {
		return nil
	}
	return start(context.Background(), socket, filepath.Base(os.Args[0]))
})

// start reports until ctx ends: for Open, as long as the process lives.
func start(ctx context.Context, socket, program string) *Reporter {
	r := New()
	query := url.Values{"program": {program}, "pid": {strconv.Itoa(os.Getpid())}}
	go r.run(ctx, socket, "http://xray/report?"+query.Encode())
	return r
}

// Tell reports one item. It never blocks.
func (r *Reporter) Tell(i Item) {
	if i.Time == 0 {
		i.Time = time.Now().UnixMilli()
	}
	select {
	case r.items <- i:
	default:
		r.missed.Add(1)
	}
}

// State has f called twice a second for the state of caches and a queue.
func (r *Reporter) State(f func() Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, f)
}

// run connects to the socket, again and again: the page may begin later than
// the program, or be started anew.
func (r *Reporter) run(ctx context.Context, socket, address string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	for {
		body, lines := io.Pipe()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
		if err != nil {
			return // the address is our own
		}
		go func() {
			if resp, err := client.Do(request); err == nil {
				_ = resp.Body.Close()
			}
			_ = body.CloseWithError(io.ErrClosedPipe) // nobody listens any more
		}()
		r.write(ctx, lines)
		_ = lines.Close()
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// write writes items as lines of JSON until ctx ends or nobody listens.
func (r *Reporter) write(ctx context.Context, to io.Writer) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var looked time.Time
	written, spare := time.Now(), burst
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		lines.Reset()
		if time.Since(looked) >= stateEvery {
			looked = time.Now()
			r.mu.Lock()
			states := r.states
			r.mu.Unlock()
			for _, state := range states { // past the buffer, which may be full
				i := state()
				i.Time = looked.UnixMilli()
				_ = encoder.Encode(i)
			}
		}
		// Whoever comes late, on a busy machine, has the more to write.
		most := spare + mostAtOnce*max(1, int(time.Since(written)/interval))
		written = time.Now()
		missed, waiting := r.missed.Swap(0), len(r.items)
		spare = min(max(most-waiting, 0), burst)
		for n := waiting; n > 0; n-- {
			i := <-r.items
			if n > most && i.Kind == Step {
				missed++ // the newest are the most interesting
				continue
			}
			_ = encoder.Encode(i) // there is nothing in an Item that JSON does not know
		}
		if missed > 0 {
			_ = encoder.Encode(Item{Time: time.Now().UnixMilli(), Kind: Program, Missed: int(missed)})
		}
		if lines.Len() == 0 {
			continue
		}
		if _, err := to.Write(lines.Bytes()); err != nil {
			return
		}
		if w, ok := to.(http.Flusher); ok {
			w.Flush()
		}
	}
}
