package workspace

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that something is a folder, a pipe or a device where a file belongs.
var ErrNotRegular = errors.New("not a file")

// ReadForeign reads at most so many bytes of a file that anybody may have written. A pipe that
// nobody writes to holds nothing up: what is no regular file is ErrNotRegular.
func ReadForeign(name string, most int64) (data []byte, info fs.FileInfo, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, ErrNotRegular
	}
	data, err = io.ReadAll(io.LimitReader(f, most))
	return data, info, err
}
