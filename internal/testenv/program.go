package testenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/k8s-go/workshop/internal/cluster"
)

// A ProgramOption changes a program's source for one build, by an overlay. The
// files of the clone stay as they are.
type ProgramOption struct {
	file     string // relative to the program's folder
	old, new string
	add      bool
}

// Replace replaces a piece of one of the program's files, such as "main.go". The
// build fails unless the file holds the piece exactly once: a test must not go
// on with a program that it has not changed.
func Replace(file, old, new string) ProgramOption {
	return ProgramOption{file: file, old: old, new: new}
}

// AddFile adds a file to the program's folder.
func AddFile(file, source string) ProgramOption {
	return ProgramOption{file: file, new: source, add: true}
}

// A program is built once per run, by the first test that asks for it.
type program struct {
	once sync.Once
	path string
	err  error
}

// Program builds the main package at a path relative to the root of the clone,
// such as "./02-clientset/nodes", and returns the binary's path. The binary is
// kept below .workshop, so that the next run links only what has changed.
func (e *Env) Program(pkg string, options ...ProgramOption) string {
	e.t.Helper()
	s := e.suite
	key := programKey(pkg, options)
	s.mu.Lock()
	p := s.programs[key]
	if p == nil {
		p = &program{}
		s.programs[key] = p
	}
	s.mu.Unlock()
	p.once.Do(func() {
		p.path, p.err = buildProgram(s.ctx, s.ws.Root, s.ws.State("programs", key), pkg, options)
	})
	if p.err != nil {
		e.t.Fatal(p.err)
	}
	return p.path
}

// programKey names the folder of a program's binary. It changes with the
// options and with GOFLAGS=-race, and not with the sources: a new binary takes
// the place of the old one.
func programKey(pkg string, options []ProgramOption) string {
	name := strings.NewReplacer("./", "", "/", "-").Replace(pkg)
	flags := os.Getenv("GOFLAGS")
	if flags == "" && len(options) == 0 {
		return name
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %#v", flags, options))
	return name + "-" + hex.EncodeToString(sum[:])[:8]
}

// buildProgram builds a program in a folder of its own. Without a change go
// build finds the binary to be current, and links nothing. The lock is for the
// tests of other packages, which may want the same program at the same time.
func buildProgram(ctx context.Context, root, dir, pkg string, options []ProgramOption) (binary string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return "", fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	now := time.Now()
	if err := os.Chtimes(lock.Path(), now, now); err != nil { // see pruneUnused
		return "", err
	}
	// The binary has the name that go run gives it: clients send it as their user agent.
	binary = filepath.Join(dir, path.Base(pkg))
	// No symbol table: linking takes a third less, and stack traces stay whole.
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary}
	if len(options) > 0 {
		overlay, err := writeOverlay(dir, filepath.Join(root, pkg), options)
		if err != nil {
			return "", fmt.Errorf("changing %s: %w", pkg, err)
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	// An interrupt, not a kill: go removes its temporary folder then.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, output)
	}
	return binary, nil
}

// writeOverlay writes the changed sources to dir, with the file that tells go
// build which of the program's files they stand for, and returns its path.
func writeOverlay(dir, source string, options []ProgramOption) (string, error) {
	changed := map[string]string{}
	for _, o := range options {
		file := filepath.Join(source, o.file)
		text, seen := changed[file]
		if !seen {
			data, err := os.ReadFile(file)
			if err != nil && !(o.add && errors.Is(err, os.ErrNotExist)) {
				return "", err
			}
			text = string(data)
		}
		switch {
		case o.add && text != "":
			return "", fmt.Errorf("%s is there already", file)
		case o.add:
			changed[file] = o.new
		default:
			if n := strings.Count(text, o.old); n != 1 {
				return "", fmt.Errorf("%s holds %d times, not once, what is to be replaced:\n%s", file, n, o.old)
			}
			changed[file] = strings.Replace(text, o.old, o.new, 1)
		}
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for file, text := range changed {
		copied := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
			return "", err
		}
		overlay.Replace[file] = copied
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o644)
}

// pruneUnused removes those of the programs below dir that nobody has asked for
// since then, such as those with a change that no test makes any more.
func pruneUnused(dir string, since time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if info, err := os.Stat(filepath.Join(path, "lock")); err == nil && info.ModTime().Before(since) {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
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
	if s.provider != nil {
		environ = cluster.Environ(s.ws, s.provider)
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
