package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"go/scanner"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/k8s-go/workshop/internal/workspace"
)

// maxWork is how many bytes a file has that the page can edit.
const maxWork = 256 << 10

// A workFile is a learner's file as the page edits it.
type workFile struct {
	Path string `json:"path"`
	Text string `json:"text"`
	Hash string `json:"hash"` // of the text on the disk

	// Of a Go file that gofmt does not understand, in an answer to a save.
	Line    int    `json:"line,omitempty"`
	Problem string `json:"problem,omitempty"`

	mode os.FileMode
}

// work returns one of the learner's files.
func (s *Server) work(r *http.Request) (w workFile, err error) {
	w.Path = r.URL.Query().Get("path")
	if !strings.HasPrefix(w.Path, "work/") || strings.Contains(w.Path, "/.") {
		return w, refuse(http.StatusForbidden, "%q is not one of your copies. The page changes only files below work/.", w.Path)
	}
	f, err := openFile(s.options.Workspace.Root, w.Path)
	if err != nil {
		return w, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return w, refuse(http.StatusForbidden, "%s is a folder.", w.Path)
	}
	text, err := readText(w.Path, f, maxWork)
	w.Text, w.Hash, w.mode = string(text), hashOf(string(text)), info.Mode().Perm()
	return w, err
}

func (s *Server) readWork(r *http.Request) (any, error) { return s.work(r) }

// saving lets one save end before the next one compares.
var saving sync.Mutex

// saveWork writes one of the learner's files, a Go file as gofmt writes it, and returns what
// the disk holds then. It takes the text and the hash of the file that the text was made of:
// what somebody else has written since is never overwritten.
func (s *Server) saveWork(r *http.Request) (any, error) {
	var sent workFile
	if err := json.NewDecoder(io.LimitReader(r.Body, 8*maxWork)).Decode(&sent); err != nil {
		return nil, refuse(http.StatusBadRequest, "The page has sent no text: %v.", err)
	}
	saving.Lock()
	defer saving.Unlock()
	w, err := s.work(r)
	if err != nil {
		return nil, err
	}
	if w.Hash != sent.Hash {
		return nil, refuse(http.StatusConflict, "%s has changed on the disk since the page has read it, so nothing was saved.", w.Path)
	}
	text, err := readText(w.Path, strings.NewReader(sent.Text), maxWork)
	if err != nil {
		return nil, err
	}
	if path.Ext(w.Path) == ".go" {
		formatted, err := format.Source(text)
		if err == nil {
			text = formatted
		}
		if list := (scanner.ErrorList)(nil); errors.As(err, &list) {
			w.Line, w.Problem = list[0].Pos.Line, list[0].Msg
		}
	}
	file := filepath.Join(s.options.Workspace.Root, w.Path)
	if err := errors.Join(workspace.WriteWhole(file, text, w.mode), os.Chmod(file, w.mode)); err != nil { // the umask does not count
		return nil, fmt.Errorf("saving %s: %w", w.Path, err)
	}
	w.Text, w.Hash = string(text), hashOf(string(text))
	return w, nil
}
