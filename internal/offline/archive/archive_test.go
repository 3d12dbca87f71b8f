package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

// clone makes what Unpack looks at of a clone, and an empty module cache.
func clone(t *testing.T, pins string) Machine {
	t.Helper()
	to := Machine{OS: "linux", Arch: "amd64", Clone: t.TempDir(), ModuleCache: filepath.Join(t.TempDir(), "mod")}
	for _, module := range []string{".", "scripts/codegen", "scripts/controlplane"} {
		for _, name := range []string{"go.mod", "go.sum"} {
			write(t, filepath.Join(to.Clone, module, name), pins)
		}
	}
	return to
}

func write(t *testing.T, path, text string) {
	t.Helper()
	fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)))
}

const packName = "pack.tar.gz"

// files maps each file below the folders to what it holds, without the clone's modules.
func files(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() || d.Name() == "go.mod" || d.Name() == "go.sum" || d.Name() == packName {
				return err
			}
			data, err := os.ReadFile(path)
			name, _ := filepath.Rel(folder, path)
			found[filepath.ToSlash(name)] = string(data)
			return err
		})
		fatal.If(t, err)
	}
	return found
}

// made is a pack of three files, one of them too large for one read.
func made(t *testing.T) []byte {
	t.Helper()
	from := clone(t, "module\n")
	pins, err := Pins(from.Clone)
	fatal.If(t, err)
	dir := t.TempDir()
	sources := map[string]string{}
	for name, text := range map[string]string{
		Modules + "/example.com/m/@v/v1.0.0.zip": strings.Repeat("zip", 100_000),
		State + "/bin/etcd":                      "a program",
		State + "/bin/.stamps/etcd":              "its stamp",
	} {
		file := filepath.Join(dir, filepath.Base(filepath.Dir(name))+filepath.Base(name))
		write(t, file, text)
		sources[name] = file
	}
	var b bytes.Buffer
	fatal.If(t, Write(t.Context(), &b, Manifest{OS: "linux", Arch: "amd64", Commit: "0123456789abcdef", Pins: pins}, sources))
	return b.Bytes()
}

func unpackTo(t *testing.T, to Machine, archive []byte) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), packName)
	write(t, file, string(archive))
	_, err := Unpack(t.Context(), file, to)
	return err
}

func TestUnpack(t *testing.T) {
	to := clone(t, "module\n")
	write(t, filepath.Join(to.Clone, ".workshop", "bin", "etcd"), "an older one")
	fatal.If(t, unpackTo(t, to, made(t)))
	for _, repeat := range []string{"first", "second"} {
		got := files(t, to.Clone, to.ModuleCache)
		if len(got) != 3 || got[".workshop/bin/etcd"] != "a program" || got[".workshop/bin/.stamps/etcd"] != "its stamp" ||
			len(got["cache/download/example.com/m/@v/v1.0.0.zip"]) != 300_000 {
			t.Errorf("after the %s time: %.200v", repeat, got)
		}
		if info, err := os.Stat(filepath.Join(to.Clone, ".workshop", "bin", "etcd")); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("the program cannot be run: %v %v", info, err)
		}
		fatal.If(t, unpackTo(t, to, made(t)))
	}
}

func TestRefusesForeignPacks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Machine)
		want   string
	}{
		{"another system", func(m *Machine) { m.OS = "darwin" }, "for linux/amd64, and this machine is darwin/amd64"},
		{"another architecture", func(m *Machine) { m.Arch = "arm64" }, "for linux/amd64, and this machine is linux/arm64"},
		{"other modules", func(m *Machine) { write(t, filepath.Join(m.Clone, "go.sum"), "other\n") }, "git checkout 0123456789abcdef"},
		{"other modules of a step", func(m *Machine) { write(t, filepath.Join(m.Clone, "10-step", "project", "go.mod"), "other\n") }, "git checkout 0123456789abcdef"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := clone(t, "module\n")
			tc.change(&to)
			err := unpackTo(t, to, made(t))
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "damaged") {
				t.Errorf("error %v does not say %q", err, tc.want)
			}
			if left := files(t, to.Clone, to.ModuleCache); len(left) > 0 {
				t.Errorf("left: %.200v", left)
			}
		})
	}
}

// rewritten is the archive with its entries changed.
func rewritten(t *testing.T, archive []byte, change func(h *tar.Header)) []byte {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	fatal.If(t, err)
	var b bytes.Buffer
	out := gzip.NewWriter(&b)
	from, to := tar.NewReader(gz), tar.NewWriter(out)
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		change(h)
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		fatal.If(t, to.WriteHeader(h))
		if _, err := io.CopyN(to, from, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, errors.Join(to.Close(), out.Close()))
	return b.Bytes()
}

// Nothing is installed of a pack that is not what its manifest says, and nothing is left.
func TestRefusesDamagedPacks(t *testing.T) {
	whole := made(t)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	renamed := func(name string) []byte {
		return rewritten(t, whole, func(h *tar.Header) {
			if h.Name == State+"/bin/etcd" {
				h.Name = name
			}
		})
	}
	for name, archive := range map[string][]byte{
		"empty":           {},
		"no archive":      []byte("<!DOCTYPE html>"),
		"cut off":         whole[:len(whole)/2],
		"without its end": whole[:len(whole)-4],
		"a bit flipped":   flipped,
		"no manifest": rewritten(t, whole, func(h *tar.Header) {
			if h.Name == manifestName {
				h.Name = State + "/manifest.json"
			}
		}),
		"a link in place of a file": rewritten(t, whole, func(h *tar.Header) {
			if h.Name == State+"/bin/etcd" {
				h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
			}
		}),
		"a path that leads out":      renamed(State + "/../../zz"),
		"an absolute path":           renamed("/zz"),
		"a folder that is not ours":  renamed("zz/etcd"),
		"a folder in place of files": renamed(State),
		"a path that is not clean":   renamed(State + "//zz"),
		"a backslash":                renamed(State + `/..\..\zz`),
	} {
		t.Run(name, func(t *testing.T) {
			to := clone(t, "module\n")
			err := unpackTo(t, to, archive)
			if err == nil || !strings.Contains(err.Error(), "is damaged") {
				t.Errorf("error %v does not say that it is damaged", err)
			}
			if left := files(t, filepath.Dir(to.Clone), filepath.Dir(to.ModuleCache)); len(left) > 0 {
				t.Errorf("left: %.200v", left)
			}
		})
	}
}

func TestInterruptedUnpackLeavesNothing(t *testing.T) {
	to := clone(t, "module\n")
	file := filepath.Join(t.TempDir(), packName)
	write(t, file, string(made(t)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Unpack(ctx, file, to); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
	if left := files(t, to.Clone, to.ModuleCache); len(left) > 0 {
		t.Errorf("left: %.200v", left)
	}
}

func TestWriteRefusesOtherFolders(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "text")
	if err := Write(t.Context(), io.Discard, Manifest{}, map[string]string{State + "/../file": file}); err == nil {
		t.Error("a pack with a path that leads out was written")
	}
}

// make unpack comes before there is any module.
func TestUnpackNeedsNoModule(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "../../../cmd/unpack").Output()
	fatal.If(t, err)
	modules := map[string]bool{}
	for _, m := range strings.Fields(string(output)) {
		modules[m] = true
	}
	if len(modules) != 1 || !modules["github.com/k8s-go/workshop"] {
		t.Errorf("cmd/unpack needs the modules %v", modules)
	}
}
