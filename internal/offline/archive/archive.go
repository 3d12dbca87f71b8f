// Package archive writes and unpacks one archive with all that the workshop gets from
// a network, for machines of one operating system and architecture.
//
// It imports nothing but Go's standard library, because a machine unpacks before it
// has any module. That is also why the archive is compressed with gzip: zstd would
// make it a tenth smaller and three times as fast to read. Gzip's checksum is that of
// the whole archive.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The folders of an archive, and what each of them becomes.
const (
	Modules = "modules"  // cache/download in Go's module cache
	State   = "workshop" // .workshop in the clone
)

// ImageFile is where an archive holds the node image of kind, as docker save writes it.
const ImageFile = State + "/pack/node-image.tar"

// A Manifest is the first file of an archive: whom it is for.
type Manifest struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Commit string `json:"commit"` // of the clone that it was made in
	Pins   string `json:"pins"`   // see Pins
	Image  string `json:"image,omitempty"`
}

const manifestName = "manifest.json"

// Pins identifies the modules that a clone asks for: same pins, same pack.
func Pins(root string) (string, error) {
	h := sha256.New()
	for _, pattern := range []string{"go.mod", "go.sum", "scripts/*/go.mod", "scripts/*/go.sum", "[0-9][0-9]-*/*/go.mod", "[0-9][0-9]-*/*/go.sum"} {
		names, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %d\n", name, len(data))
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Write writes an archive of files, which maps a path in the archive to a file on
// this machine.
func Write(ctx context.Context, w io.Writer, m Manifest, files map[string]string) error {
	manifest, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	// Level 4 takes half the time of the default and gives 4 percent more.
	gz, err := gzip.NewWriterLevel(w, 4)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(gz)
	add := func(name string, mode, size int64, from io.Reader) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(archive, reader{ctx, from})
		return err
	}
	if err := add(manifestName, 0o644, int64(len(manifest)), bytes.NewReader(manifest)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := (Machine{}).place(name); err != nil {
			return err
		}
		in, err := os.Open(files[name])
		if err != nil {
			return err
		}
		info, err := in.Stat()
		if err == nil {
			err = add(name, int64(info.Mode().Perm()), info.Size(), in)
		}
		if err := errors.Join(err, in.Close()); err != nil {
			return fmt.Errorf("packing %s: %w", files[name], err)
		}
	}
	return errors.Join(archive.Close(), gz.Close())
}

// A Machine is where a pack is unpacked.
type Machine struct {
	OS, Arch    string
	Clone       string // root of the clone
	ModuleCache string // go env GOMODCACHE
}

// place returns where a file of an archive belongs.
func (to Machine) place(name string) (string, error) {
	folder, rest, _ := strings.Cut(name, "/")
	file := filepath.FromSlash(rest)
	switch {
	case !filepath.IsLocal(file) || path.Clean(name) != name || strings.Contains(name, `\`):
	case folder == Modules:
		return filepath.Join(to.ModuleCache, "cache", "download", file), nil
	case folder == State:
		return filepath.Join(to.Clone, ".workshop", file), nil
	}
	return "", fmt.Errorf("%q is not a path that a pack may hold", name)
}

// Unpack installs the archive. Nothing is installed unless all of it is whole and
// for this machine and clone. An interrupted Unpack can be repeated.
func Unpack(ctx context.Context, file string, to Machine) (m Manifest, err error) {
	in, err := os.Open(file)
	if err != nil {
		return m, err
	}
	defer in.Close()
	damaged := func(err error) error {
		var disk *fs.PathError // of this machine, and no damage of the archive
		if ctx.Err() != nil || errors.As(err, &disk) {
			return err
		}
		return fmt.Errorf("%s is damaged: %w; copy it again, nothing was installed", file, err)
	}
	gz, err := gzip.NewReader(bufio.NewReaderSize(reader{ctx, in}, 1<<20))
	if err != nil {
		return m, damaged(err)
	}
	archive := tar.NewReader(gz)
	header, err := archive.Next()
	if err == nil && header.Name != manifestName {
		err = errors.New("it does not begin with a manifest")
	}
	if err == nil {
		err = json.NewDecoder(io.LimitReader(archive, 16<<20)).Decode(&m)
	}
	if err != nil {
		return m, damaged(err)
	}
	if err := m.fits(to); err != nil {
		return m, err
	}
	state := filepath.Join(to.Clone, ".workshop")
	if err := os.MkdirAll(state, 0o755); err != nil {
		return m, err
	}
	dir, err := os.MkdirTemp(state, "unpack-")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	names, err := extract(dir, archive)
	if err == nil {
		_, err = io.Copy(io.Discard, gz) // up to gzip's own checksum
	}
	if err != nil {
		return m, damaged(err)
	}
	return m, install(ctx, dir, names, to)
}

// fits returns why the pack is not for this machine, and what to do.
func (m Manifest) fits(to Machine) error {
	if m.OS != to.OS || m.Arch != to.Arch {
		return fmt.Errorf("this pack is for %s/%s, and this machine is %s/%s: ask for a pack that was made on a machine like yours", m.OS, m.Arch, to.OS, to.Arch)
	}
	pins, err := Pins(to.Clone)
	if err != nil {
		return err
	}
	if m.Pins != pins {
		return fmt.Errorf("this pack holds the modules of commit %s, and this clone asks for others: git checkout %s, or ask for a new pack", m.Commit, m.Commit)
	}
	return nil
}

// extract writes the files of the archive below dir, and returns their names.
func extract(dir string, archive *tar.Reader) (names []string, err error) {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err == nil {
			_, err = Machine{}.place(header.Name)
		}
		if err == nil && header.Typeflag != tar.TypeReg {
			err = fmt.Errorf("%s is no file", header.Name)
		}
		if err != nil {
			return nil, err
		}
		name := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return nil, err
		}
		out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(header.Mode)&0o755)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(out, archive)
		if err := errors.Join(err, out.Close()); err != nil {
			return nil, fmt.Errorf("unpacking %s: %w", header.Name, err)
		}
		names = append(names, header.Name)
	}
}

// install moves the files to their places, each of them at once. The stamps, which
// say that a binary is current, come after the binaries.
func install(ctx context.Context, dir string, names []string, to Machine) error {
	slices.SortStableFunc(names, func(a, b string) int {
		return strings.Count(a, "/.stamps/") - strings.Count(b, "/.stamps/")
	})
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		target, err := to.place(name)
		if err != nil {
			return err
		}
		if _, err := os.Stat(target); err == nil && strings.HasPrefix(name, Modules+"/") {
			continue // one version of a module has the same files everywhere
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
			return fmt.Errorf("installing: %w", err)
		}
		if err := move(filepath.Join(dir, filepath.FromSlash(name)), target); err != nil {
			return fmt.Errorf("installing: %w", err)
		}
	}
	return nil
}

// move also moves to another disk. The target is never there in part.
func move(from, target string) (err error) {
	if os.Rename(from, target) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(target), ".unpack-")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(info.Mode()), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), target)
	}
	if err != nil {
		return errors.Join(err, os.Remove(out.Name()))
	}
	return nil
}

// reader ends with ctx.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
