package web

import (
	"bytes"
	"regexp"
	"strings"
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
	// What moves nothing within a line: commands to the screen and to the keyboard, colours, titles.
	escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-JL-~]|\\][^\a\x1b]*(?:\a|\x1b\\\\)|[ -/]*[0-Z\\\\^-~])")
	// What an interactive shell says about its jobs, and the shell of the runner does not.
	job = regexp.MustCompile(`^\[\d+\](?: \d+$|[+-]? +(?:Running|Done|Exit|Terminated|Killed|Hangup|Interrupt|Stopped)\b)`)
)

// plain returns the lines that a terminal shows, without colours and the shell's
// words about its jobs.
func plain(output string) []string {
	output = escapes.ReplaceAllString(strings.ReplaceAll(output, "\r\n", "\n"), "")
	var lines []string
	for line := range strings.Lines(output) {
		if line = overwritten(strings.TrimSuffix(line, "\n")); !job.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// overwritten is what is left of a line in which the cursor has gone back.
func overwritten(line string) string {
	if !strings.ContainsAny(line, "\r\b\x1b") {
		return line
	}
	var cells []rune
	at := 0
	text := []rune(line)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\r':
			at = 0
		case '\b':
			at = max(at-1, 0)
		case '\x1b': // ESC [ K, the only one that escapes leaves, ends the line here
			if i+2 < len(text) && text[i+1] == '[' && text[i+2] == 'K' {
				cells = cells[:min(at, len(cells))]
				i += 2
			}
		default:
			if at == len(cells) {
				cells = append(cells, c)
			} else {
				cells[at] = c
			}
			at++
		}
	}
	return string(cells)
}
