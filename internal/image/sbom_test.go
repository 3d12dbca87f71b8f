package image

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/k8s-go/workshop/internal/fatal"
)

// The program needs three modules: one as it is, one with a version that a URL
// cannot hold, and one that a folder replaces.
func moduleClone(t *testing.T, dir string) string {
	t.Helper()
	clone(t, dir)
	for _, file := range []string{"go.mod", "go.sum"} { // so that these modules need no download
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		fatal.If(t, err)
		if file == "go.mod" {
			text = append(text, "\nreplace github.com/munnerz/goautoneg => ./autoneg\n"...)
		}
		fatal.If(t, os.WriteFile(filepath.Join(dir, file), text, 0o644))
	}
	fatal.If(t, os.Mkdir(filepath.Join(dir, "autoneg"), 0o755))
	for file, text := range map[string]string{
		"autoneg/go.mod":  "module github.com/munnerz/goautoneg\n",
		"autoneg/code.go": "package goautoneg\n",
		"hello/main.go": `package main

import (
	_ "github.com/blang/semver/v4"
	_ "github.com/docker/distribution/registry/client/auth/challenge"
	_ "github.com/munnerz/goautoneg"
)

func main() {}
`,
	} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

func writtenSBOM(t *testing.T, img v1.Image) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sbom.json")
	fatal.If(t, WriteSBOM(file, "workshop/hello:1", img))
	text, err := os.ReadFile(file)
	fatal.If(t, err)
	return text
}

// goVersion returns what go version says about the program in an image.
func goVersion(t *testing.T, img v1.Image) string {
	t.Helper()
	contents := mutate.Extract(img)
	defer contents.Close()
	files := tar.NewReader(contents)
	if _, err := files.Next(); err != nil {
		t.Fatal(err)
	}
	program, err := io.ReadAll(files)
	fatal.If(t, err)
	file := filepath.Join(t.TempDir(), "program")
	fatal.If(t, os.WriteFile(file, program, 0o755))
	text, err := exec.CommandContext(t.Context(), "go", "version", "-m", file).Output()
	fatal.If(t, err)
	return string(text)
}

func TestTheSBOMListsEveryModule(t *testing.T) {
	img := build(t, moduleClone(t, t.TempDir()), "amd64")
	text := writtenSBOM(t, img)
	var bom cyclonedx.BOM
	fatal.If(t, cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom))
	if c := bom.Metadata.Component; c.Name != "workshop/hello:1" || c.Version != digest(t, img) {
		t.Errorf("it is about %s %s", c.Name, c.Version)
	}
	listed := map[string]cyclonedx.Component{}
	for _, c := range *bom.Components {
		listed[c.Name] = c
	}

	want := 2 // the program and the standard library
	version := strings.Split(strings.TrimSpace(goVersion(t, img)), "\n")
	for _, line := range version {
		f := strings.Split(line, "\t") // "", "dep", path, version and, unless it is a folder's, hash
		if len(f) < 4 || f[1] != "dep" {
			continue
		}
		want++
		c := listed[f[2]]
		if c.Version != f[3] || c.PackageURL != "pkg:golang/"+f[2]+"@"+strings.ReplaceAll(f[3], "+", "%2B") {
			t.Errorf("%s %s is listed as %q, %s", f[2], f[3], c.Version, c.PackageURL)
		}
		var hash string
		if c.Hashes != nil {
			sum, err := hex.DecodeString((*c.Hashes)[0].Value)
			if err != nil {
				t.Error(err)
			}
			hash = "h1:" + base64.StdEncoding.EncodeToString(sum)
		}
		if known := strings.Join(f[4:], ""); hash != known {
			t.Errorf("%s: hash %q, want %q", f[2], hash, known)
		}
	}
	if want != 5 || len(listed) != want {
		t.Errorf("%d components, want %d:\n%s\n%s", len(listed), want, strings.Join(version, "\n"), text)
	}
	_, goRelease, _ := strings.Cut(version[0], ": go")
	if std := listed["std"]; std.Version != goRelease {
		t.Errorf("the standard library is %q, want %q", std.Version, goRelease)
	}
	if program := listed["github.com/k8s-go/workshop/hello"]; program.Type != cyclonedx.ComponentTypeApplication || program.Version != "" {
		t.Errorf("the program is %+v", program)
	}
	reachable := map[string]bool{}
	for _, d := range *bom.Dependencies {
		for _, ref := range *d.Dependencies {
			reachable[ref] = true
		}
	}
	for _, c := range *bom.Components {
		if !reachable[c.BOMRef] {
			t.Errorf("nothing depends on %s", c.BOMRef)
		}
	}

	again := writtenSBOM(t, build(t, moduleClone(t, filepath.Join(t.TempDir(), "another path")), "amd64"))
	if !bytes.Equal(text, again) {
		t.Errorf("built at another path:\n%s\nwant:\n%s", again, text)
	}
}
