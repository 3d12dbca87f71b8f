package readme

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
)

const excerptSource = `package loop

// A Loop goes round.
type Loop struct{ n int }

// next is one round.
func (l *Loop) next() bool {
	if l.n > 0 {
		l.n--

		return true
	}
	return false
}

func next() {
	again := true
	for again {
		again = false
	}
}
`

func excerpts(t *testing.T, markdown string) (string, []string, error) {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{"loop.go": excerptSource, "values.yaml": "a:\n  b: 1\n  c: 2\nd: 3\n"} {
		fatal.If(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	text, drifted, err := Excerpts(root, []byte(md(markdown)))
	return string(text), drifted, err
}

func TestExcerpts(t *testing.T) {
	before := `# T

<!-- code: loop.go func Loop.next -->
'''go
'''

<!-- code: loop.go func next -->
'''go
func next() {
}
'''

text

<!-- code: loop.go func Loop.next from "l.n--" to "return true" -->
'''go
old
older
oldest
'''

<!-- code: values.yaml from "b:" to "c:" -->
'''yaml
'''

<!-- code: loop.go type Loop -->
'''go
'''

the end
`
	want := md(`# T

<!-- code: loop.go func Loop.next -->
'''go
func (l *Loop) next() bool {
	if l.n > 0 {
		l.n--

		return true
	}
	return false
}
'''

<!-- code: loop.go func next -->
'''go
func next() {
	again := true
	for again {
		again = false
	}
}
'''

text

<!-- code: loop.go func Loop.next from "l.n--" to "return true" -->
'''go
l.n--

return true
'''

<!-- code: values.yaml from "b:" to "c:" -->
'''yaml
b: 1
c: 2
'''

<!-- code: loop.go type Loop -->
'''go
type Loop struct{ n int }
'''

the end
`)
	after, drifted, err := excerpts(t, before)
	fatal.If(t, err)
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("rewritten (-want +got):\n%s", diff)
	}
	if len(drifted) != 5 {
		t.Errorf("drifted: %q, want all five", drifted)
	}
	again, drifted, err := excerpts(t, strings.Replace(want, "c: 2", "c: 1", 1))
	if err != nil || again != want {
		t.Errorf("not repaired (%v):\n%s", err, cmp.Diff(want, again))
	}
	before, _, _ = strings.Cut(want, "<!-- code: values.yaml")
	if diff := cmp.Diff([]string{fmt.Sprintf(`line %d: the code block differs from values.yaml from "b:" to "c:"`, 1+strings.Count(before, "\n"))}, drifted); diff != "" {
		t.Errorf("drifted (-want +got):\n%s", diff)
	}
}

func TestExcerptsThatCannotBeFound(t *testing.T) {
	for comment, want := range map[string]string{
		"<!-- code: loop.go func prev -->":                              "line 3: loop.go has no func prev",
		"<!-- code: loop.go func Next.next -->":                         "line 3: loop.go has no func Next.next",
		"<!-- code: loop.go type next -->":                              "line 3: loop.go has no type next",
		`<!-- code: loop.go from "again" to "Loop" -->`:                 `line 3: loop.go has 3 lines with "again", want one`,
		`<!-- code: loop.go func Loop.next from "l.n--" to "true}" -->`: `has 0 lines with "true}", want one`,
		`<!-- code: loop.go from "for again" to "}" -->`:                `has 2 lines with "}", want one`,
		"<!-- code: none.go func next -->":                              "line 3: open ",
		"<!-- code: ../loop.go func next -->":                           "line 3: ../loop.go is not a file of the clone",
		"<!-- code: loop.go -->":                                        "line 3: <!-- code: loop.go -->: write",
		"<!--code: loop.go func next -->":                               "line 3: <!--code: loop.go func next -->: write",
	} {
		if _, _, err := excerpts(t, "# T\n\n"+comment+"\n'''go\n'''\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", comment, err, want)
		}
	}
	for block, want := range map[string]string{"": "has to open a code block", "'''go\nfunc next": "has no end"} {
		if _, _, err := excerpts(t, "# T\n\n<!-- code: loop.go func next -->\n"+block); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", block, err, want)
		}
	}
}
