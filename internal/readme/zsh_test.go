package readme

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

// In make shell, the lessons' commands are typed into the reader's own shell, which may be zsh.
// What is a word to bash may be syntax to zsh, such as end.
func TestZshReadsWhatIsTyped(t *testing.T) {
	t.Parallel()
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("there is no zsh on this machine")
	}
	const root = "../.."
	typed := map[string]string{} // by the file that it is from
	for _, pattern := range []string{"[0-9][0-9]-*/README.md", "[0-9][0-9]-*/reference.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		fatal.If(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			fatal.If(t, err)
			doc, err := Parse(source)
			fatal.If(t, err)
			var commands strings.Builder
			for _, block := range doc.Blocks {
				for _, c := range block.Commands {
					commands.WriteString(c.Text + "\n")
				}
			}
			typed[file] = commands.String()
		}
	}
	scripts, err := filepath.Glob(filepath.Join(root, "[0-9][0-9]-*/*.sh"))
	fatal.If(t, err)
	for _, file := range scripts {
		source, err := os.ReadFile(file)
		fatal.If(t, err)
		if !strings.HasPrefix(string(source), "#!") { // then it is sourced
			typed[file] = string(source)
		}
	}
	if len(typed) < 20 {
		t.Fatalf("only %d files were found", len(typed))
	}
	for file, text := range typed {
		c := exec.CommandContext(t.Context(), zsh, "-f", "-n")
		c.Stdin = strings.NewReader(text)
		if said, err := c.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("%s: %v: %s", file, err, said)
		}
	}
}
