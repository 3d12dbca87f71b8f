package clientset

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/fatal"
)

// ownVersions are the modules of k8s.io that are not published from the
// kubernetes repository and so do not carry its version.
var ownVersions = []string{"k8s.io/gengo/v2", "k8s.io/klog/v2", "k8s.io/kube-openapi", "k8s.io/utils"}

// minors returns which minor versions a go.mod asks for, each with its modules.
// For client-go v0.36.3 belongs to Kubernetes 1.36, as do all its siblings.
func minors(goMod []byte) (map[string][]string, error) {
	file, err := modfile.Parse("go.mod", goMod, nil)
	if err != nil {
		return nil, err
	}
	replaced := map[string]string{}
	for _, r := range file.Replace {
		if r.New.Version != "" {
			replaced[r.Old.Path] = r.New.Version
		}
	}
	found := map[string][]string{}
	for _, r := range file.Require {
		path, version := r.Mod.Path, r.Mod.Version
		if !strings.HasPrefix(path, "k8s.io/") || slices.Contains(ownVersions, path) {
			continue
		}
		if v, ok := replaced[path]; ok {
			version = v
		}
		minor := semver.MajorMinor(version)
		found[minor] = append(found[minor], path)
	}
	return found, nil
}

func TestOneMinorVersion(t *testing.T) {
	goMod, err := os.ReadFile("../go.mod")
	fatal.If(t, err)
	found, err := minors(goMod)
	fatal.If(t, err)
	if len(found) != 1 {
		t.Errorf("the k8s.io modules in go.mod are of %d minor versions, want one for all: %v", len(found), found)
	}
	for minor, modules := range found {
		if len(modules) < 3 {
			t.Errorf("only %v are of %s: is this still the right go.mod?", modules, minor)
		}
	}
}

func TestMinorsFindsAMix(t *testing.T) {
	for _, tc := range []struct{ name, goMod, want string }{
		{"same", "require (\nk8s.io/api v0.36.3\nk8s.io/client-go v0.36.1\nk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2\n)", "v0.36"},
		{"mix", "require (\nk8s.io/api v0.36.3\nk8s.io/client-go v0.35.9\n)", "v0.35 v0.36"},
		{"mix by replace", "require (\nk8s.io/api v0.36.3\nk8s.io/client-go v0.36.3\n)\nreplace k8s.io/api => k8s.io/api v0.34.1", "v0.34 v0.36"},
		// A mix of 2019 that go.mod files still have: these two are of different releases.
		{"incompatible", "require (\nk8s.io/api v0.17.0\nk8s.io/client-go v11.0.0+incompatible\n)", "v0.17 v11.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := minors([]byte("module m\n" + tc.goMod + "\n"))
			fatal.If(t, err)
			if got := strings.Join(slices.Sorted(maps.Keys(found)), " "); got != tc.want {
				t.Errorf("minor versions %q, want %q", got, tc.want)
			}
		})
	}
}
