package readme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
)

// md writes Markdown with ”' for the fences that a Go string cannot hold.
func md(s string) string { return strings.ReplaceAll(s, "'''", "```") }

func run(t *testing.T, r Runner, markdown string) (Summary, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "README.md")
	fatal.If(t, os.WriteFile(path, []byte(md(markdown)), 0o644))
	r.Env = os.Environ()
	r.Dir = t.TempDir()
	summary, err := r.Run(context.Background(), path)
	after, readErr := os.ReadFile(path)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return summary, string(after), err
}

func TestParse(t *testing.T) {
	doc, err := Parse([]byte(md(`# Title of the lesson

## 1. First

'''console
$ echo one \
    two
one two
$ cat <<EOF
> text
> EOF
text
[exit status 3]
'''

'''yaml
kind: Pod
'''

**By hand**, in a second terminal:

'''console
$ top
'''
`)))
	fatal.If(t, err)
	if doc.Title != "Title of the lesson" || len(doc.Blocks) != 2 {
		t.Fatalf("title %q, %d blocks", doc.Title, len(doc.Blocks))
	}
	first := doc.Blocks[0]
	if first.Line != 5 || first.Section != "1. First" || first.ByHand {
		t.Errorf("first block: line %d, section %q, by hand %v", first.Line, first.Section, first.ByHand)
	}
	type command struct {
		Line, Exit int
		Text       string
		Want       []string
	}
	var got []command
	for _, c := range first.Commands {
		got = append(got, command{c.Line, c.ExitCode, c.Text, c.Want})
	}
	want := []command{
		{6, 0, "echo one \\\n    two", []string{"one two"}},
		{9, 3, "cat <<EOF\ntext\nEOF", []string{"text"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commands differ (-want +got):\n%s", diff)
	}
	if !doc.Blocks[1].ByHand {
		t.Error("the block after **By hand** would be run")
	}
}

func TestParseRefusesOutputWithoutCommand(t *testing.T) {
	_, err := Parse([]byte(md("text\n\n'''console\nkubectl get pods\n'''\n")))
	if err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("error = %v, want one that names line 4", err)
	}
}

func difference(want, got []string) string { return Command{Want: want}.Difference(got, 0) }

const watchEnded = `I1121 22:08:54.429671     565 reflector.go:664] "Warning: watch ended with error" reflector="cache/reflector.go:343" err="unable to decode an event from the watch stream: %s"`

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		name, want, got string
		match           bool
	}{
		{"same", "a\nb", "a\nb", true},
		{"other", "a\nb", "a\nc", false},
		{"missing line", "a\nb", "a", false},
		{"extra line", "a", "a\nb", false},
		{"pattern characters are literal", "a.b (c)", "axb (c)", false},
		{"dots alone leave out lines", "a\n...\nz", "a\nb\nc\nz", true},
		{"dots alone leave out none", "a\n...\nz", "a\nz", true},
		{"dots do not leave out the end", "a\n...\nz", "a\nb", false},
		{"dots at the end", "a\n...", "a\nb\nc", true},
		{"dots in a line are literal", "wait ...", "wait for it", false},
		{"columns move", "NAME   READY", "NAME      READY", true},
		{"one space is one space", "a b", "a  b", false},
		{"uid", "uid: <uid>", "uid: 6f1e9b0c-2a5d-4b43-9d2e-0f6a8f7c1b2d", true},
		{"not a uid", "uid: <uid>", "uid: none", false},
		{"time", `"<time>"`, `"2026-11-21T09:13:07Z"`, true},
		{"resourceVersion", "rv <rv>.", "rv 1234.", true},
		{"resourceVersion is a number", "rv <rv>", "rv new", false},
		{"age", "node  Ready  <age>", "node   Ready   3m12s", true},
		{"unknown placeholder is literal", "<name>", "web", false},
		{"unknown placeholder as it stands", "<name>", "<name>", true},
		{"trailing space", "a", "a  ", true},
		{"a module that this machine did not have yet", "PASS", "go: downloading github.com/google/go-cmp v0.7.0\nPASS", true},
		{"a toolchain, too", "PASS", "go: downloading go1.26.9 (linux/amd64)\nPASS", true},
		{"what only looks like one", "PASS", "go: downloading failed\nPASS", false},
		{"a watch that the program's end cut", "a\nb", "a\n" + fmt.Sprintf(watchEnded, "context canceled") + "\nb", true},
		{"a watch that something else cut", "a\nb", "a\n" + fmt.Sprintf(watchEnded, "connection reset by peer") + "\nb", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := difference(strings.Split(tc.want, "\n"), strings.Split(tc.got, "\n")); (got == "") != tc.match {
				t.Errorf("%q and %q: %q, want a match: %v", tc.want, tc.got, got, tc.match)
			}
		})
	}
	if d := difference(nil, []string{"go: downloading k8s.io/gengo/v2 v2.0.0-20251215205346-5ee0d033ba5b", "go: downloading golang.org/x/mod v0.42.0"}); d != "" {
		t.Errorf("modules that are fetched where no output is expected: %s", d)
	}
	if difference(nil, []string{"surprise"}) == "" {
		t.Error("output where none is expected was accepted")
	}
}

// A hundred times "..." before a line that never comes: this must not try every
// way to share the output out among them.
func TestMatchIsQuick(t *testing.T) {
	var want []string
	for range 100 {
		want = append(want, "...", "<word>")
	}
	want = append(want, "...", "the end")
	if difference(want, slices.Repeat([]string{"word"}, 2000)) == "" {
		t.Error("matches without the last line")
	}
}

func TestRewrite(t *testing.T) {
	for _, tc := range []struct {
		name, want, got, result string
	}{
		{"dots stay where a line after them changed", "a\n...\ny", "a\nb\nc\nz", "a\n...\nz"},
		{"dots stay where a line before them changed", "a\n...\ny", "b\n1\n2\ny", "b\n...\ny"},
		{"lines that changed places", "x <n>\ny <n>", "y 5\nx 7", "y <n>\nx <n>"},
		{"lines that changed places around dots", "x <n>\n...\ny <n>", "y 5\n1\n2\nx 7", "y <n>\n...\nx <n>"},
		{"dots that leave out nothing any more", "a\n...\nz", "a\nb", "a\n...\nb"},
		{"dots around a line that went become one", "a\n...\nb\n...\nz", "a\nz", "a\n...\nz"},
		{"dots alone fit everything", "...", "a\nb", "..."},
		{"a new line", "a\nb <n>", "a\nnew\nb 1", "a\nnew\nb <n>"},
		{"a line that went", "a\nb\nc <n>", "a\nc 3", "a\nc <n>"},
		{"all new", "a", "x\ny", "x\ny"},
		{"nothing any more", "a\n...", "", "..."},
		{"unmistakable shapes", "a", `{"resourceVersion":"12"} https://127.0.0.1:6443 2026-11-21T09:13:07Z`, `{"resourceVersion":"<rv>"} <server> <time>`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, got := strings.Split(tc.want, "\n"), strings.Split(tc.got, "\n")
			if tc.got == "" {
				got = nil
			}
			result := rewrite(want, got)
			if diff := cmp.Diff(strings.Split(tc.result, "\n"), result); diff != "" {
				t.Errorf("rewritten (-want +got):\n%s", diff)
			}
			if d := difference(result, got); d != "" {
				t.Errorf("what was rewritten, %q, does not match %q: %s", result, got, d)
			}
		})
	}
}

// Nothing that a person has set for their own shell changes what a lesson prints.
func TestRunOnAnOddMachine(t *testing.T) {
	home, tmp := t.TempDir(), filepath.Join(t.TempDir(), "it's a folder")
	fatal.If(t, os.MkdirAll(filepath.Join(tmp, "sub"), 0o755))
	for name, text := range map[string]string{
		".curlrc": "include\nproxy = http://127.0.0.1:1\n",
		"rc":      "echo disturbed\n",
	} {
		fatal.If(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o600))
	}
	for name, value := range map[string]string{
		"TMPDIR": tmp, "HOME": home, "BASH_ENV": filepath.Join(home, "rc"), "ENV": filepath.Join(home, "rc"), "SHELLOPTS": "xtrace",
		"CDPATH": tmp, "LANG": "de_DE.UTF-8", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PROMPT_COMMAND": "echo disturbed",
		"BASH_FUNC_pwd%%": "() { echo disturbed; }", "TMOUT": "1", "WORKSHOP_NAMESPACE": "theirs",
	} {
		t.Setenv(name, value)
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	_, _, err := run(t, Runner{}, `
'''console
$ mkdir sub && cd sub && pwd | sed 's|.*/||'
sub
$ bash -c 'echo a child of the shell'
a child of the shell
$ date -d @0 +%H:%M 2>/dev/null || date -r 0 +%H:%M
00:00
$ echo text >file && curl --silent "file://$PWD/file"
text
$ printf 'b\nA\na\nB\n' | sort | tr '\n' ' '
A B a b 
$ [ -w "$TMPDIR" ] && echo ${WORKSHOP_NAMESPACE-ours}
ours
'''
`)
	if err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 1 {
		t.Errorf("in TMPDIR, where only sub was: %v (%v)", left, err)
	}
}

// A lesson that is shown where there is no terminal has no escape sequences.
func TestShowWithoutColors(t *testing.T) {
	var shown bytes.Buffer
	_, _, err := run(t, Runner{Show: &shown}, "# Title\n\n## Part\n\n'''console\n$ echo x\nx\n'''\n")
	fatal.If(t, err)
	if want := "\nPart\n\n$ echo x\nx\n"; shown.String() != want {
		t.Errorf("shown: %q, want %q", shown.String(), want)
	}
}

func TestRunInOneShell(t *testing.T) {
	summary, _, err := run(t, Runner{}, `
'''console
$ x=41; add() { echo $((x + $1)); }
$ cd / && pwd
/
'''

**By hand:**

'''console
$ exit 7
'''

'''console
$ add 1
42
$ pwd
/
$ printf 'no newline'
no newline
$ printf 'blank line next\n\n'
blank line next

$ read line || echo "no standard input"
no standard input
$ echo to stderr >&2; false
to stderr
[exit status 1]
$ for i in 1 2
> do echo $i
> done
1
2
'''
`)
	fatal.If(t, err)
	if want := (Summary{Blocks: 2, Commands: 9, ByHand: 1}); summary != want {
		t.Errorf("summary %+v, want %+v", summary, want)
	}
}

func TestRunReportsMismatch(t *testing.T) {
	for name, tc := range map[string]struct{ block, want string }{
		"output":             {"$ echo got\nwanted", "README.md:3: $ echo got\n  wanted:\n    wanted\n  got:\n    got"},
		"unexpected failure": {"$ false", "wanted:\n    (no output)\n  got:\n    [exit status 1]"},
		"missing failure":    {"$ true\n[exit status 1]", "wanted:\n    [exit status 1]\n  got:\n    (no output)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, Runner{}, "\n'''console\n"+tc.block+"\n'''\n")
			var mismatch *Mismatch
			if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v\nwant a Mismatch that contains %q", err, tc.want)
			}
		})
	}
}

func TestRunStopsWhatHangs(t *testing.T) {
	_, _, err := run(t, Runner{Timeout: 2 * time.Second}, "\n'''console\n$ echo before; sleep 60\n'''\n")
	if err == nil || !strings.Contains(err.Error(), "no end after 2s") || !strings.Contains(err.Error(), "before") {
		t.Errorf("error = %v, want a time-out with the output so far", err)
	}
	_, _, err = run(t, Runner{}, "\n'''console\n$ echo before; exit 4\n'''\n")
	if err == nil || !strings.Contains(err.Error(), "ended the shell") {
		t.Errorf("error = %v, want one that says that the shell ended", err)
	}
}

func TestRunLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PIDFILE", filepath.Join(dir, "pid"))
	_, _, err := run(t, Runner{}, "\n'''console\n$ sleep 600 & echo $! >$PIDFILE\n'''\n")
	fatal.If(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "pid"))
	fatal.If(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	fatal.If(t, err)
	for deadline := time.Now().Add(5 * time.Second); ; {
		// Gone, or a zombie that nobody has collected yet.
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if syscall.Kill(pid, 0) != nil || err == nil && bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d of the README still runs", pid)
		}
	}
}

func TestUpdate(t *testing.T) {
	summary, after, err := run(t, Runner{Update: true}, `text

'''console
$ echo right
right
$ echo new; echo id 6f1e9b0c-2a5d-4b43-9d2e-0f6a8f7c1b2d; echo node-1 is up
old
<node> is up
$ false
'''

the end
`)
	fatal.If(t, err)
	want := md(`text

'''console
$ echo right
right
$ echo new; echo id 6f1e9b0c-2a5d-4b43-9d2e-0f6a8f7c1b2d; echo node-1 is up
new
id <uid>
<node> is up
$ false
[exit status 1]
'''

the end
`)
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("updated README differs (-want +got):\n%s", diff)
	}
	if summary.Updated != 2 {
		t.Errorf("%d commands updated, want 2", summary.Updated)
	}
}

// A run that updates brings the excerpts up to date, too; one that does not leaves them to make verify.
func TestUpdateExcerpts(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "README.md")
	old, want := "# T\n\n<!-- code: main.go func main -->\n```go\nold\n```\n", "# T\n\n<!-- code: main.go func main -->\n```go\nfunc main() {}\n```\n"
	for name, text := range map[string]string{"main.go": "package main\n\nfunc main() {}\n", "README.md": old} {
		fatal.If(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	for update, want := range map[bool]string{false: old, true: want} {
		fatal.If(t, os.WriteFile(path, []byte(old), 0o600))
		summary, err := Runner{Dir: root, Env: os.Environ(), Update: update}.Run(t.Context(), path)
		fatal.If(t, err)
		after, err := os.ReadFile(path)
		fatal.If(t, err)
		if string(after) != want || (summary.Updated == 1) != update {
			t.Errorf("update %v: %d updated:\n%s", update, summary.Updated, after)
		}
	}
}

func TestDifference(t *testing.T) {
	c := Command{Want: []string{"one", "...", "<uid>", "end"}, ExitCode: 2}
	const uid = "0b1f9f5e-7c0e-4c53-9a55-2f4f0c1f3a11"
	for _, tc := range []struct {
		got  string
		exit int
		want string
	}{
		{"one " + uid + " end", 2, ""},
		{"one x y " + uid + " end", 2, ""},
		{"one " + uid + " end", 0, "The lesson expects exit status 2, and the command ended with 0."},
		{"two", 2, `Line 1: the lesson expects "one", and the command printed "two".`},
		{"", 2, `Line 1: the lesson expects "one", and the command printed the end of the output.`},
		{"one " + uid, 2, `Line 3: the lesson expects "end", and the command printed the end of the output.`},
		{"one " + uid + " " + strings.Repeat("x", 1000), 2, `Line 3: the lesson expects "end", and the command printed "` + strings.Repeat("x", 200) + `" and so on.`},
	} {
		if got := c.Difference(strings.Fields(tc.got), tc.exit); got != tc.want {
			t.Errorf("%q and exit status %d: %s\nwant %s", tc.got, tc.exit, got, tc.want)
		}
	}
	if got := (Command{}).Difference([]string{"surprise"}, 0); got != `Line 1: the lesson expects the end of the output, and the command printed "surprise".` {
		t.Errorf("no output is expected: %s", got)
	}
}
