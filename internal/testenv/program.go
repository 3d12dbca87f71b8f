package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A program is built once per run, by the first test that asks for it.
type program struct {
	once sync.Once
	path string
	err  error
}

// Program builds the main package at a path relative to the root of the clone,
// such as "./02-clientset/nodes", and returns the binary's path.
func (e *Env) Program(pkg string) string {
	e.t.Helper()
	s := e.suite
	s.mu.Lock()
	p := s.programs[pkg]
	if p == nil {
		p = &program{path: filepath.Join(s.binDir, strings.NewReplacer("./", "", "/", "-").Replace(pkg))}
		s.programs[pkg] = p
	}
	s.mu.Unlock()
	p.once.Do(func() {
		cmd := exec.CommandContext(s.ctx, "go", "build", "-o", p.path, pkg)
		cmd.Dir = s.ws.Root
		if output, err := cmd.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("go build %s: %w\n%s", pkg, err, output)
		}
	})
	if p.err != nil {
		e.t.Fatal(p.err)
	}
	return p.path
}

// A Command is one run of a program or script.
type Command struct {
	Path    string // a binary from Env.Program, or a script relative to the clone's root
	Args    []string
	Env     []string      // in addition to what reaches the cluster, as in exec.Cmd
	Stdin   string        // what it reads
	Timeout time.Duration // after which it is killed; one minute if zero
}

// A Result is what a command did.
type Result struct {
	Stdout, Stderr string
	ExitCode       int  // -1 if a signal ended it
	TimedOut       bool // it was killed at its Timeout
	Took           time.Duration
}

// maxOutput is how many bytes of each stream are kept: enough for any lesson,
// and a program that floods its output cannot take the test's memory with it.
const maxOutput = 1 << 20

// Run runs a command to its end. It fails the test only if the command could
// not be started; what the exit code should be is the test's to say.
func (e *Env) Run(c Command) Result {
	e.t.Helper()
	p := e.Start(c)
	return p.Wait()
}

// A Process is a running command.
type Process struct {
	command        Command
	cmd            *exec.Cmd
	cancel         context.CancelFunc
	stdout, stderr *limitedBuffer
	started        time.Time
	timeout        time.Duration
	done           chan struct{}
	result         Result
}

// Start starts a command. It is killed, with everything that it started, when
// its timeout is over, when the test ends and when the run is interrupted.
func (e *Env) Start(c Command) *Process {
	e.t.Helper()
	s := e.suite
	environ := os.Environ()
	if s.cluster != nil {
		environ = s.cluster.Environ()
	}
	p, err := start(s.ctx, s.ws.Root, append(environ, c.Env...), c)
	if err != nil {
		e.t.Fatalf("starting %s: %v", c.Path, err)
	}
	e.t.Cleanup(func() {
		p.cancel()
		r := p.Wait()
		if e.t.Failed() {
			e.t.Logf("--- %s %s: exit code %d after %s\nstdout:\n%s\nstderr:\n%s",
				filepath.Base(c.Path), strings.Join(c.Args, " "), r.ExitCode, r.Took.Round(time.Millisecond), r.Stdout, r.Stderr)
		}
	})
	return p
}

func start(ctx context.Context, dir string, environ []string, c Command) (*Process, error) {
	p := &Process{command: c, timeout: c.Timeout, started: time.Now(), done: make(chan struct{}),
		stdout: &limitedBuffer{}, stderr: &limitedBuffer{}}
	if p.timeout == 0 {
		p.timeout = time.Minute
	}
	path := c.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	ctx, p.cancel = context.WithTimeout(ctx, p.timeout)
	p.cmd = exec.CommandContext(ctx, path, c.Args...)
	p.cmd.Dir, p.cmd.Env = dir, environ
	p.cmd.Stdin = strings.NewReader(c.Stdin)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	// Its own group, so that its children can be ended with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		p.cancel()
		return nil, err
	}
	go func() {
		defer close(p.done)
		defer p.cancel()
		_ = p.cmd.Wait() // the exit code says it
		timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it left behind
		p.result = Result{
			Stdout: p.stdout.String(), Stderr: p.stderr.String(),
			ExitCode: p.cmd.ProcessState.ExitCode(), TimedOut: timedOut, Took: time.Since(p.started),
		}
		if timedOut {
			p.result.Stderr += fmt.Sprintf("\n(killed: it did not end within %s)", p.timeout)
		}
	}()
	return p, nil
}

// Wait waits for the end of the process.
func (p *Process) Wait() Result {
	<-p.done
	return p.result
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process, as Ctrl-C sends os.Interrupt.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Stdout returns what the process has printed so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process has printed to standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// limitedBuffer keeps the first half and the last half of maxOutput bytes.
type limitedBuffer struct {
	mu      sync.Mutex
	head    bytes.Buffer
	tail    []byte
	dropped int
}

func (b *limitedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(data)
	if room := maxOutput/2 - b.head.Len(); room > 0 {
		take := min(room, len(data))
		b.head.Write(data[:take])
		data = data[take:]
	}
	b.tail = append(b.tail, data...)
	if over := len(b.tail) - maxOutput/2; over > 0 {
		b.dropped += over
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	return n, nil
}

func (b *limitedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped == 0 {
		return b.head.String() + string(b.tail)
	}
	return fmt.Sprintf("%s\n... %d bytes left out ...\n%s", b.head.String(), b.dropped, b.tail)
}
