package web

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/chroma/v2/lexers"
)

// maxFile is more than any file that a lesson speaks of, in bytes.
const maxFile = 1 << 20

// openFile opens a file or a folder of the clone. What Git and the workshop keep to themselves
// is not opened, and no link leads out of the clone.
func openFile(dir, name string) (*os.File, error) {
	if !fs.ValidPath(name) {
		return nil, refuse(http.StatusForbidden, "%q is not a file of the clone.", name)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// A link within the clone may lead to what is not shown, so there must be none on the way.
	for at := name; at != "."; at = path.Dir(at) {
		info, err := root.Lstat(at)
		switch {
		case err != nil:
			return nil, refuse(http.StatusNotFound, "There is no file %s in the clone.", name)
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, refuse(http.StatusForbidden, "%s is a symbolic link. The page shows only files of the clone.", at)
		case !info.IsDir() && !info.Mode().IsRegular():
			return nil, refuse(http.StatusForbidden, "%s is neither a file nor a folder.", at)
		}
	}
	if top, _, _ := strings.Cut(name, "/"); private(top) {
		return nil, refuse(http.StatusForbidden, "The page does not show %s.", top)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return f, nil
}

// private reports whether a name at the root of the clone is not shown. Some file systems
// do not tell small letters from capitals.
func private(name string) bool {
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, ".workshop")
}

// readText reads what has to be text of at most so many bytes.
func readText(name string, from io.Reader, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(text) > most || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, refuse(http.StatusUnsupportedMediaType, "%s is not a text of at most %d KiB. Use an editor of yours for it.", name, most>>10)
	}
	return text, nil
}

// readFile returns a file of the clone as HTML, or the list of a folder.
func (s *Server) readFile(r *http.Request) (any, error) {
	name := path.Clean(strings.TrimSuffix(r.URL.Query().Get("path"), "/"))
	f, err := openFile(s.options.Workspace.Root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text []byte
	if entries, notFolder := f.ReadDir(-1); notFolder != nil {
		text, err = readText(name, f, maxFile)
	} else {
		for _, e := range entries {
			if name != "." || !private(e.Name()) {
				text = fmt.Appendln(text, e.Name())
			}
		}
	}
	if err != nil {
		return nil, err
	}
	lines, err := highlight(lexers.Match(path.Base(name)), string(text))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "<span class=\"line\" id=\"L%d\">%s</span>", i+1, line)
	}
	return map[string]string{"path": name, "html": b.String()}, nil
}
