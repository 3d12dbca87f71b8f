package web

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

// marks finds the marks of bashrc in a terminal's output: ESC ] 133 ; TEXT ; NONCE BEL.
// Without the nonce a pod's log could end a command.
type marks struct {
	nonce string
	held  []byte // the beginning of what may be a mark
}

const maxMark = 64

var mark = regexp.MustCompile(`\x1b\]133;([^\a\x1b]{1,50})\a`)

// scan calls f with each mark, and with the output before, between and after them.
func (m *marks) scan(data []byte, f func(mark string, output []byte)) {
	data = append(m.held, data...)
	output := func(data []byte) {
		if len(data) > 0 {
			f("", data)
		}
	}
	at := 0
	for _, found := range mark.FindAllSubmatchIndex(data, -1) {
		text, ours := strings.CutSuffix(string(data[found[2]:found[3]]), ";"+m.nonce)
		if !ours || text == "" {
			continue
		}
		output(data[at:found[0]])
		f(text, nil)
		at = found[1]
	}
	data = data[at:]
	begun := bytes.LastIndexByte(data, 0x1b)
	if begun < len(data)-maxMark || begun < 0 {
		begun = len(data)
	}
	m.held = bytes.Clone(data[begun:])
	output(data[:begun])
}

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
