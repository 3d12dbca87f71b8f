package readme

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/godecl"
)

// An excerpt is a part of a file of the clone that a lesson shows. A comment
// names the part, and the fenced code block in the next line holds its copy:
//
//	<!-- code: 06-controller/loop/loop.go func Loop.next -->
//	<!-- code: 06-controller/loop/loop.go type Options -->
//	<!-- code: 06-controller/loop/loop.go func Loop.next from "err == nil" to "return true" -->
//	<!-- code: 05-crd-go/policies.yaml from "kind:" to "spec:" -->
//
// A function or type is shown without its doc comment. The texts after from and
// to each stand in one line only: of the file, or of the function or type.
type excerpt struct {
	file, name string
	start, end int      // the lines of the copy, from 0, end excluded
	want       []string // what the file has
}

var (
	excerptMark = regexp.MustCompile(`^<!--\s*code:`)
	excerptForm = regexp.MustCompile(`^<!-- code: (\S+)((?: (?:func|type) \S+)?)((?: from "[^"]+" to "[^"]+")?) -->$`)
	excerptEnds = regexp.MustCompile(`^ from "([^"]+)" to "([^"]+)"$`)
)

// Excerpts returns a lesson's text with every excerpt equal to its file below
// root, and says of each one that was not.
func Excerpts(root string, source []byte) (text []byte, drifted []string, err error) {
	lines := strings.Split(string(source), "\n")
	var result []string
	for i := 0; i < len(lines); i++ {
		result = append(result, lines[i])
		if !excerptMark.MatchString(lines[i]) {
			continue
		}
		x, err := findExcerpt(root, lines, i)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if !slices.Equal(lines[x.start:x.end], x.want) {
			drifted = append(drifted, fmt.Sprintf("line %d: the code block differs from %s%s", i+1, x.file, x.name))
		}
		result = append(append(result, lines[i+1]), x.want...)
		i = x.end - 1
	}
	return []byte(strings.Join(result, "\n")), drifted, nil
}

// findExcerpt reads the comment in a line, finds the code block below it, and
// reads what should be there.
func findExcerpt(root string, lines []string, i int) (x excerpt, err error) {
	m := excerptForm.FindStringSubmatch(lines[i])
	if m == nil || m[2] == "" && m[3] == "" {
		return x, fmt.Errorf(`%s: write <!-- code: FILE func NAME -->, with type in place of func, or with from "text" to "text" behind it or in its place`, lines[i])
	}
	x = excerpt{file: m[1], name: m[2] + m[3], start: i + 2}
	if i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "```") {
		return x, fmt.Errorf("the line after %s has to open a code block", lines[i])
	}
	for x.end = x.start; x.end < len(lines) && lines[x.end] != "```"; x.end++ {
	}
	if x.end == len(lines) {
		return x, fmt.Errorf("the code block after %s has no end", lines[i])
	}
	if !filepath.IsLocal(x.file) {
		return x, fmt.Errorf("%s is not a file of the clone", x.file)
	}
	data, err := os.ReadFile(filepath.Join(root, x.file))
	if err != nil {
		return x, err
	}
	from, to := 0, len(data)
	if kind, name, ok := strings.Cut(strings.TrimSpace(m[2]), " "); ok {
		if from, to, err = declared(x.file, data, kind, name); err != nil {
			return x, err
		}
		from = strings.LastIndex(string(data[:from]), "\n") + 1
	}
	x.want = strings.Split(strings.TrimSuffix(string(data[from:to]), "\n"), "\n")
	if ends := excerptEnds.FindStringSubmatch(m[3]); ends != nil {
		where := x.file + m[2]
		first, err := onlyLine(x.want, ends[1], where)
		if err != nil {
			return x, err
		}
		last, err := onlyLine(x.want[first:], ends[2], where+`, from "`+ends[1]+`" on,`)
		if err != nil {
			return x, err
		}
		x.want = x.want[first : first+last+1]
	}
	x.want = outdented(x.want)
	return x, nil
}

// declared returns where a function, a method ("Loop.next") or a type begins and ends.
func declared(file string, source []byte, kind, name string) (from, to int, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	var found ast.Node
	if f := godecl.Func(parsed, name); f != nil && kind == "func" {
		found = f
	}
	for _, d := range parsed.Decls {
		if d, ok := d.(*ast.GenDecl); ok && kind == "type" && d.Tok == token.TYPE && len(d.Specs) == 1 && name == d.Specs[0].(*ast.TypeSpec).Name.Name {
			found = d
		}
	}
	if found == nil {
		return 0, 0, fmt.Errorf("%s has no %s %s", file, kind, name)
	}
	return files.Position(found.Pos()).Offset, files.Position(found.End()).Offset, nil
}

// onlyLine returns the index of the one line that contains the text.
func onlyLine(lines []string, text, where string) (int, error) {
	found, times := 0, 0
	for i, line := range lines {
		if strings.Contains(line, text) {
			found = i
			times++
		}
	}
	if times != 1 {
		return 0, fmt.Errorf("%s has %d lines with %q, want one", where, times, text)
	}
	return found, nil
}

// outdented returns the lines without the indentation that all of them share.
func outdented(lines []string) []string {
	shared := -1
	for _, line := range lines {
		if text := strings.TrimLeft(line, " \t"); text != "" && (shared < 0 || len(line)-len(text) < shared) {
			shared = len(line) - len(text)
		}
	}
	result := make([]string, len(lines))
	for i, line := range lines {
		result[i] = line[min(max(shared, 0), len(line)):]
	}
	return result
}
