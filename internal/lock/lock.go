// Package lock has commands of one clone wait for one another.
package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Acquire takes the lock of a file, whose folder must be there. If somebody else has it, it says busy on out, and
// waits. It reports whether it had to wait.
func Acquire(ctx context.Context, path string, out io.Writer, busy string) (unlock func() error, waited bool, err error) {
	l := flock.New(path)
	ok, err := l.TryLock()
	if err != nil {
		return nil, false, Failed(path, err)
	}
	if !ok {
		fmt.Fprintln(out, busy)
		if _, err := l.TryLockContext(ctx, 200*time.Millisecond); err != nil {
			return nil, true, fmt.Errorf("waiting for %s: %w", path, err)
		}
	}
	return l.Unlock, !ok, nil
}

// Failed says what to do about a file that cannot be locked.
func Failed(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf(`%w: a command has run here as another user, such as root. Give the clone back to you: sudo chown -R "$USER" %q`, err, filepath.Dir(path))
	}
	return fmt.Errorf("locking %s: %w", path, err)
}
