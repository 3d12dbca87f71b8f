package lesson

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestParsePrefix(t *testing.T) {
	for value, want := range map[string]Prefix{
		"": "", "anna": "anna-", "anna-": "anna-", "a": "a-", "team-1": "team-1-", "1": "1-", "sixteen-letters-": "sixteen-letters-",
	} {
		if got, err := ParsePrefix(value); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", value, got, err, want)
		}
	}
	for _, value := range []string{"-", "-anna", "anna--", "Anna", "änna", "anna bert", "anna.bert", "anna/bert", "$(id)", "seventeen-letters"} {
		if got, err := ParsePrefix(value); err == nil || !strings.Contains(err.Error(), PrefixVariable) {
			t.Errorf("%q: %q %v, want an error that names the variable", value, got, err)
		}
	}
}

// lessons returns the steps of the clone, from one on up to another one.
func lessons(t *testing.T, first, last int) (workspace.Workspace, []workspace.Step) {
	t.Helper()
	ws, err := workspace.Find()
	fatal.If(t, err)
	var found []workspace.Step
	for number := first; number <= last; number++ {
		s, err := ws.Step(fmt.Sprint(number))
		fatal.If(t, err)
		found = append(found, s)
	}
	return ws, found
}

func TestOnlySharedStepsTakeAPrefix(t *testing.T) {
	_, steps := lessons(t, 1, 7)
	for _, s := range steps {
		if err := Prefix("").Check(s); err != nil {
			t.Errorf("%s without a prefix: %v", s.Name, err)
		}
		err := Prefix("anna-").Check(s)
		if s.Number <= 3 && err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Number > 3 && (err == nil || !strings.Contains(err.Error(), "a cluster for each person")) {
			t.Errorf("%s: error %v does not say that it needs a cluster of its own", s.Name, err)
		}
	}
}

func TestPrefixedREADMENamesPrefixedFiles(t *testing.T) {
	ws := workspace.Workspace{Root: t.TempDir()}
	s := workspace.Step{Number: 2, Name: "02-test", Dir: filepath.Join(ws.Root, "02-test")}
	for name, text := range map[string]string{
		"README.md":       "# Two\n\n```console\n$ apply 02-test/a/group.yaml 02-test/other.yaml\n$ get -n workshop-02 x.workshop-02.example.com\n```\n",
		"a/group.yaml":    "group: workshop-02.example.com\n",
		"other.yaml":      "kind: Other\n",
		"a/workshop.code": "workshop-02\n",
	} {
		fatal.If(t, write(filepath.Join(s.Dir, name), text))
	}
	files, err := Prefix("anna-").Documents(ws, s)
	fatal.If(t, err)
	got, err := os.ReadFile(files[0])
	const want = "# Two\n\n```console\n$ apply .workshop/prefix/anna/02-test/a/group.yaml 02-test/other.yaml\n" +
		"$ get -n anna-workshop-02 x.anna-workshop-02.example.com\n```\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	got, err = os.ReadFile(ws.Path("prefix", "anna", "02-test", "a", "group.yaml"))
	if err != nil || string(got) != "group: anna-workshop-02.example.com\n" {
		t.Errorf("%v %s", err, got)
	}
	// Each look at the lesson writes them again. What has not changed stays as it is, and who reads an old one reads it whole.
	before, err := os.Stat(files[0])
	fatal.If(t, err)
	old, err := os.Open(ws.Path("prefix", "anna", "02-test", "a", "group.yaml"))
	fatal.If(t, err)
	defer old.Close()
	fatal.If(t, write(filepath.Join(s.Dir, "a/group.yaml"), "group: workshop-02.example.org\n"))
	_, err = Prefix("anna-").Documents(ws, s)
	fatal.If(t, err)
	if after, err := os.Stat(files[0]); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a copy that was right was written again (%v)", err)
	}
	if got, err := io.ReadAll(old); err != nil || string(got) != "group: anna-workshop-02.example.com\n" {
		t.Errorf("who read a copy when it was written again has got %q, %v", got, err)
	}
	if got, err := os.ReadFile(old.Name()); err != nil || string(got) != "group: anna-workshop-02.example.org\n" {
		t.Errorf("the new copy is %q, %v", got, err)
	}
}
