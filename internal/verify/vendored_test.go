package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A vendored file that was edited, is missing, or that nobody listed is named.
func TestVerifyVendored(t *testing.T) {
	t.Parallel()
	const good = `[{"package": "p", "version": "1.0.0", "licence": "MIT", "integrity": "sha512-x",
		"files": [{"from": "a.js", "to": "static/vendor/a.js", "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}]}]`
	for _, c := range []struct {
		name, manifest string
		files          map[string]string
		want           string
	}{
		{"as published", good, map[string]string{"a.js": "abc"}, ""},
		{"edited", good, map[string]string{"a.js": "abd"}, "static/vendor/a.js is not that of p 1.0.0; scripts/web-vendor.sh renews it"},
		{"missing", good, map[string]string{"LICENSE": ""}, "no such file"},
		{"unlisted", good, map[string]string{"a.js": "abc", "b.js": ""}, "static/vendor/b.js is not named in internal/web/vendored.json"},
		{"no licence", strings.Replace(good, "MIT", "", 1), map[string]string{"a.js": "abc"}, "p lacks its version, licence or integrity"},
	} {
		ws := workspace.Workspace{Root: t.TempDir()}
		folder := filepath.Join(ws.Root, vendoredFolder, "static", "vendor")
		fatal.If(t, os.MkdirAll(folder, 0o755))
		for name, text := range c.files {
			fatal.If(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
		}
		fatal.If(t, os.WriteFile(filepath.Join(ws.Root, vendoredFolder, "vendored.json"), []byte(c.manifest), 0o644))
		err := verifyVendored(ws)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
