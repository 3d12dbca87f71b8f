package controllertest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Guards are changes of a program's source, by the name of the guard that each takes away.
type Guards struct {
	Program string // as in Env.Program
	Without string // a file that is added, with the function without(guard string) bool
	Changes map[string][]testenv.ProgramOption
}

// WithoutEnv names the guard that a program does not have.
const WithoutEnv = "WITHOUT"

// Build builds the program so that it lacks the guard that WithoutEnv names. One
// binary serves all guards. If it does not build, because a line of the program has
// changed, each guard gets a binary of its own: then only those tests fail whose
// change is out of date.
func (g Guards) Build(t testing.TB, e *testenv.Env, guard string) (program string) {
	t.Helper()
	program, err := g.build(guard, func(changes ...testenv.ProgramOption) (string, error) { return e.Build(g.Program, changes...) })
	fatal.If(t, err)
	return program
}

func (g Guards) build(guard string, build func(...testenv.ProgramOption) (string, error)) (program string, err error) {
	own, ok := g.Changes[guard]
	if !ok {
		return "", fmt.Errorf("no change of %s takes the guard %q away", g.Program, guard)
	}
	name := path.Base(path.Dir(g.Without))
	if name == "." {
		name = "main"
	}
	asks := testenv.AddFile(g.Without, fmt.Sprintf("package %s\n\nimport \"os\"\n\nfunc without(guard string) bool { return os.Getenv(%q) == guard }\n", name, WithoutEnv))
	all := []testenv.ProgramOption{asks}
	for _, each := range slices.Sorted(maps.Keys(g.Changes)) {
		all = append(all, g.Changes[each]...)
	}
	if program, err = build(all...); err == nil {
		return program, nil
	}
	if program, err = build(append([]testenv.ProgramOption{asks}, own...)...); err != nil {
		return "", fmt.Errorf("the change of %s that takes the guard %q away is out of date: %w", g.Program, guard, err)
	}
	return program, nil
}
