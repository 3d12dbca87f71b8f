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
)

// maxFile is more than any file that a lesson speaks of.
const maxFile = 1 << 20

// openClone opens the clone for a file of it that the page may show.
func openClone(dir, name string) (_ *os.Root, err error) {
	if !fs.ValidPath(name) {
		return nil, refuse(http.StatusForbidden, "%q is not a file of the clone.", name)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = root.Close() // it was only read
		}
	}()
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
	return root, nil
}

// readFile returns a file of the clone as HTML, or the list of a folder. What Git and
// the workshop keep to themselves is not shown, and no link leads out of the clone.
func readFile(dir, name string) (any, error) {
	name = path.Clean(strings.TrimSuffix(name, "/"))
	root, err := openClone(dir, name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var text []byte
	if info.IsDir() {
		entries, err := f.ReadDir(-1)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		for _, e := range entries {
			if name != "." || !private(e.Name()) {
				text = fmt.Appendln(text, e.Name())
			}
		}
	} else if text, err = io.ReadAll(io.LimitReader(f, maxFile+1)); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(text) > maxFile || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, refuse(http.StatusUnsupportedMediaType, "%s is not a text of at most %d KiB.", name, maxFile>>10)
	}
	lines, err := highlight("", path.Base(name), string(text))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "<span class=\"line\" id=\"L%d\">%s</span>", i+1, line)
	}
	return map[string]string{"path": name, "html": b.String()}, nil
}

// private reports whether a name at the root of the clone is not shown. Some file systems
// do not tell small letters from capitals.
func private(name string) bool {
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, ".workshop")
}
