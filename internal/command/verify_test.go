package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

// A definition whose label no README declares would survive an interrupted lesson.
func TestVerifyOwned(t *testing.T) {
	t.Parallel()
	for readme, want := range map[string]string{
		"# T\n": `deep/crd.yaml has the label workshop.k8s-go.dev/step=06`,
		"# T\n\n<!-- cluster-scoped objects: 04, 05 -->\n": "add 06 to its line",
		"# T\n\n<!-- cluster-scoped objects: 05, 06 -->\n": "",
	} {
		s := workspace.Step{Dir: t.TempDir()}
		if err := os.Mkdir(filepath.Join(s.Dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"README.md": readme, "deep/crd.yaml": "labels: {workshop.k8s-go.dev/step: \"06\"}\n"} {
			if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := verifyOwned(s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", readme, err, want)
		}
	}
}
