package readme

import (
	"regexp"
	"strings"
)

// Placeholders are the values that differ from one run or cluster to the next,
// with the pattern that a real one must match.
var Placeholders = []struct{ Name, Pattern string }{
	{"<uid>", `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`},
	{"<time>", `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`},
	{"<rv>", `\d+`}, // a resourceVersion
	{"<n>", `\d+`},  // any count that is not the point of the lesson
	{"<age>", `(?:\d+[dhms])+|<invalid>|<unknown>`},     // as kubectl prints it
	{"<duration>", `\d+(?:\.\d+)?(?:ns|µs|ms|s|m\d+s)`}, // as Go prints it
	{"<server>", `https://[\w.:\[\]-]+`},                // the address of the API server
	{"<port>", `\d{2,5}`},
	{"<node>", `[a-z0-9][a-z0-9.-]*`},
	{"<suffix>", `[a-z0-9]{5,10}(?:-[a-z0-9]{5})?`}, // what generateName and controllers append
	{"<version>", `v1\.\d+\.\d+\S*`},
	{"<word>", `\S+`},
	{"<any>", `.*`},
}

var placeholder = regexp.MustCompile(`<[a-z]+>`)
var gap = regexp.MustCompile(` {2,}`)

// linePattern turns an expected line into a regular expression.
func linePattern(want string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^`)
	literal := func(s string) {
		for i, part := range gap.Split(s, -1) {
			if i > 0 {
				b.WriteString(` {2,}`)
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
	}
	rest := strings.TrimRight(want, " \t")
	for {
		loc := placeholder.FindStringIndex(rest)
		if loc == nil {
			break
		}
		literal(rest[:loc[0]])
		if p := patternOf(rest[loc[0]:loc[1]]); p != "" {
			b.WriteString(`(?:` + p + `)`)
		} else {
			literal(rest[loc[0]:loc[1]])
		}
		rest = rest[loc[1]:]
	}
	literal(rest)
	b.WriteString(`\s*$`)
	return regexp.MustCompile(b.String())
}

func patternOf(name string) string {
	for _, p := range Placeholders {
		if p.Name == name {
			return p.Pattern
		}
	}
	return ""
}

// match reports whether the output is what the lesson expects.
func match(want, got []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if strings.TrimSpace(want[0]) == "..." {
		for skip := 0; skip <= len(got); skip++ {
			if match(want[1:], got[skip:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && linePattern(want[0]).MatchString(got[0]) && match(want[1:], got[1:])
}

// rewrite returns the output as a lesson should show it: a line that an
// expected line already describes keeps that line's form, and in the others
// values of an unmistakable shape become placeholders.
func rewrite(want, got []string) []string {
	used := make([]bool, len(want))
	var lines []string
	for _, line := range got {
		kept := false
		for i, w := range want {
			if !used[i] && strings.TrimSpace(w) != "..." && linePattern(w).MatchString(line) {
				lines, used[i], kept = append(lines, w), true, true
				break
			}
		}
		if kept {
			continue
		}
		for _, p := range Placeholders[:2] { // the uid and the time
			line = regexp.MustCompile(p.Pattern).ReplaceAllString(line, p.Name)
		}
		line = regexp.MustCompile(`("?resourceVersion"?: ?"?)\d+`).ReplaceAllString(line, "${1}<rv>")
		line = regexp.MustCompile(`https://(?:127\.0\.0\.1|localhost):\d+`).ReplaceAllString(line, "<server>")
		lines = append(lines, strings.TrimRight(line, " \t"))
	}
	return lines
}
