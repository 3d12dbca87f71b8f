package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// PauseImage is in every kind cluster: a program that does nothing until it is
// told to stop, for pods that really have to run. No registry has it, and none
// is asked. NextPauseImage is the same under another tag, for rollouts.
const (
	PauseImage     = "workshop/pause:1"
	NextPauseImage = "workshop/pause:2"
)

// buildPause compiles the program and writes its image to a file, as docker save would.
func buildPause(ctx context.Context, ws workspace.Workspace, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), "pause-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "pause")
	if err := proc.Run(ctx, proc.Cmd{Path: "go", Dir: ws.Root,
		Args: []string{"build", "-trimpath", "-ldflags=-s -w", "-o", binary, "./scripts/images/pause"},
		Env:  workspace.Environ("CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOOS=linux"),
	}); err != nil {
		return err
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	archive, err := imageArchive("/pause", program, PauseImage, NextPauseImage)
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive, 0o644)
}

// imageArchive returns an image that holds nothing but one program, in the
// format of docker save: https://github.com/moby/docker-image-spec/blob/v1.2.0/v1.2.md.
func imageArchive(path string, program []byte, tags ...string) ([]byte, error) {
	layer, err := tarball(file{path[1:], 0o755, program}) // whatever the umask
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{path}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": tags, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return tarball(file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer}, file{"manifest.json", 0o644, manifest})
}

type file struct {
	name string
	mode int64
	data []byte
}

func tarball(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
