// Package offline knows what the workshop gets from a network, puts it into a pack,
// and says what is missing on a machine without one.
package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/offline/archive"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// needed is what a learner's commands ask Go for, and the module folder to ask in.
// The control plane is not among it: a pack holds its binaries.
var needed = append([]lesson.Module{
	{Dir: ".", Packages: []string{"-deps", "-test", "./..."}},
	{Dir: ".", Packages: []string{"-m", "all"}}, // go doc
}, lesson.Modules...)

// list has Go find what is needed, for this system and for the images of
// step 07. It returns the modules that were not in the module cache, and what Go
// says about packages that it does not get.
func list(ctx context.Context, ws workspace.Workspace, env ...string) (asked, complaints []string, err error) {
	systems := slices.Compact([]string{runtime.GOOS, "linux"})
	for _, n := range needed {
		for _, goos := range systems {
			var out proc.Buffer
			name := "ImportPath"
			if slices.Contains(n.Packages, "-m") {
				name = "Path"
			}
			err := proc.Go(ctx, proc.Cmd{Dir: filepath.Join(ws.Root, n.Dir),
				Args: append([]string{"list", "-e", "-f", "{{with .Error}}{{$." + name + "}}: {{.Err}}{{end}}"}, n.Packages...),
				Env:  workspace.Environ(append(env, "GOOS="+goos)...), Out: &out, Err: &out})
			if err != nil {
				return nil, nil, fmt.Errorf("listing what %s needs: %w\n%s", n.Dir, err, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if module, ok := strings.CutPrefix(line, "go: downloading "); ok {
					asked = append(asked, strings.TrimSpace(module))
				} else if line = strings.TrimSpace(line); line != "" {
					complaints = append(complaints, line)
				}
			}
		}
	}
	slices.Sort(asked)
	return slices.Compact(asked), complaints, nil
}

// MissingModules names Go modules that the module cache does not hold, or says what
// Go lacks of them. Of modules that only another missing one needs, it knows nothing.
func MissingModules(ctx context.Context, ws workspace.Workspace) ([]string, error) {
	missing, complaints, err := list(ctx, ws, "GOPROXY=off")
	if len(missing) == 0 && len(complaints) > 0 {
		missing = complaints[:1]
	}
	return missing, err
}

// Pack writes a pack for machines like this one to file, or into it if it is a folder, or below
// .workshop if it is empty. With CLUSTER=kind it also gets a node image first; with CLUSTER=kwok it
// leaves that out; else the node image is in the pack if a container engine has it.
func Pack(ctx context.Context, ws workspace.Workspace, want, file string, out io.Writer) (err error) {
	if want == "existing" {
		return errors.New("CLUSTER=existing: a pack is for a cluster that the workshop makes; use kwok or kind, or leave CLUSTER unset")
	}
	if err := diskspace.Require(ws.Path(), 3<<30, "a pack"); err != nil {
		return err
	}
	start := time.Now()
	commit, err := proc.Output(ctx, proc.Cmd{Path: "git", Args: []string{"rev-parse", "HEAD"}, Dir: ws.Root})
	if err != nil {
		return fmt.Errorf("asking git for the commit: %w", err)
	}
	m := archive.Manifest{OS: runtime.GOOS, Arch: runtime.GOARCH, Commit: strings.TrimSpace(commit)}
	if m.Pins, err = archive.Pins(ws.Root); err != nil {
		return err
	}
	if err := os.MkdirAll(ws.Path(), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(ws.Path(), "pack-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	name := fmt.Sprintf("workshop-%s-%s-%.10s.tar.gz", m.OS, m.Arch, m.Commit)
	if file == "" {
		file = ws.Path(name)
	} else if info, err := os.Stat(file); err == nil && info.IsDir() {
		file = filepath.Join(file, name)
	}
	// All of it takes minutes, and where the pack is to go may be a stick.
	err = writable(filepath.Dir(file))
	if err == nil {
		err = diskspace.Require(filepath.Dir(file), 1<<30, "a pack")
	}
	if err != nil {
		return fmt.Errorf("PACK=%s: %w", file, err)
	}
	files := map[string]string{}
	if err := addModules(ctx, ws, dir, files); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d files of Go modules\n", len(files))
	if m.Image, err = addClusters(ctx, ws, want, dir, files, out); err != nil {
		return err
	}
	size, err := write(ctx, file, m, files)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %.0f MiB, made in %.0fs\n", file, float64(size)/(1<<20), time.Since(start).Seconds())
	fmt.Fprintf(out, "  make unpack PACK=%s   installs it in a clone of commit %.10s on %s/%s\n", filepath.Base(file), m.Commit, m.OS, m.Arch)
	return nil
}

// addModules adds what a Go module proxy would be asked for. Go itself fills an
// empty module cache with that, out of this machine's own as far as that has it.
func addModules(ctx context.Context, ws workspace.Workspace, dir string, files map[string]string) error {
	values, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"env", "GOMODCACHE", "GOPROXY"}, Dir: ws.Root, Env: workspace.Environ()})
	if err != nil {
		return err
	}
	own, proxy, _ := strings.Cut(strings.TrimSpace(values), "\n")
	cache := filepath.Join(dir, "modules")
	_, complaints, err := list(ctx, ws, "GOMODCACHE="+cache, "GOFLAGS=-buildvcs=false -modcacherw",
		"GOPROXY=file://"+filepath.ToSlash(filepath.Join(own, "cache", "download"))+","+proxy)
	if err != nil {
		return err
	}
	if len(complaints) > 0 {
		return fmt.Errorf("getting the Go modules: %s", complaints[0])
	}
	downloads := filepath.Join(cache, "cache", "download")
	return filepath.WalkDir(downloads, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(downloads, path)
		switch filepath.Ext(path) {
		case ".zip", ".ziphash", ".mod", ".info":
			files[archive.Modules+"/"+filepath.ToSlash(name)] = path
		}
		return err
	})
}

// addClusters adds what clusters are made of, and returns the name of kind's node image.
func addClusters(ctx context.Context, ws workspace.Workspace, want, dir string, files map[string]string, out io.Writer) (image string, err error) {
	names := []string{"kwok"}
	switch {
	case want == "kind":
		names = append(names, "kind")
	case want == "":
		kind, _, err := cluster.Select(ctx, ws, "kind")
		if err != nil {
			return "", err
		}
		if kind.HasImage(ctx) {
			names = append(names, "kind")
		} else {
			fmt.Fprintln(out, "This pack is for CLUSTER=kwok only: no container engine here holds a node image (make pack CLUSTER=kind gets one)")
		}
	}
	for _, name := range names {
		c, _, err := cluster.Select(ctx, ws, name)
		if err != nil {
			return "", err
		}
		parts, err := c.Fetch(ctx, out)
		if err != nil {
			return "", err
		}
		for _, file := range parts.Files {
			files[archive.State+"/"+file] = ws.Path(filepath.FromSlash(file))
		}
		if parts.Image == "" {
			continue
		}
		if image, err = save(ctx, parts.Image, filepath.Join(dir, "node-image.tar")); err != nil {
			return "", err
		}
		files[archive.ImageFile] = filepath.Join(dir, "node-image.tar")
		fmt.Fprintf(out, "The node image %s\n", image)
	}
	return image, nil
}

// save writes an image of the container engine to a file, under its name without a
// digest: no engine keeps a registry's digest in such a file.
func save(ctx context.Context, image, file string) (name string, err error) {
	e, err := engine.Find(ctx)
	if err != nil {
		return "", err
	}
	name, _, pinned := strings.Cut(image, "@")
	if pinned {
		if _, err := e.Run(ctx, "tag", image, name); err != nil {
			return "", err
		}
	}
	_, err = e.Run(ctx, "save", "--output", file, name)
	return name, err
}

func writable(dir string) error {
	probe, err := os.CreateTemp(dir, ".pack-")
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// write writes the pack beside its place first, so that no half of one can be handed out.
func write(ctx context.Context, file string, m archive.Manifest, files map[string]string) (size int64, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".pack-")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	err = archive.Write(ctx, tmp, m, files)
	info, statErr := tmp.Stat()
	if err := errors.Join(err, statErr, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(tmp.Name(), file)
}
