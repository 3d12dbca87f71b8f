package web

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

// marks finds the marks of bashrc in a terminal's output: ESC ] 133 ; TEXT BEL.
type marks struct {
	held []byte // the beginning of what may be a mark
}

const (
	markStart = "\x1b]133;"
	markEnd   = '\a'
	maxMark   = 64
)

// scan calls f with each mark, and with the output before, between and after them.
func (m *marks) scan(data []byte, f func(mark string, output []byte)) {
	data = append(m.held, data...)
	m.held = nil
	for len(data) > 0 {
		start := bytes.Index(data, []byte(markStart))
		if start < 0 {
			// The end may be the beginning of a mark.
			start = len(data)
			for n := min(len(markStart)-1, len(data)); n > 0; n-- {
				if strings.HasPrefix(markStart, string(data[len(data)-n:])) {
					start -= n
					break
				}
			}
			m.hold(data[start:])
			if start > 0 {
				f("", data[:start])
			}
			return
		}
		if start > 0 {
			f("", data[:start])
		}
		data = data[start:]
		end := bytes.IndexByte(data, markEnd)
		switch {
		case end > len(markStart):
			f(string(data[len(markStart):end]), nil)
			data = data[end+1:]
		case end < 0 && len(data) < maxMark:
			m.hold(data)
			return
		default: // no mark of ours
			f("", data[:len(markStart)])
			data = data[len(markStart):]
		}
	}
}

func (m *marks) hold(data []byte) { m.held = append([]byte(nil), data...) }

var (
	// Colours, titles, and commands to the screen, the cursor and the keyboard.
	escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\a\x1b]*(?:\a|\x1b\\\\)|[ -/]*[0-Z\\\\^-~])")
	// A line that was written again from its beginning.
	again = regexp.MustCompile(`(?m)^.*\r([^\r\n])`)
	// What an interactive shell says about its jobs, and the shell of the runner does not.
	job = regexp.MustCompile(`^\[\d+\](?: \d+$|[+-]? +(?:Running|Done|Exit|Terminated|Killed|Hangup|Interrupt|Stopped)\b)`)
)

// plain returns the lines that a terminal shows, without colours, movements of the
// cursor and the shell's words about its jobs. Programs do not see where a terminal
// wraps a line, so there is nothing to undo.
func plain(output string) (lines []string) {
	output = again.ReplaceAllString(escapes.ReplaceAllString(output, ""), "$1")
	var text []byte
	for _, c := range []byte(output) {
		if c != '\b' {
			text = append(text, c)
		} else if r, n := utf8.DecodeLastRune(text); r != '\n' { // a character was taken back
			text = text[:len(text)-n]
		}
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); !job.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}
