package readme

import (
	"slices"
	"strings"
	"testing"
)

func TestProse(t *testing.T) {
	t.Parallel()
	long := strings.TrimSpace(strings.Repeat("word ", maxWords))
	for text, want := range map[string][]string{
		"Who writes an old one gets 409.":                                          {"line 1: the sentence begins with a clause"},
		"One is fine. What stops\nmatching a selector is deleted.":                 {"line 1: the sentence begins with a clause"},
		"Who writes? What will it print? **What happened.** It wrote.":             nil,
		"Read it. " + long + ".\n\n- " + long + " more.":                           {"line 3: a sentence of 26 words, over 25: word"},
		long + " — and one.":                                                       {"line 1: a sentence of 27 words"},
		"`kubectl get pods. What now` " + strings.Repeat("word ", 24) + ".":        nil,
		"[" + long + "](https://example.org/a.b) ends here.":                       {"line 1: a sentence of 27 words"},
		"# What a title\n\n```go\nWhat code. " + long + " more\n```\n":             nil,
		"| What a table | " + long + " |\n|---|---|\n| Who reads | " + long + " |": nil,
	} {
		got := Prose([]byte(text))
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%q:\n got %q\nwant %q", text, got, want)
		}
	}
}
