// Package diskspace answers before a long piece of work whether the disk will hold it.
package diskspace

import (
	"fmt"

	"github.com/shirou/gopsutil/v4/disk"
)

// Free returns how many bytes are free for this user on the file system of dir.
func Free(dir string) (uint64, error) {
	usage, err := disk.Usage(dir)
	if err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return usage.Free, nil
}

// Require returns an error that says what to do unless need bytes are free on
// the file system of dir. Purpose completes "not enough space for ...".
func Require(dir string, need uint64, purpose string) error {
	free, err := Free(dir)
	if err != nil {
		return err
	}
	if free < need {
		return fmt.Errorf("not enough space for %s: %.1f GiB needed, %.1f GiB free on the disk of %s; free some and try again",
			purpose, GiB(need), GiB(free), dir)
	}
	return nil
}

// GiB converts bytes.
func GiB(bytes uint64) float64 { return float64(bytes) / (1 << 30) }
