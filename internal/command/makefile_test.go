package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// What a person gives to make reaches the commands as it is, whatever is in it.
func TestVariablesReachCommands(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	dir := t.TempDir()
	prints := filepath.Join(dir, "prints")
	fatal.If(t, os.WriteFile(prints, []byte("#!/bin/sh\necho \"$* DIR=$DIR PACK=$PACK N=$N\"\n"), 0o755))
	const value = `Anna's "new" share; $HOME`
	for want, args := range map[string][]string{
		"new DIR=" + value + " PACK= N=":   {"new", "DIR=" + strings.ReplaceAll(value, "$", "$$")},
		"board DIR=" + value + " PACK= N=": {"board", "DIR=" + strings.ReplaceAll(value, "$", "$$")},
		"pack DIR= PACK=" + value + " N=":  {"pack", "PACK=" + strings.ReplaceAll(value, "$", "$$")},
		"test-step DIR= PACK= N=3":         {"test-step", "3"},
		"check DIR= PACK= N=03-informer":   {"check", "N=03-informer"},
	} {
		// Nothing is built: what the Makefile calls is another program.
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory", "-C", ws.Root, "-o", "build", "WORKSHOP=" + prints}, args...)...)
		cmd.Env = workspace.Without(workspace.Environ(), "DIR", "PACK", "N")
		output, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(output)); err != nil || got != want {
			t.Errorf("make %q: %q, %v, want %q", args, got, err, want)
		}
	}
}
