package controllertest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

// A change that no longer applies breaks the test of its own guard, and no other.
func TestOneBinaryServesAllGuardsAsLongAsAllChangesApply(t *testing.T) {
	t.Parallel()
	brake, check, stale := testenv.Replace("main.go", "brake", ""), testenv.Replace("main.go", "check", ""), testenv.Replace("main.go", "renamed", "")
	build := func(changes ...testenv.ProgramOption) (string, error) {
		if slices.Contains(changes, stale) {
			return "", errors.New("holds 0 times, not once")
		}
		if len(changes) == 3 {
			return "all", nil
		}
		return "alone", nil
	}
	g := Guards{Program: "./program", Without: "without.go", Changes: map[string][]testenv.ProgramOption{"brake": {brake}, "check": {check}}}
	for _, guard := range []string{"brake", "check"} {
		if program, err := g.build(guard, build); program != "all" || err != nil {
			t.Errorf("%s: %q, %v; want the binary of all", guard, program, err)
		}
	}
	g.Changes["conflict"] = []testenv.ProgramOption{stale}
	for _, guard := range []string{"brake", "check"} {
		if program, err := g.build(guard, build); program != "alone" || err != nil {
			t.Errorf("%s, beside a change that no longer applies: %q, %v; want a binary of its own", guard, program, err)
		}
	}
	if _, err := g.build("conflict", build); err == nil || !strings.Contains(err.Error(), `"conflict"`) || !strings.Contains(err.Error(), "holds 0 times") {
		t.Errorf("%v: want the guard and what no longer applies", err)
	}
	if _, err := g.build("unknown", build); err == nil || !strings.Contains(err.Error(), `"unknown"`) {
		t.Errorf("a guard without a change: %v", err)
	}
}
