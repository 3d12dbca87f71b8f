package readme

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/terminal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Runner executes READMEs.
type Runner struct {
	Dir     string        // where the shell starts: the root of the clone
	Env     []string      // the shell's environment, as in exec.Cmd
	Show    io.Writer     // commands and output as a person would see them; nil for none
	Update  bool          // rewrite excerpts, and expected outputs instead of failing
	Timeout time.Duration // the longest that one command may take; 5 minutes if zero: a first go build is slow
}

// A Summary says what was run.
type Summary struct {
	Title    string
	Blocks   int // console blocks that were run
	Commands int
	ByHand   int // console blocks left to the reader
	Updated  int // expected outputs and excerpts that were rewritten
}

// Add returns the sum of both, with the title of the first that has one.
func (s Summary) Add(more Summary) Summary {
	return Summary{cmp.Or(s.Title, more.Title), s.Blocks + more.Blocks, s.Commands + more.Commands, s.ByHand + more.ByHand, s.Updated + more.Updated}
}

// A Mismatch is a command that did not do what the README says.
type Mismatch struct {
	File     string
	Command  Command
	Got      []string
	ExitCode int
}

func (m *Mismatch) Error() string {
	show := func(lines []string, exit int) string {
		lines = slices.Clone(lines)
		if exit != 0 {
			lines = append(lines, fmt.Sprintf("[exit status %d]", exit))
		}
		if len(lines) == 0 {
			lines = []string{"(no output)"}
		}
		return "    " + strings.Join(lines, "\n    ")
	}
	return fmt.Sprintf("%s:%d: $ %s\n  wanted:\n%s\n  got:\n%s", m.File, m.Command.Line, m.Command.Text,
		show(m.Command.Want, m.Command.ExitCode), show(m.Got, m.ExitCode))
}

// Run executes the blocks of the README at path in order and stops at the
// first command that does not print what it should; the error is then a
// *Mismatch. Whatever the README left running in its shell is ended.
func (r Runner) Run(ctx context.Context, path string) (summary Summary, err error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return Summary{}, err
	}
	if r.Update {
		var drifted []string
		if source, drifted, err = Excerpts(r.Dir, source); err != nil {
			return Summary{}, fmt.Errorf("%s: %w", path, err)
		}
		if summary.Updated = len(drifted); summary.Updated > 0 {
			if err := os.WriteFile(path, source, 0o644); err != nil {
				return Summary{}, err
			}
		}
	}
	doc, err := Parse(source)
	if err != nil {
		return Summary{}, fmt.Errorf("%s: %w", path, err)
	}
	summary.Title = doc.Title
	show := r.Show
	if show == nil {
		show = io.Discard
	}
	sh, err := r.start(ctx, show)
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, sh.close()) }()

	type edit struct {
		start, end int
		lines      []string
	}
	var edits []edit
	section := ""
	for _, block := range doc.Blocks {
		if block.Section != section {
			section = block.Section
			fmt.Fprintf(show, "\n%s\n", terminal.Bold.Paint(show, section))
		}
		if block.ByHand {
			summary.ByHand++
			fmt.Fprintf(show, "\n(line %d: by hand, not run)\n", block.Line)
			continue
		}
		summary.Blocks++
		for _, c := range block.Commands {
			summary.Commands++
			fmt.Fprintf(show, "\n%s\n", terminal.Cyan.Paint(show, "$ "+strings.ReplaceAll(c.Text, "\n", "\n> ")))
			got, exit, err := sh.run(c.Text)
			if err != nil {
				return summary, fmt.Errorf("%s:%d: $ %s: %w", path, c.Line, c.Text, err)
			}
			if c.Difference(got, exit) == "" {
				continue
			}
			if !r.Update {
				return summary, &Mismatch{File: path, Command: c, Got: got, ExitCode: exit}
			}
			lines := rewrite(c.Want, got)
			if exit != 0 {
				lines = append(lines, fmt.Sprintf("[exit status %d]", exit))
			}
			edits = append(edits, edit{c.wantStart, c.wantEnd, lines})
			summary.Updated++
		}
	}
	if len(edits) == 0 {
		return summary, nil
	}
	lines := strings.Split(string(source), "\n")
	for _, e := range slices.Backward(edits) {
		lines = slices.Replace(lines, e.start, e.end, e.lines...)
	}
	return summary, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644)
}

// shell is a bash, or a zsh, that takes one command after the other.
type shell struct {
	ctx     context.Context
	stop    context.CancelFunc // ends bash and all that it left running
	process *proc.Process
	stdin   *os.File
	lines   chan string
	dir     string // for the commands as files, and TMPDIR of the shell
	mark    string
	timeout time.Duration
	show    io.Writer
	n       int
}

// Environment returns the environment of a lesson's shell: env without what
// would lead it astray, with dir for temporary files and for the ~/.curlrc that curl finds.
func Environment(env []string, dir string) []string {
	return append(workspace.ForLessons(env), "TMPDIR="+dir, "CURL_HOME="+dir, "KUBERC=off", "TERM=dumb", "NO_COLOR=1", "LC_ALL=C", "TZ=UTC")
}

// ShellVariable, set to zsh, has READMEs run in that shell, which many readers have, and not in bash.
const ShellVariable = "LESSON_SHELL"

func (r Runner) start(ctx context.Context, show io.Writer) (_ *shell, err error) {
	s := &shell{ctx: ctx, timeout: r.Timeout, show: show, mark: fmt.Sprintf("--%d-%d--", os.Getpid(), time.Now().UnixNano()), lines: make(chan string)}
	if s.timeout == 0 {
		s.timeout = 5 * time.Minute
	}
	if s.dir, err = os.MkdirTemp("", "readme-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	if err := os.WriteFile(filepath.Join(s.dir, ".curlrc"), nil, 0o600); err != nil {
		return nil, err
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close() // bash has its own
	s.stdin = stdin
	out, output := io.Pipe()
	path, args := "bash", []string{"--noprofile", "--norc"}
	if os.Getenv(ShellVariable) == "zsh" {
		path, args = "zsh", []string{"-f", "-o", "interactivecomments"}
	}
	ctx, s.stop = context.WithCancel(ctx)
	s.process, err = proc.Start(ctx, proc.Cmd{
		Path: path, Args: args, Dir: r.Dir, Env: Environment(r.Env, s.dir),
		In: in, Out: output, Err: output,
		Signal: syscall.SIGTERM, Grace: 2 * time.Second, // bash runs its EXIT trap
	})
	if err != nil {
		s.stop()
		return nil, errors.Join(err, stdin.Close())
	}
	go func() {
		<-s.process.Done()
		_ = output.Close()
	}()
	go func() {
		defer close(s.lines)
		// A reader without a limit on the length of a line: an API answers
		// in one line what may be many kilobytes.
		reader := bufio.NewReader(out)
		for {
			line, err := reader.ReadString('\n')
			if line != "" {
				s.lines <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	return s, nil
}

// run executes one command and returns its output and exit code.
func (s *shell) run(command string) (output []string, exitCode int, err error) {
	s.n++
	file := filepath.Join(s.dir, fmt.Sprintf("command-%d", s.n))
	if err := os.WriteFile(file, []byte(command+"\n"), 0o600); err != nil {
		return nil, 0, err
	}
	// Sourced, so that variables and functions stay; with no standard input,
	// so that no command can eat the next one.
	if _, err := fmt.Fprintf(s.stdin, ". %s </dev/null\nprintf '\\n%%s %%d\\n' %s $?\n", proc.Quoted(file), s.mark); err != nil {
		return nil, 0, fmt.Errorf("the shell has ended: %w", err)
	}
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	// The line before the mark ends with the newline that the mark brought;
	// a line is shown once the next one proves that it is not that one.
	pending := ""
	for first := true; ; first = false {
		select {
		case <-s.ctx.Done():
			return output, 0, s.ctx.Err()
		case <-timer.C:
			return output, 0, fmt.Errorf("no end after %s; output so far:\n%s", s.timeout, strings.Join(append(output, pending), "\n"))
		case line, open := <-s.lines:
			if !open {
				return output, 0, fmt.Errorf("the command ended the shell; output so far:\n%s", strings.Join(append(output, pending), "\n"))
			}
			if code, ok := strings.CutPrefix(line, s.mark+" "); ok {
				if pending != "" {
					fmt.Fprintln(s.show, pending)
					output = append(output, pending)
				}
				exitCode, err = strconv.Atoi(code)
				return output, exitCode, err
			}
			if !first {
				fmt.Fprintln(s.show, pending)
				output = append(output, pending)
			}
			pending = line
		}
	}
}

// close ends the shell, and removes its folder.
func (s *shell) close() error {
	err := s.stdin.Close()
	s.stop()
	for range s.lines { // bash may still be printing
	}
	<-s.process.Done()
	return errors.Join(err, os.RemoveAll(s.dir))
}
