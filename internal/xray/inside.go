package xray

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/k8s-go/workshop/internal/xray/report"
)

// maxLine is the longest line that a program may report.
const maxLine = 64 << 10

// listen serves the Unix socket: programs report there, and the scripts of the
// tours steer the proxy. Only this user can open it.
func (h *Hub) listen(socket string) error {
	_ = os.Remove(socket) // of a process that was killed
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for programs that report to the X-ray (a Unix socket's path must be shorter than 104 bytes): %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("protecting the X-ray's socket: %w", err), listener.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /report", h.report)
	mux.Handle("/", h.proxy.Control())
	h.reports = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	h.running.Go(func() { _ = h.reports.Serve(listener) }) // ends with Close
	return nil
}

// report reads the items of one program until it ends.
func (h *Hub) report(w http.ResponseWriter, r *http.Request) {
	pid, err := strconv.Atoi(r.URL.Query().Get("pid"))
	program := clip(r.URL.Query().Get("program"))
	if err != nil || program == "" {
		http.Error(w, "program and pid are required", http.StatusBadRequest)
		return
	}
	life := func(what string) {
		h.say(Item{Kind: report.Program, Program: program, PID: pid, What: what})
	}
	life("began")
	defer life("ended")
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var i Item
		if err := json.Unmarshal(lines.Bytes(), &i); err != nil {
			http.Error(w, "not an item: "+err.Error(), http.StatusBadRequest)
			return
		}
		h.reported(i, program, pid)
	}
	if err := lines.Err(); err != nil { // a line that is too long, or a program that was killed
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// reported takes over what a program may say about itself.
func (h *Hub) reported(said Item, program string, pid int) {
	i := Item{Time: said.Time, Kind: said.Kind, Program: program, PID: pid}
	switch said.Kind {
	case report.Step:
		i.Step, i.Key, i.What, i.Reason, i.Until = clip(said.Step), clip(said.Key), clip(said.What), clip(said.Reason), said.Until
	case report.Program:
		i.What, i.Missed = "missed", said.Missed
	case report.State:
		const mostCaches = 50
		i.Caches, i.Queue, i.Workers = said.Caches[:min(len(said.Caches), mostCaches)], said.Queue, said.Workers
	default:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range i.Caches {
		c := &i.Caches[n]
		c.Resource, c.ResourceVersion = clip(c.Resource), clip(c.ResourceVersion)
		c.Behind = h.behind(program, *c)
	}
	h.add(i)
}

// say adds an item of this moment.
func (h *Hub) say(i Item) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i.Time = time.Now().UnixMilli()
	h.add(i)
}
