package readme

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
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

// A line is an expected line.
type line struct {
	text    string
	pattern *regexp.Regexp // nil for "...", which stands for any number of lines
}

func (l line) dots() bool { return l.pattern == nil }

func (l line) matches(got string) bool { return l.pattern.MatchString(got) }

// expected compiles the lines of an expected output.
func expected(want []string) []line {
	lines := make([]line, len(want))
	for i, w := range want {
		lines[i].text = w
		if strings.TrimSpace(w) != "..." {
			lines[i].pattern = linePattern(w)
		}
	}
	return lines
}

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
	if _, err := strconv.Atoi(rest); err == nil {
		b.WriteString(` *`) // as wc of macOS prints a number
	}
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

// atStop is what client-go's reflector logs, once in many runs, when a program that
// stops its informers ends a watch while it reads an event.
var atStop = regexp.MustCompile(`^I\d{4} .* reflector\.go:\d+\] "Warning: watch ended with error" .*context canceled`)

// downloading is what any go command prints while it fetches a module or a toolchain
// that the machine does not have yet: progress, which a reader sees and no lesson expects.
var downloading = regexp.MustCompile(`^go: downloading (\S+ v\S+|go\d\S* \(\S+\))$`)

// withoutNoise removes the lines that a lesson can neither expect nor rule out.
func withoutNoise(got []string) []string {
	return slices.DeleteFunc(slices.Clone(got), func(line string) bool {
		return atStop.MatchString(line) || downloading.MatchString(line)
	})
}

// compare reports whether the output is what the lesson expects, and how many
// lines of each agree at least: where to look if it is not.
func compare(want, got []string) (wanted, gotten int, ok bool) {
	lines := expected(want)
	// Where a line does not match, the last "..." leaves out one line more. An
	// earlier one need not be asked again: it has left out as few as it could.
	dots, resume := -1, 0
	i, j := 0, 0
	for j < len(got) {
		if i > wanted {
			wanted, gotten = i, j
		}
		switch {
		case i < len(lines) && lines[i].dots():
			dots, resume = i, j
			i++
		case i < len(lines) && lines[i].matches(got[j]):
			i++
			j++
		case dots >= 0:
			resume++
			i, j = dots+1, resume
		default:
			return wanted, gotten, false
		}
	}
	if i > wanted {
		wanted, gotten = i, j
	}
	for i < len(lines) && lines[i].dots() {
		i++
	}
	return wanted, gotten, i == len(lines)
}

// Difference says in a line or two where the output of a command and its exit
// code are not what the lesson expects. It is empty if they are.
func (c Command) Difference(got []string, exitCode int) string {
	got = withoutNoise(got)
	wanted, gotten, ok := compare(c.Want, got)
	line := func(lines []string, i int) string {
		if i >= len(lines) {
			return "the end of the output"
		}
		// A line may be a megabyte of JSON.
		if text := []rune(lines[i]); len(text) > 200 {
			return strconv.Quote(string(text[:200])) + " and so on"
		}
		return strconv.Quote(lines[i])
	}
	switch {
	case !ok:
		return fmt.Sprintf("Line %d: the lesson expects %s, and the command printed %s.", gotten+1, line(c.Want, wanted), line(got, gotten))
	case exitCode != c.ExitCode:
		return fmt.Sprintf("The lesson expects exit status %d, and the command ended with %d.", c.ExitCode, exitCode)
	}
	return ""
}

// What an edit of an expected output costs. Only the order matters: a line that
// took another's place is more likely than one that went and one that came.
const (
	costReplace = 2
	costInsert  = 3
	costDelete  = 3
)

// rewrite returns the output as a lesson should show it. It changes as little of
// the expected output as it can: "..." goes on standing for the lines that it
// fits, a line that an expected line describes keeps that line's form, and in the
// others values of an unmistakable shape become placeholders.
func rewrite(want, got []string) []string {
	lines := expected(want)
	got = withoutNoise(got)
	// cost[i][j] is the least that it takes to turn lines[i:] into got[j:].
	cost := make([][]int, len(lines)+1)
	matches := make([][]bool, len(lines))
	for i := len(lines); i >= 0; i-- {
		cost[i] = make([]int, len(got)+1)
		if i < len(lines) {
			matches[i] = make([]bool, len(got))
		}
		for j := len(got); j >= 0; j-- {
			switch {
			case i == len(lines):
				cost[i][j] = costInsert * (len(got) - j)
			case lines[i].dots():
				cost[i][j] = cost[i+1][j]
				if j < len(got) {
					cost[i][j] = min(cost[i][j], cost[i][j+1])
				}
			case j == len(got):
				cost[i][j] = cost[i+1][j] + costDelete
			default:
				matches[i][j] = lines[i].matches(got[j])
				cost[i][j] = min(cost[i+1][j+1]+replaceCost(matches[i][j]), cost[i+1][j]+costDelete, cost[i][j+1]+costInsert)
			}
		}
	}

	used := make([]bool, len(lines))
	var fresh []int // lines of the result that still have to get their form
	var result []string
	add := func(text string, isNew bool) {
		if isNew {
			fresh = append(fresh, len(result))
		}
		result = append(result, text)
	}
	for i, j := 0, 0; i < len(lines) || j < len(got); {
		switch {
		case i == len(lines):
			add(got[j], true)
			j++
		case lines[i].dots():
			if n := len(result); n == 0 || strings.TrimSpace(result[n-1]) != "..." {
				add(lines[i].text, false)
			}
			for j < len(got) && cost[i][j] == cost[i][j+1] && cost[i][j] != cost[i+1][j] {
				j++
			}
			i++
		case j < len(got) && cost[i][j] == cost[i+1][j+1]+replaceCost(matches[i][j]):
			if used[i] = matches[i][j]; used[i] {
				add(lines[i].text, false)
			} else {
				add(got[j], true)
			}
			i++
			j++
		case j < len(got) && cost[i][j] == cost[i][j+1]+costInsert:
			add(got[j], true)
			j++
		default:
			i++
		}
	}
	for _, n := range fresh {
		result[n] = form(result[n], lines, used)
	}
	return result
}

func replaceCost(matches bool) int {
	if matches {
		return 0
	}
	return costReplace
}

// form returns an output line as the expected line that describes it, if there
// is one that is not used yet: lines may have changed places.
func form(got string, lines []line, used []bool) string {
	for i, l := range lines {
		if !used[i] && !l.dots() && l.matches(got) {
			used[i] = true
			return l.text
		}
	}
	for _, shape := range shapes {
		got = shape.pattern.ReplaceAllString(got, shape.placeholder)
	}
	return strings.TrimRight(got, " \t")
}

// shapes are those values that cannot be taken for anything else.
var shapes = []struct {
	pattern     *regexp.Regexp
	placeholder string
}{
	{regexp.MustCompile(patternOf("<uid>")), "<uid>"},
	{regexp.MustCompile(patternOf("<time>")), "<time>"},
	{regexp.MustCompile(`("?resourceVersion"?: ?"?)\d+`), "${1}<rv>"},
	{regexp.MustCompile(`https://(?:127\.0\.0\.1|localhost):\d+`), "<server>"},
}
