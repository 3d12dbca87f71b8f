// Package proc runs child processes. Each gets a process group of its own, so
// that an interrupt reaches it once and nothing that it started outlives it.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Cmd says what to run.
type Cmd struct {
	Path string // the program: a path, or a name that is looked up on PATH
	Args []string
	Dir  string    // where it starts; empty for the current directory
	Env  []string  // as in exec.Cmd: nil for this process's own
	In   io.Reader // standard input; nil for none

	// Out and Err receive its output. What has no writer is kept in memory, at
	// most MaxOutput bytes of each, for Process.Stdout, Process.Stderr and Error.
	Out, Err io.Writer

	// When ctx ends, the whole group gets Signal (unset: SIGINT) and is killed
	// if the process is still there after Grace. Without Grace it is killed at once.
	Signal syscall.Signal
	Grace  time.Duration

	// Session gives it a session of its own as well. All that it starts stays in
	// there, also what makes itself a process group; see Process.KillSession.
	Session bool

	// Terminal is the controlling terminal of that session, and takes the place of
	// In, Out and Err.
	Terminal *os.File
}

// String is what an error calls the command: its name and its first argument.
func (c Cmd) String() string {
	name := filepath.Base(c.Path)
	if len(c.Args) > 0 {
		name += " " + c.Args[0]
	}
	return name
}

// An Error is the failure of a command with the end of what it printed.
type Error struct {
	Cmd    Cmd
	Err    error  // an *exec.ExitError if it ran
	Output string // standard error, else standard output; empty if writers received them
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v", e.Cmd, e.Err)
	switch output := strings.TrimSpace(e.Output); {
	case output == "":
		return text
	case strings.Contains(output, "\n"):
		return text + "\n" + output
	default:
		return text + ": " + output
	}
}

func (e *Error) Unwrap() error { return e.Err }

// Run runs a command to its end. The error is the context's own if ctx ended
// the command, and an *Error if the command failed by itself.
func Run(ctx context.Context, c Cmd) error {
	p, err := Start(ctx, c)
	if err != nil {
		return err
	}
	return p.Wait()
}

// Output runs a command and returns its standard output, unlike Run an error
// also if that was longer than MaxOutput.
func Output(ctx context.Context, c Cmd) (string, error) {
	c.Out = nil
	p, err := Start(ctx, c)
	if err != nil {
		return "", err
	}
	if err := p.Wait(); err != nil {
		return "", err
	}
	if n := p.stdout.Dropped(); n > 0 {
		return "", &Error{Cmd: c, Err: fmt.Errorf("its output is %d bytes too long", n)}
	}
	return p.Stdout(), nil
}

// drain is how long output is still read once the process has ended, if
// something that it left behind keeps its output open.
const drain = time.Second

// A Process is a command that was started.
type Process struct {
	cmd            Cmd
	exec           *exec.Cmd
	stdout, stderr *Buffer // nil where Cmd has a writer
	done           chan struct{}
	err            error
}

// Start starts a command. It ends by itself or with ctx; either way everything
// else in its process group is killed then. Wait need not be called.
func Start(ctx context.Context, c Cmd) (*Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := &Process{cmd: c, exec: exec.Command(c.Path, c.Args...), done: make(chan struct{})}
	p.exec.Dir, p.exec.Env, p.exec.Stdin = c.Dir, c.Env, c.In
	p.exec.Stdout, p.exec.Stderr = c.Out, c.Err
	if c.Out == nil {
		p.stdout = &Buffer{}
		p.exec.Stdout = p.stdout
	}
	if c.Err == nil {
		p.stderr = &Buffer{}
		p.exec.Stderr = p.stderr
	}
	p.exec.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.Session, Setsid: c.Session} // a new session is a new group, too
	if c.Terminal != nil {
		p.exec.Stdin, p.exec.Stdout, p.exec.Stderr = c.Terminal, c.Terminal, c.Terminal
		p.exec.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	p.exec.WaitDelay = drain
	if err := p.exec.Start(); err != nil {
		return nil, &Error{Cmd: c, Err: err}
	}
	exited := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watch(ctx, exited)
	}()
	go func() {
		defer close(p.done)
		err := p.exec.Wait()
		close(exited)
		<-watched
		p.signalGroup(syscall.SIGKILL) // what it left behind
		p.err = p.result(ctx, err)
	}()
	return p, nil
}

// watch ends the process with ctx.
func (p *Process) watch(ctx context.Context, exited <-chan struct{}) {
	select {
	case <-exited:
		return
	case <-ctx.Done():
	}
	if p.cmd.Grace > 0 {
		signal := p.cmd.Signal
		if signal == 0 {
			signal = syscall.SIGINT
		}
		p.signalGroup(signal)
		timer := time.NewTimer(p.cmd.Grace)
		defer timer.Stop()
		select {
		case <-exited:
			return
		case <-timer.C:
		}
	}
	p.Kill()
}

func (p *Process) result(ctx context.Context, err error) error {
	// Something that it left behind kept the output open: no failure of its own.
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	output := p.Stderr()
	if strings.TrimSpace(output) == "" {
		output = p.Stdout()
	}
	return &Error{Cmd: p.cmd, Err: err, Output: output}
}

// Wait waits until the process and its group have ended; see Run for the error.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Done is closed when the process and its group have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Pid is the number of the process, and of its group.
func (p *Process) Pid() int { return p.exec.Process.Pid }

// ExitCode is what the process ended with, -1 if that was a signal or if it has
// not ended yet.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.exec.ProcessState.ExitCode()
	default:
		return -1
	}
}

// ShellCode is what a shell, and a kubelet, call the end of the process: its exit code, or 128
// and the number of the signal that has ended it; -1 if it has not ended yet.
func (p *Process) ShellCode() int {
	code := p.ExitCode()
	if p.Ended() {
		if status, ok := p.exec.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
	}
	return code
}

// Signal sends a signal to the process alone, as Ctrl-C sends os.Interrupt.
func (p *Process) Signal(sig os.Signal) error { return p.exec.Process.Signal(sig) }

// Kill ends the process and everything in its group at once.
func (p *Process) Kill() {
	select {
	case <-p.done: // its number may be somebody else's by now
	default:
		p.signalGroup(syscall.SIGKILL)
	}
}

// signalGroup cannot fail in a way that matters: the group is ours, or gone.
func (p *Process) signalGroup(sig syscall.Signal) { _ = syscall.Kill(-p.Pid(), sig) }

// Stdout returns what the process has printed so far, unless Cmd.Out gets it.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what it has printed to standard error so far, unless Cmd.Err gets it.
func (p *Process) Stderr() string { return p.stderr.String() }

// Quoted returns s as one word for bash and zsh.
func Quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// LastLines returns the last n lines of s, without space around them.
func LastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
