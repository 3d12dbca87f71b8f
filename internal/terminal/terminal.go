// Package terminal knows what the screen in front of a person can show.
package terminal

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Colors reports whether escape sequences belong into what is written to w: it
// is a terminal, and neither NO_COLOR (https://no-color.org) nor TERM refuses them.
func Colors(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// A Style is how a line stands out where Colors allows it.
type Style string

const (
	Bold  Style = "\x1b[1m"
	Red   Style = "\x1b[31m"
	Green Style = "\x1b[32m"
	Cyan  Style = "\x1b[36m"
)

const reset = "\x1b[0m"

// Paint returns text in the style as w can show it.
func (s Style) Paint(w io.Writer, text string) string {
	if !Colors(w) {
		return text
	}
	return string(s) + text + reset
}
