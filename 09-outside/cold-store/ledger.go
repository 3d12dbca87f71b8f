package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// An Entry is a call that somebody has made, in the order in which they had their effects.
type Entry struct {
	Number  int       `json:"number"`
	Time    time.Time `json:"time"`
	By      string    `json:"by"` // tenant or owner
	Method  string    `json:"method"`
	Path    string    `json:"path"`
	Key     string    `json:"key,omitempty"` // the Idempotency-Key
	Request *Request  `json:"request,omitempty"`
	Code    int       `json:"code"`
	Reason  string    `json:"reason,omitempty"` // of a refusal
	Effect  *effect   `json:"effect,omitempty"`
	Fault   string    `json:"fault,omitempty"` // what has kept the call or its answer from arriving
}

// A Ledger is a file with one Entry a line. What stands in it has happened, whatever becomes of
// the process: an entry is written before anybody gets an answer.
type Ledger struct {
	file    *os.File
	entries int
}

// openLedger reads the entries that are there, and hands each to take.
func openLedger(path string, take func(Entry)) (*Ledger, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Ledger{file: file}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	for line := range bytes.Lines(data[:whole]) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, errors.Join(fmt.Errorf("%s:%d: %w", path, l.entries+1, err), file.Close())
		}
		l.entries++
		take(e)
	}
	// The last line is not whole if the process was killed while it wrote. Nobody got an answer to that.
	if err := errors.Join(file.Truncate(int64(whole)), seek(file, int64(whole))); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

func seek(file *os.File, to int64) error {
	_, err := file.Seek(to, io.SeekStart)
	return err
}

// write numbers an entry and keeps it.
func (l *Ledger) write(e *Entry) error {
	e.Number = l.entries + 1
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	l.entries++
	return nil
}
