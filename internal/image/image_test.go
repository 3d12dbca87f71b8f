package image

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

// A clone is a small module with one program.
func clone(t *testing.T, dir string) string {
	t.Helper()
	testfile.WriteAll(t, dir, map[string]string{
		"go.mod":        "module example.org/small\n\ngo 1.26.0\n",
		"hello/main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	})
	return dir
}

func build(t *testing.T, dir, arch string) v1.Image {
	t.Helper()
	img, err := Build(t.Context(), dir, "./hello", arch, map[string]string{"org.opencontainers.image.title": "hello"})
	fatal.If(t, err)
	return img
}

func digest(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	fatal.If(t, err)
	return d.String()
}

func TestTheDigestDependsOnTheSourcesOnly(t *testing.T) {
	dir := clone(t, t.TempDir())
	first := digest(t, build(t, dir, "amd64"))
	if second := digest(t, build(t, clone(t, filepath.Join(t.TempDir(), "another path")), "amd64")); second != first {
		t.Errorf("%s at one path and %s at another", first, second)
	}
	if other := digest(t, build(t, dir, "arm64")); other == first {
		t.Error("another architecture has the same digest")
	}
	fatal.If(t, os.WriteFile(filepath.Join(dir, "hello", "main.go"), []byte("package main\n\nfunc main() { println(\"bye\") }\n"), 0o644))
	if changed := digest(t, build(t, dir, "amd64")); changed == first {
		t.Error("another program has the same digest")
	}
}

func TestAnImageHoldsOneProgramForNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image.tar")
	fatal.If(t, Write(file, "workshop/hello:1", build(t, clone(t, t.TempDir()), "amd64"), "workshop/hello:2"))
	tag := name.MustParseReference("workshop/hello:2").(name.Tag)
	img, err := tarball.ImageFromPath(file, &tag)
	fatal.If(t, err)
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	config, err := img.ConfigFile()
	fatal.If(t, err)
	if config.OS != "linux" || config.Architecture != "amd64" || config.Config.User != "65532:65532" ||
		!slices.Equal(config.Config.Entrypoint, []string{"/hello"}) || !maps.Equal(config.Config.Labels, map[string]string{"org.opencontainers.image.title": "hello"}) {
		t.Errorf("config %+v", config)
	}
	contents := mutate.Extract(img)
	defer contents.Close()
	var files []string
	for r := tar.NewReader(contents); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files = append(files, header.Name)
		if header.Mode&0o222 != 0 || header.Mode&0o111 != 0o111 {
			t.Errorf("%s has mode %o", header.Name, header.Mode)
		}
	}
	if !slices.Equal(files, []string{"hello"}) {
		t.Errorf("files %q", files)
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	tag := strings.TrimPrefix(server.URL, "http://") + "/me/hello:1"
	img := build(t, clone(t, t.TempDir()), "amd64")
	fatal.If(t, Push(t.Context(), tag, img))
	ref, err := name.ParseReference(tag)
	fatal.If(t, err)
	there, err := remote.Image(ref)
	fatal.If(t, err)
	if got, want := digest(t, there), digest(t, img); got != want {
		t.Errorf("%s in the registry, %s here", got, want)
	}
	server.Close()
	if err := Push(t.Context(), tag, img); err == nil || !strings.Contains(err.Error(), "pushing "+tag) {
		t.Errorf("error %v", err)
	}
	if err := Push(t.Context(), "UPPER", img); err == nil || !strings.Contains(err.Error(), "the image's name") {
		t.Errorf("error %v", err)
	}
}
