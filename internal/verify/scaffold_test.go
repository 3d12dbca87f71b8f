package verify

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

// A project is its scaffold with a patch, or the check says in which file it is not.
func TestAProjectIsItsScaffoldPatched(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not on PATH")
	}
	scaffold := map[string]string{"main.go": "one\ntwo\nthree\n", "Dockerfile": "FROM scratch\n", ".gitignore": "bin/*\n"}
	project := map[string]string{"main.go": "one\n2\nthree\n", "more.go": "more\n", ".gitignore": "bin/*\n",
		"go.sum": "sums\n", "bin/tool": "tool\n", "config/crd/bases/a.yaml": "made\n"}
	const patch = `diff --git a/main.go b/main.go
--- a/main.go
+++ b/main.go
@@ -1,3 +1,3 @@
 one
-two
+2
 three
diff --git a/more.go b/more.go
new file mode 100644
--- /dev/null
+++ b/more.go
@@ -0,0 +1 @@
+more
diff --git a/Dockerfile b/Dockerfile
deleted file mode 100644
--- a/Dockerfile
+++ /dev/null
@@ -1 +0,0 @@
-FROM scratch
`
	for _, tc := range []struct {
		name, file, text string // a change of the project, or of the scaffold; without a text, the file is removed
		want             string
	}{
		{"nothing changed", "", "", ""},
		{"a line of ours", "project/main.go", "one\n2\nfour\n", "differs: project/main.go"},
		{"a file of ours", "project/extra.go", "extra\n", "no longer made: project/extra.go"},
		{"a file that is gone", "project/more.go", "", "missing: project/more.go"},
		{"a hidden file", "project/.gitignore", "", "missing: project/.gitignore"},
		{"a line of kubebuilder's", "scaffold/main.go", "one\nzwei\nthree\n", "does not fit"},
		{"a file of kubebuilder's", "scaffold/new.go", "new\n", "missing: project/new.go"},
		{"a file that is made", "project/go.sum", "other sums\n", ""},
	} {
		dir := t.TempDir()
		testfile.Write(t, filepath.Join(dir, "changes.patch"), patch)
		testfile.WriteAll(t, filepath.Join(dir, "scaffold"), scaffold)
		testfile.WriteAll(t, filepath.Join(dir, "project"), project)
		if file := filepath.Join(dir, tc.file); tc.text != "" {
			testfile.Write(t, file, tc.text)
		} else if tc.file != "" {
			fatal.If(t, os.Remove(file))
		}
		err := comparePatched(t.Context(), filepath.Join(dir, "scaffold"), filepath.Join(dir, "changes.patch"), filepath.Join(dir, "project"))
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "update.sh") {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
	}
}
