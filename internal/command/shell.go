package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// heldAgainstStartup are the variables that a shell's startup files must not change.
var heldAgainstStartup = []string{"CLUSTER", "KUBECONFIG", "KUBECACHEDIR", "KUBERC", "GOWORK", "GOFLAGS", "CGO_ENABLED", "NO_PROXY", "no_proxy", "TMPDIR", lesson.PrefixVariable}

// shellArgs returns how to start bash or zsh on a cluster so that what a lesson needs holds
// against the reader's own startup files, which may set KUBECONFIG or put another kubectl
// first. Those files are read all the same, and before. environ is the shell's environment;
// more goes with it.
func shellArgs(ws workspace.Workspace, cluster, shell string, environ []string) (args, more []string, err error) {
	var set strings.Builder
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); slices.Contains(heldAgainstStartup, name) {
			fmt.Fprintf(&set, "export %s=%s\n", name, proc.Quoted(value))
		}
	}
	fmt.Fprintf(&set, "PATH=%s:$PATH\n", proc.Quoted(ws.Bin("")))
	set.WriteString("unalias -a\n") // with k=kubectl, for example, a lesson's function k would call itself
	dir := ws.Path("shell", cluster)
	if filepath.Base(shell) != "zsh" {
		rc := filepath.Join(dir, "bashrc")
		return []string{shell, "--rcfile", rc}, nil, write(rc, "if [[ -r ~/.bashrc ]]; then source ~/.bashrc; fi\n"+set.String()+"set +o noclobber\n")
	}
	// zsh looks for its files in ZDOTDIR.
	own := os.Getenv("ZDOTDIR")
	back := "ZDOTDIR=" + proc.Quoted(own)
	if own == "" {
		back = "unset ZDOTDIR"
	}
	from := func(file string) string {
		return fmt.Sprintf("if [[ -r ${ZDOTDIR:-$HOME}/%s ]]; then source \"${ZDOTDIR:-$HOME}/%s\"; fi\n", file, file)
	}
	err = write(filepath.Join(dir, ".zshenv"), back+"\n"+from(".zshenv")+"workshop_own=${ZDOTDIR-}\nZDOTDIR="+proc.Quoted(dir)+"\n")
	if err == nil {
		err = write(filepath.Join(dir, ".zshrc"), "if [[ -n $workshop_own ]]; then ZDOTDIR=$workshop_own; else unset ZDOTDIR; fi\nunset workshop_own\n"+
			// What /etc/zshrc has derived from it, as on macOS.
			"if [[ ${HISTFILE-} == "+proc.Quoted(dir)+"/* ]]; then HISTFILE=${ZDOTDIR:-$HOME}/.zsh_history; fi\n"+from(".zshrc")+set.String()+
			// The lessons' commands have comments, which an interactive zsh would take as arguments, ^ in patterns of grep, and files that they write again.
			"setopt interactivecomments noextendedglob clobber\n")
	}
	return []string{shell}, []string{"ZDOTDIR=" + dir}, err
}

func write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}
