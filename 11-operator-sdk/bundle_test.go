package operatorsdk

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

const csv = "manifests/icecream.clusterserviceversion.yaml"

// broken are the ways in which the lesson breaks a bundle, by the words of its table.
var broken = map[string]struct{ file, old, new string }{
	"the owned kind":         {csv, "kind: Icecream\n      name:", "kind: Icecreams\n      name:"},
	"the install modes":      {csv, "supported: true", "supported: false"},
	"an example":             {csv, `alm-examples: '[{"`, `alm-examples: '[{`},
	"the Kubernetes version": {csv, "minKubeVersion: 1.31.0", `minKubeVersion: "1.31"`},
	"an account":             {"manifests/account.yaml", "", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: icecream-controller-manager}}\n"},
	"an image":               {csv, "- image: workshop/icecream:1", "- image: workshop/Icecream:1"},
	"the plural":             {csv, "name: icecreams.controller", "name: icecream.controller"},
	"the version":            {csv, "\n  version: 0.1.0", "\n  version: 0.1.1"},
	"a field's name":         {csv, "\n      permissions:", "\n      permission:"},
	"the strategy":           {csv, "strategy: deployment", "strategy: helm"},
	"a verb":                 {csv, "- patch\n          - watch", "- '*'"},
	"the folder metadata":    {"metadata/annotations.yaml", "", ""},
}

// Each row of the lesson's table is true: who says what, and with which exit code.
func TestBrokenBundles(t *testing.T) {
	t.Parallel()
	p := newPackager(t)
	valid := p.bundle("0.1.0")
	if said := p.ok("validate", valid); !strings.Contains(said, "icecream.v0.1.0 is valid") || strings.Contains(said, "error") {
		t.Errorf("of the bundle as it is, validate says:\n%s", said)
	}
	readme, err := os.ReadFile("README.md")
	fatal.If(t, err)
	rows := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| (olm|more) \| (.+) \|$`).FindAllStringSubmatch(string(readme), -1)
	seen := map[string]bool{}
	for _, row := range rows {
		what, who, says := row[1], row[2], strings.Trim(row[3], "`")
		seen[what] = true
		t.Run(what, func(t *testing.T) {
			b, ok := broken[what]
			if !ok {
				t.Fatal("the test does not break that")
			}
			dir := filepath.Join(t.TempDir(), "bundle")
			fatal.If(t, os.CopyFS(dir, os.DirFS(valid)))
			file := filepath.Join(dir, filepath.FromSlash(b.file))
			data, err := os.ReadFile(file)
			if err != nil && b.old != "" {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), b.old) {
				t.Fatalf("%s has no %q", b.file, b.old)
			}
			if b.new == "" {
				err = os.RemoveAll(filepath.Dir(file))
			} else {
				err = os.WriteFile(file, []byte(strings.ReplaceAll(string(data), b.old, b.new)), 0o644)
			}
			fatal.If(t, err)
			p := p.in(t)
			r := p.run("validate", dir)
			found := 0
			for line := range strings.Lines(r.Stdout + r.Stderr) {
				if strings.HasPrefix(line, who+" ") && strings.Contains(line, "error") && strings.Contains(line, says) {
					found++
				} else if strings.Contains(line, " error ") && !strings.HasPrefix(line, who) {
					t.Errorf("someone else says: %s", line)
				}
			}
			if found == 0 || r.ExitCode != 1 {
				t.Errorf("exit code %d, want 1 and an error of %s with %q:\n%s%s", r.ExitCode, who, says, r.Stdout, r.Stderr)
			}
		})
	}
	for what := range broken {
		if !seen[what] {
			t.Errorf("the lesson's table has no row %q", what)
		}
	}
}
