package lesson

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Module is one besides the root's whose packages lessons, checks and tests compile.
type Module struct {
	Dir      string   // below the root of the clone
	Packages []string // arguments of go list
	steps    []string // whose commands compile them
}

var tools, tested = []string{"-deps", "tool"}, []string{"-deps", "-test", "./..."}

// Modules are all of them.
var Modules = []Module{
	{"scripts/codegen", tools, []string{"05-crd-go", "10-kubebuilder"}},
	{"scripts/kubebuilder", tools, []string{"10-kubebuilder"}},
	{"10-kubebuilder/icecream", tested, []string{"10-kubebuilder", "11-operator-sdk"}},
	{"10-kubebuilder/programs", tested, []string{"10-kubebuilder"}},
	{"11-operator-sdk/packager", []string{"-deps", "./..."}, []string{"11-operator-sdk"}},
}

// CompileModules fetches and compiles, one after the other, the modules besides the root's that
// these steps need, and shows on out that this goes on. Where nothing is compiled yet it takes
// minutes, for which a lesson's command has no time, and its output would begin with what go
// downloads. Where all of it is compiled, it takes no time. What cannot be compiled is for the
// commands themselves to report.
func CompileModules(ctx context.Context, ws workspace.Workspace, steps []string, out io.Writer) {
	for _, m := range Modules {
		needed := slices.ContainsFunc(steps, func(s string) bool { return slices.Contains(m.steps, s) })
		if !needed || ctx.Err() != nil || m.compiled(ws) {
			continue
		}
		end := progress.Start(out, "Compiling "+m.Dir+" (once)")
		end(m.compile(ctx, ws))
	}
}

// record is the file that lists what compile has made: the folder of each module in Go's module
// cache, and the file of each package in its build cache.
func (m Module) record(ws workspace.Workspace) string {
	// It is another one when the module has changed, or Go, or where its caches are.
	sums, _ := os.ReadFile(filepath.Join(ws.Root, m.Dir, "go.sum"))
	sums = fmt.Appendf(sums, "%s %q", workspace.Toolchain(workspace.Environ()), m.Packages)
	sum := sha256.Sum256(sums)
	return ws.Path("compiled", strings.ReplaceAll(m.Dir, "/", "-")+"-"+hex.EncodeToString(sum[:4]))
}

// compiled reports whether all that compile has made is still there. To ask go would take seconds.
func (m Module) compiled(ws workspace.Workspace) bool {
	made, err := os.ReadFile(m.record(ws))
	for path := range strings.Lines(string(made)) {
		if err == nil {
			_, err = os.Stat(strings.TrimSuffix(path, "\n"))
		}
	}
	return err == nil
}

func (m Module) compile(ctx context.Context, ws workspace.Workspace) error {
	var made bytes.Buffer
	const paths = "{{with .Module}}{{with .Dir}}{{.}}\n{{end}}{{end}}{{with .Export}}{{.}}\n{{end}}"
	if err := quietly(ctx, &made, filepath.Join(ws.Root, m.Dir), append([]string{"list", "-export", "-f", paths}, m.Packages...)...); err != nil {
		return err
	}
	all := strings.Split(strings.TrimSpace(made.String()), "\n")
	slices.Sort(all)
	record := m.record(ws)
	if err := os.MkdirAll(filepath.Dir(record), 0o755); err != nil {
		return err
	}
	return os.WriteFile(record, []byte(strings.Join(slices.Compact(all), "\n")+"\n"), 0o644)
}

// quietly runs a go command that fills Go's cache. The lesson that runs meanwhile has
// priority.
func quietly(ctx context.Context, out io.Writer, dir string, args ...string) error {
	// go list that is interrupted early leaves its temporary folder behind.
	temp, err := os.MkdirTemp("", "workshop-compile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	return proc.Run(ctx, proc.Cmd{Path: "nice", Dir: dir, Out: out, Err: io.Discard, Grace: 10 * time.Second,
		Env: workspace.Quick(workspace.Environ("GOTMPDIR=" + temp)), Args: append([]string{"-n", "10", "go"}, args...)})
}
