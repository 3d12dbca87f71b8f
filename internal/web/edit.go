package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"go/scanner"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"unicode/utf8"
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
}

func hashText(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// openWork opens the clone for one of the learner's files.
func openWork(dir, name string) (*os.Root, error) {
	if !strings.HasPrefix(name, "work/") || strings.Contains(name, "/.") {
		return nil, refuse(http.StatusForbidden, "%q is not one of your copies. The page changes only files below work/.", name)
	}
	return openClone(dir, name)
}

// readWork returns one of the learner's files.
func readWork(dir, name string) (any, error) {
	root, err := openWork(dir, name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	text, err := readText(root, name)
	return workFile{Path: name, Text: string(text), Hash: hashText(text)}, err
}

func readText(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil, refuse(http.StatusForbidden, "%s is a folder.", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxWork+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return text, editable(name, text)
}

func editable(name string, text []byte) error {
	if len(text) > maxWork || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return refuse(http.StatusUnsupportedMediaType, "%s is not a text of at most %d KiB. Use another editor for it.", name, maxWork>>10)
	}
	return nil
}

// saving lets one save end before the next one compares.
var saving sync.Mutex

// saveWork writes one of the learner's files, a Go file as gofmt writes it, and returns what
// the disk holds then. It takes the text and the hash of the file that the text was made of:
// what somebody else has written since is never overwritten.
func saveWork(dir, name string, body io.Reader) (any, error) {
	var sent workFile
	if err := json.NewDecoder(io.LimitReader(body, 8*maxWork)).Decode(&sent); err != nil {
		return nil, refuse(http.StatusBadRequest, "The page has sent no text: %v.", err)
	}
	saving.Lock()
	defer saving.Unlock()
	root, err := openWork(dir, name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	text, answer := []byte(sent.Text), workFile{Path: name}
	if err := editable(name, text); err != nil {
		return nil, err
	}
	if path.Ext(name) == ".go" {
		formatted, err := format.Source(text)
		if err == nil {
			text = formatted
		}
		if list := (scanner.ErrorList)(nil); errors.As(err, &list) {
			answer.Line, answer.Problem = list[0].Pos.Line, list[0].Msg
		}
	}
	old, err := readText(root, name)
	if err != nil {
		return nil, err
	}
	if hashText(old) != sent.Hash {
		return nil, refuse(http.StatusConflict, "%s has changed on the disk since the page has read it, so nothing was saved.", name)
	}
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	// Whole or not at all; make watch takes no notice of a name that begins with a dot.
	temporary := path.Join(path.Dir(name), "."+path.Base(name)+".saving")
	_ = root.Remove(temporary) // of a save that was killed; a link there must not lead elsewhere
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close())
	}
	if err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		_ = root.Remove(temporary) // perhaps it is not there
		return nil, fmt.Errorf("saving %s: %w", name, err)
	}
	answer.Text, answer.Hash = string(text), hashText(text)
	return answer, nil
}
