package web

import (
	"crypto/sha1"
	"embed"
	"fmt"
	"html"
)

// The diagrams of the lessons as pictures, which scripts/update-diagrams.sh has made.
//
//go:embed diagrams
var diagrams embed.FS

// diagram returns the picture of a mermaid block. Its name is Git's hash of the text.
func diagram(text string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	picture, err := diagrams.ReadFile(fmt.Sprintf("diagrams/%x.svg", sum))
	if err != nil { // somebody is writing this lesson
		return "<pre>" + html.EscapeString(text) + "</pre>"
	}
	return string(picture)
}
