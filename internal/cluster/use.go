package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/lock"
)

// A process that uses a cluster holds a shared lock of a file, from Up to its own end. So
// whoever has made the cluster sees that others still use it, and leaves it to them. Both
// happen under the lock of the clone, so nobody begins to use what is being removed.

func (c *Cluster) useFile() string { return c.ws.Path("use", c.Name()) }

// hold notes that this process uses the cluster.
func (c *Cluster) hold() error {
	if err := os.MkdirAll(filepath.Dir(c.useFile()), 0o755); err != nil {
		return err
	}
	if c.use == nil {
		c.use = flock.New(c.useFile())
	}
	if ok, err := c.use.TryRLock(); err != nil || !ok {
		return lock.Failed(c.useFile(), errors.Join(err, c.letGo()))
	}
	return nil
}

// letGo ends this process's use of the cluster.
func (c *Cluster) letGo() error {
	if c.use == nil {
		return nil
	}
	return c.use.Close()
}

// used reports whether another process uses the cluster.
func (c *Cluster) used() (bool, error) {
	if err := os.MkdirAll(filepath.Dir(c.useFile()), 0o755); err != nil {
		return false, err
	}
	all := flock.New(c.useFile())
	free, err := all.TryLock()
	return !free, errors.Join(err, all.Close())
}

// Keep has the cluster stay until Down, whoever has made it: make up may find what a test has made.
func (c *Cluster) Keep() error { return os.WriteFile(c.useFile(), []byte("kept\n"), 0o644) }

// kept reports whether somebody has called Keep.
func (c *Cluster) kept() bool {
	info, err := os.Stat(c.useFile())
	return err == nil && info.Size() > 0
}

// forget undoes Keep.
func (c *Cluster) forget() error {
	if err := os.Truncate(c.useFile(), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Pass hands this process's use on to the program that takes its place by exec.
func (c *Cluster) Pass() error {
	fd, err := unix.Open(c.useFile(), unix.O_RDWR, 0) // it stays open, as no file that Go opens does
	if err != nil {
		return err
	}
	return unix.Flock(fd, unix.LOCK_SH)
}

// OwnDefinitions waits until nobody else installs or uses the definitions of the lessons, which a cluster has
// once. They are the caller's until unlock, or until this process ends.
func (c *Cluster) OwnDefinitions(ctx context.Context, out io.Writer) (unlock func() error, err error) {
	file := filepath.Join(filepath.Dir(c.Kubeconfig()), "definitions.lock")
	unlock, _, err = lock.Acquire(ctx, file, out, "A lesson, a check or a test uses the definitions of this cluster; waiting for it to end")
	return unlock, err
}

// OwnNamespace waits until no other command of this clone runs the lesson of a namespace, which each of them
// deletes at its start, and keeps them away until unlock.
func (c *Cluster) OwnNamespace(ctx context.Context, name string, out io.Writer) (unlock func() error, err error) {
	file := filepath.Join(filepath.Dir(c.Kubeconfig()), name+".lock")
	unlock, _, err = lock.Acquire(ctx, file, out, fmt.Sprintf("Another command of this clone runs the lesson of the namespace %s; waiting for its end", name))
	return unlock, err
}
