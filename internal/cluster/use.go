package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A process that uses a cluster holds a shared lock of a file, from Up to its own end. So
// whoever has made the cluster sees that others still use it, and leaves it to them. Both
// happen under the lock of the clone, so nobody begins to use what is being removed.

func (c *Cluster) useFile() string { return c.ws.Path("use", c.Name()) }

// hold notes that this process uses the cluster.
func (c *Cluster) hold() error {
	if c.use != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.useFile()), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(c.useFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("locking %s: %w", c.useFile(), err), file.Close())
	}
	c.use = file
	return nil
}

// letGo ends this process's use of the cluster.
func (c *Cluster) letGo() error {
	if c.use == nil {
		return nil
	}
	file := c.use
	c.use = nil
	return file.Close()
}

// used reports whether another process uses the cluster.
func (c *Cluster) used() (bool, error) {
	file, err := os.OpenFile(c.useFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// Pass hands this process's use on to the program that takes its place by exec.
func (c *Cluster) Pass() error {
	if c.use == nil {
		return nil
	}
	_, err := unix.FcntlInt(c.use.Fd(), unix.F_SETFD, 0)
	return err
}
