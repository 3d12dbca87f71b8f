package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Many people's startup files set KUBECONFIG, or put a folder with kubectl first. In make shell,
// commands would then go to their own cluster. Others have options and aliases that mean something else by
// what the lessons write: ^ in a pattern, a file that is written again, a function of an alias's name.
func TestShellHoldsAgainstStartupFiles(t *testing.T) {
	home := t.TempDir()
	ws := workspace.Workspace{Root: filepath.Join(t.TempDir(), "it's a clone")}
	rc := "export KUBECONFIG=/mine GOFLAGS=-mod=mod PATH=/own:$PATH; mine=read\n"
	testfile.WriteAll(t, home, map[string]string{
		".bashrc": rc + "alias k=kubectl\nset -o noclobber\n", ".zshrc": rc + "alias k=kubectl\nsetopt extendedglob noclobber\n", ".zshenv": "early=yes\n",
		"function": "kubectl() { echo \"from a function$1\"; }\nk() { kubectl \"$@\"; }\n",
	})
	t.Setenv("HOME", home)
	t.Setenv("ZDOTDIR", "")
	for _, shell := range []string{"bash", "zsh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s is not here", shell) // .ci/run installs it
			continue
		}
		args, more, err := shellArgs(ws, "kwok", path, []string{"KUBECONFIG=/the clone's", "GOFLAGS=-buildvcs=false", "HOME=" + home})
		fatal.If(t, err)
		c := exec.CommandContext(t.Context(), path, append(args[1:], "-i")...)
		c.Stdin = strings.NewReader(`echo "$KUBECONFIG|$GOFLAGS|$mine|${PATH%%:/own*}|${ZDOTDIR-none}" # a comment, as lessons have it
source ~/function; k; k ^1 >~/said-` + shell + `; echo 2 >~/said-` + shell + "\n")
		c.Env = append(os.Environ(), more...)
		output, err := c.Output()
		zdotdir := "none"
		if shell == "bash" { // it does not look at the variable
			zdotdir = ""
		}
		if want := strings.Join([]string{"/the clone's", "-buildvcs=false", "read", ws.Bin(""), zdotdir}, "|") + "\nfrom a function"; err != nil || strings.TrimSpace(string(output)) != want {
			t.Errorf("%s: %q (%v), want %q", shell, output, err, want)
		}
		if said, err := os.ReadFile(filepath.Join(home, "said-"+shell)); err != nil || string(said) != "2\n" {
			t.Errorf("%s: a file that is written again has %q (%v)", shell, said, err)
		}
	}
}
