package xray

import (
	"embed"
	"io/fs"
)

// The scripts of the tours, and what to look at while they run.
//
//go:embed tours
var tours embed.FS

// Tour returns the command of a tour, for a terminal at the root of the clone.
func (*Hub) Tour(name string) (command string, ok bool) {
	script := "tours/" + name + ".sh"
	_, err := fs.Stat(tours, script)
	return "bash internal/xray/" + script, err == nil
}
