package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The trainers' page names every mistake that an exercise knows, also a new one.
func TestTrainersListsEveryMistake(t *testing.T) {
	ws := clone(t)
	page := filepath.Join(ws.Root, trainersFile)
	task := func(mistake string) {
		write(t, filepath.Join(ws.Root, "01-one", "exercises", "1-first.yaml"), `{title: First, minutes: 15, do: it, files: {a.sh: a.sh}, hints: [a, b, c],
 open: [{file: a.sh, function: f}], mistakes: [{name: `+mistake+`, says: no, mutant: [{old: a, new: b}]}]}`)
	}
	verified := func() error {
		steps, err := ws.Steps()
		if err != nil {
			t.Fatal(err)
		}
		return verifyTrainers(ws, steps)
	}
	task("hot loop")
	if err := verified(); err == nil || !strings.Contains(err.Error(), "has no table for the exercises of 01-one") {
		t.Errorf("without a table: %v", err)
	}
	write(t, page, "Teach.\n\n<!-- exercises: 1 -->\n<!-- end of exercises -->\n\nMore.\n")
	for _, mistake := range []string{"hot loop", "lost update"} {
		task(mistake)
		if err := verified(); err == nil || !strings.Contains(err.Error(), "make trainers") {
			t.Errorf("before %s is listed: %v", mistake, err)
		}
		printed(t, func() {
			if err := Run(t.Context(), []string{"trainers"}); err != nil {
				t.Error(err)
			}
		})
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
