package judge

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Each mutant changes what is there, and the table has what the judge said of it.
func TestMutants(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	all, err := ReadMutants(ws)
	fatal.If(t, err)
	table, err := os.ReadFile(filepath.Join(ws.Root, filepath.FromSlash(Folder), "MUTANTS.md"))
	fatal.If(t, err)
	faulty := 0
	for _, m := range all {
		if _, err := m.overlay(ws, t.TempDir()); err != nil {
			t.Error(err)
		}
		if _, err := FindContract(ws, m.Contract); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		if _, err := regexp.Compile(m.Cases); err != nil || m.Level < 1 || m.Level >= len(Levels) {
			t.Errorf("%s: level %d, cases %v", m.Name, m.Level, err)
		}
		row, says := "| "+m.Name+" |", m.Says
		if m.Says == "" {
			row, says = "| nothing | ["+filepath.Base(m.Program)+"]", "| nothing |"
		} else {
			faulty++
		}
		told := false
		for line := range strings.Lines(string(table)) {
			told = told || strings.HasPrefix(line, row) && strings.Contains(line, says)
		}
		if !told {
			t.Errorf("MUTANTS.md does not have what the judge says of %q: make judge-mutants writes it", m.Name)
		}
	}
	if faulty < 41 {
		t.Errorf("%d faulty controllers", faulty)
	}
}

func TestTold(t *testing.T) {
	m := Mutant{Name: "m", Says: "never"}
	for name, test := range map[string]struct {
		told Told
		want string
	}{
		"by its name":      {Told{Mutant: m, Failed: []Result{{Verdict: failed, Diagnosis: "It never did."}}}, ""},
		"by another":       {Told{Mutant: m, Failed: []Result{{Verdict: failed, Diagnosis: "It did."}}}, `said "It did."`},
		"not at all":       {Told{Mutant: m, Asked: 2}, "not found in 2 cases"},
		"not judged":       {Told{Mutant: m, Failed: []Result{{Verdict: unjudged, Diagnosis: "No cluster."}}}, "could not be judged"},
		"correct":          {Told{}, ""},
		"correct, but red": {Told{Failed: []Result{{Verdict: failed, Diagnosis: "It did."}}}, "nothing is wrong"},
	} {
		err := test.told.right()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
