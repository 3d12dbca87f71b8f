package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

// The trainers' page names every mistake that an exercise knows, also a new one.
func TestTrainersListsEveryMistake(t *testing.T) {
	ws := clone(t)
	page := filepath.Join(ws.Root, trainersFile)
	task := func(mistake string) {
		testfile.Write(t, filepath.Join(ws.Root, "01-one", "exercises", "1-first.yaml"), `{title: First, minutes: 15, do: it, files: {a.sh: a.sh}, hints: [a, b, c],
 open: [{file: a.sh, function: f}], mistakes: [{name: `+mistake+`, says: no, mutant: [{old: a, new: b}]}]}`)
	}
	verified := func() error {
		steps, err := ws.Steps()
		fatal.If(t, err)
		return verifyTrainers(ws, steps)
	}
	task("hot loop")
	if err := verified(); err == nil || !strings.Contains(err.Error(), "has no table for the exercises of 01-one") {
		t.Errorf("without a table: %v", err)
	}
	testfile.Write(t, page, "Teach.\n\n<!-- exercises: 1 -->\n<!-- end of exercises -->\n\nMore.\n")
	for _, mistake := range []string{"hot loop", "lost update"} {
		task(mistake)
		if err := verified(); err == nil || !strings.Contains(err.Error(), "make trainers") {
			t.Errorf("before %s is listed: %v", mistake, err)
		}
		if err := WriteTrainers(t.Context(), ws, nil); err != nil {
			t.Error(err)
		}
		if err := verified(); err != nil {
			t.Errorf("after %s is listed: %v", mistake, err)
		}
	}
	got, err := os.ReadFile(page)
	const want = "Teach.\n\n<!-- exercises: 1 -->\n\n| exercise | minutes | mistakes that `make check` names |\n|---|---|---|\n" +
		"| 1.1 `first` | 15 | lost update |\n\n<!-- end of exercises -->\n\nMore.\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// A trainer can rely on the clock of an agenda.
func TestAgendasAddUp(t *testing.T) {
	ws := clone(t)
	testfile.Write(t, filepath.Join(ws.Root, "01-one", "exercises", "1-first.yaml"), `{title: First, minutes: 15, do: it, files: {a.sh: a.sh}, hints: [a, b, c],
 open: [{file: a.sh, function: f}], mistakes: [{name: hot loop, says: no, mutant: [{old: a, new: b}]}]}`)
	steps, err := ws.Steps()
	fatal.If(t, err)
	agenda := "## Step 01: one\n\n### Watch · 10 minutes\n\n| time | min | what |\n|---|---|---|\n| 09:50 | 25 | **01** Watch 10 · `first` 15 | `first` 15 |\n| 10:15 | 5 | `make new`, and questions 5 | |\n| 10:20 | | end | |\n| 09:00 | 5 | again 5 | |\n"
	if err := verifyAgendas(agenda, steps); err != nil {
		t.Errorf("an agenda that adds up: %v", err)
	}
	for _, tc := range []struct{ name, old, new, want string }{
		{"a row that begins too late", "| 10:15 | 5 |", "| 10:16 | 5 |", "the row 10:16: the row above ends at 10:15"},
		{"a wrong end", "| 10:20 | |", "| 10:25 | |", "the row 10:25: the row above ends at 10:20"},
		{"a wrong sum", "Watch 10", "Watch 12", "the row 09:50: its parts take 27 minutes, not 25"},
		{"a section of other length", "Watch · 10", "Watch · 8", `the script of step 01 has "8" minutes for "Watch", not 10`},
		{"a section without a script", "Watch · 10", "Listen · 10", `the script of step 01 has "" minutes for "Watch", not 10`},
		{"an exercise of other length", "Watch 10 · `first` 15", "Watch 15 · `first` 10", "the exercise first takes 15 minutes, not 10"},
		{"an unknown exercise", "`first` 15 |", "`second` 15 |", "step 01 has no exercise second"},
		{"a part without minutes", "Watch 10 ", "Watch ", `"Watch" does not end with its minutes`},
	} {
		changed := strings.Replace(agenda, tc.old, tc.new, 1)
		if err := verifyAgendas(changed, steps); changed == agenda || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want %q", tc.name, err, tc.want)
		}
	}
}
