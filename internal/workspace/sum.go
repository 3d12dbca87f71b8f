package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// large files, such as a pack for a room without a network, are no source: they are told apart by size and time.
const large = 4 << 20

// Sum names the contents of all files below root that a program can be compiled from: not of
// documents, of what npm has installed, of what begins with a dot, which the workshop itself makes,
// nor of the folders left out.
func Sum(root string, without ...string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || slices.Contains(without, path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || filepath.Ext(path) == ".md" || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		info, err := d.Info()
		if err == nil && info.Size() > large {
			fmt.Fprintf(h, "%s %d %s\n", path, info.Size(), info.ModTime())
			return nil
		}
		data, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission): // it has gone, or go could not read it, either
		case err != nil:
			return err
		default:
			fmt.Fprintf(h, "%s %x\n", path, sha256.Sum256(data))
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil))[:16], err
}
