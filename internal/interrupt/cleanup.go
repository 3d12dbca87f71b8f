package interrupt

import (
	"fmt"
	"io"
)

type cleanUp struct{ error }

func (c cleanUp) Unwrap() error { return c.error }

// CleanUp marks the error of a clean-up, which leaves something behind. It returns nil for nil.
func CleanUp(err error) error {
	if err == nil {
		return nil
	}
	return cleanUp{err}
}

// SayLeft says what the errors of a program tell that was interrupted: only those of a clean-up tell more than that.
func SayLeft(out io.Writer, err error) {
	for _, left := range marked(err) {
		fmt.Fprintf(out, "error: not everything was cleaned up: %v\n", left)
	}
}

func marked(err error) (found []error) {
	switch err := err.(type) {
	case cleanUp:
		return []error{err}
	case interface{ Unwrap() error }:
		return marked(err.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			found = append(found, marked(e)...)
		}
	}
	return found
}
