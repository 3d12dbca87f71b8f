package lesson

import (
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Preparation compiles what lessons run, one step after the other, while they run.
//
// Where nothing is compiled yet this takes minutes. So a lesson's commands take as
// long as on any other machine, and a tour compiles the next lessons beside the first.
// What cannot be compiled is for the lesson's own command to report.
type Preparation struct {
	stop     context.CancelFunc
	compiled map[string]chan struct{} // by step: closed when its packages are compiled
	ended    chan struct{}

	mu      sync.Mutex
	reached string // the step whose lesson has begun
}

// ran finds what a lesson's commands have go link: the verb and the package.
var ran = regexp.MustCompile(`(?m)^\$ .*\bgo (run|test)(?: -\S+)* (\./[\w/-]+)`)

// Prepare begins to compile, and returns at once. Call Stop in the end.
func Prepare(ctx context.Context, ws workspace.Workspace, steps []workspace.Step) *Preparation {
	ctx, stop := context.WithCancel(ctx)
	p := &Preparation{stop: stop, compiled: map[string]chan struct{}{}, ended: make(chan struct{})}
	for _, s := range steps {
		p.compiled[s.Name] = make(chan struct{})
	}
	go func() {
		defer close(p.ended)
		for _, s := range steps {
			var text []byte
			for _, document := range s.Documents() {
				part, _ := os.ReadFile(document) // without it the lesson fails, too
				text = append(text, part...)
			}
			_ = quietly(ctx, io.Discard, ws.Root, "list", "-e", "-export", "-deps", "./"+s.Name+"/...")
			CompileModules(ctx, ws, []string{s.Name}, io.Discard)
			close(p.compiled[s.Name])
			commands := ran.FindAllStringSubmatch(string(text), -1)
			// Tests first: of what they alone import, nothing is compiled yet.
			slices.SortStableFunc(commands, func(a, b []string) int { return -strings.Compare(a[1], b[1]) })
			for _, command := range commands {
				if p.isPast(s, steps) {
					break
				}
				// Linked and kept in Go's cache, and in place of the program there runs true.
				_ = quietly(ctx, io.Discard, ws.Root, command[1], "-exec", "true", command[2])
			}
		}
	}()
	return p
}

// isPast reports whether the lesson of a later step has begun.
func (p *Preparation) isPast(s workspace.Step, steps []workspace.Step) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := func(name string) int {
		return slices.IndexFunc(steps, func(s workspace.Step) bool { return s.Name == name })
	}
	return at(p.reached) > at(s.Name)
}

// Wait waits until a step is compiled, and says so on out if that takes long.
func (p *Preparation) Wait(s workspace.Step, out io.Writer) {
	p.mu.Lock()
	p.reached = s.Name
	p.mu.Unlock()
	select {
	case <-p.compiled[s.Name]:
		return
	case <-time.After(time.Second): // usually it is compiled, and there is nothing to say
	}
	end := progress.Start(out, "Compiling the programs of "+s.Name)
	<-p.compiled[s.Name]
	end(nil)
}

// Stop ends the work and waits until its temporary files are gone.
func (p *Preparation) Stop() {
	p.stop()
	<-p.ended
}
