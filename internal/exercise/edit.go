package exercise

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/k8s-go/workshop/internal/godecl"
)

// open leaves a part of a file open: the learner is to write it.
func (t Task) open(e Edit, source []byte) ([]byte, error) {
	switch ext := path.Ext(e.File); {
	case e.From != "":
		return os.ReadFile(filepath.Join(t.Step.Dir, e.From))
	case e.Old != "":
		return ReplaceOnce(source, e.Old, e.New)
	case e.Function != "" && ext == ".go":
		// A panic ends the program at once, fits every signature and names the line.
		return replaceGoBody(source, e.Function, t.comment(e, "// ")+fmt.Sprintf("panic(%q)\n", t.NotDone()))
	case e.Function != "":
		return replaceShellBody(source, e.Function, t.comment(e, "# ")+fmt.Sprintf("echo %q >&2\nexit 1\n", t.NotDone()))
	case e.Path != "":
		return removePath(source, e, t.comment(e, "# ")+"# "+t.NotDone()+": remove this line when it is\n")
	}
	return nil, fmt.Errorf("the open edit of %s names no function, path, piece or file", e.File)
}

// change makes the edit of a mutant.
func (t Task) change(e Edit, source []byte) ([]byte, error) {
	switch ext := path.Ext(e.File); {
	case e.From != "":
		return os.ReadFile(filepath.Join(t.Step.Dir, e.From))
	case e.Old != "":
		changed, err := ReplaceOnce(source, e.Old, e.New)
		if err != nil || ext != ".go" {
			return changed, err
		}
		return tidyImports(source, changed)
	case e.Function != "" && ext == ".go":
		return replaceGoBody(source, e.Function, e.Body)
	case e.Function != "":
		return replaceShellBody(source, e.Function, e.Body)
	}
	return nil, fmt.Errorf("the edit of %s names no function, piece or file", e.File)
}

// comment is what is asked for, as the lines of a comment. Several places of one
// task need not all say it.
func (t Task) comment(e Edit, prefix string) string {
	do := t.Do
	switch {
	case e.Do != "":
		do = e.Do
	case e != t.Open[0]:
		do = "This belongs to it, too."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%sYour turn, task %s:\n", prefix, t.ID())
	for line := range strings.Lines(strings.TrimRight(do, "\n")) {
		b.WriteString(strings.TrimRight(prefix+strings.TrimRight(line, "\n"), " ") + "\n")
	}
	return b.String()
}

// ReplaceOnce replaces a piece that a file must hold exactly once.
func ReplaceOnce[T string | []byte](source T, old, new string) (T, error) {
	before, after, found := strings.Cut(string(source), old)
	if !found || strings.Contains(after, old) {
		var none T
		return none, fmt.Errorf("holds %d times, not once, what is to be replaced:\n%s", strings.Count(string(source), old), old)
	}
	return T(before + new + after), nil
}

// replaceGoBody replaces the body of a function, and removes the imports that
// nothing uses any more.
func replaceGoBody(source []byte, name, body string) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	f := godecl.Func(file, name)
	if f == nil || f.Body == nil {
		return nil, fmt.Errorf("there is no function %s", name)
	}
	from, to := fset.Position(f.Body.Lbrace).Offset, fset.Position(f.Body.Rbrace).Offset
	changed := bytes.Join([][]byte{source[:from+1], []byte("\n" + body), source[to:]}, nil)
	return tidyImports(source, changed)
}

// tidyImports removes those imports that the source used before the change and
// the changed one does not use. What an import without a name is called cannot
// be known here, so one that seems unused already before stays.
func tidyImports(before, changed []byte) ([]byte, error) {
	used := func(source []byte) (*token.FileSet, *ast.File, map[string]bool, error) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "", source, parser.ParseComments)
		if err != nil {
			return nil, nil, nil, err
		}
		names := map[string]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil { // no local variable
					names[x.Name] = true
				}
			}
			return true
		})
		return fset, file, names, nil
	}
	_, _, usedBefore, err := used(before)
	if err != nil {
		return nil, err
	}
	fset, file, usedNow, err := used(changed)
	if err != nil {
		return nil, err
	}
	lines := bytes.SplitAfter(changed, []byte("\n"))
	for _, spec := range file.Imports {
		name := importName(spec)
		if usedBefore[name] && !usedNow[name] {
			line := fset.Position(spec.Pos()).Line
			lines[line-1] = nil
		}
	}
	return format.Source(bytes.Join(lines, nil))
}

var version = regexp.MustCompile(`^v[0-9]+$`)

func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	importPath, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return ""
	}
	base := path.Base(importPath)
	if version.MatchString(base) {
		base = path.Base(path.Dir(importPath))
	}
	return strings.TrimPrefix(base, "go-")
}

// replaceShellBody replaces the lines between "name() {" and the next "}" that
// begins a line.
func replaceShellBody(source []byte, name, body string) ([]byte, error) {
	lines := strings.SplitAfter(string(source), "\n")
	first, end := shellFunction(lines, name)
	if end < 0 {
		return nil, fmt.Errorf("there is no function %s() { ... } with the braces at the beginning and end of lines", name)
	}
	var b strings.Builder
	b.WriteString(strings.Join(lines[:first+1], ""))
	for line := range strings.Lines(body) {
		if line != "\n" {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	b.WriteString(strings.Join(lines[end:], ""))
	return []byte(b.String()), nil
}

// shellFunction returns the indices of a function's first and last line; -1 if there is none.
func shellFunction(lines []string, name string) (first, end int) {
	for i, line := range lines {
		rest, found := strings.CutPrefix(line, name+"() {")
		if !found {
			continue
		}
		if rest = strings.TrimSpace(rest); rest != "" && rest[0] != '#' { // its end would be that of the next one
			return -1, -1
		}
		for j := i + 1; j < len(lines); j++ {
			if strings.HasPrefix(lines[j], "}") {
				return i, j
			}
		}
	}
	return -1, -1
}

// removePath takes a key out of a YAML file, with what is below it. All other
// lines stay as they are.
func removePath(source []byte, e Edit, comment string) ([]byte, error) {
	key, value, err := findPath(source, e)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(source), "\n")
	end := lastLine(value)
	for ; end < len(lines); end++ { // the rest of a text of several lines, comments
		line := strings.TrimRight(lines[end], "\n")
		if line != "" && len(line)-len(strings.TrimLeft(line, " ")) < key.Column {
			break
		}
	}
	for end > key.Line && strings.TrimSpace(lines[end-1]) == "" {
		end--
	}
	indent := strings.Repeat(" ", key.Column-1)
	var b strings.Builder
	b.WriteString(strings.Join(lines[:key.Line-1], ""))
	for line := range strings.Lines(comment) {
		b.WriteString(indent + line)
	}
	b.WriteString(strings.Join(lines[end:], ""))
	opened := []byte(b.String())
	for decoder := yaml.NewDecoder(bytes.NewReader(opened)); ; {
		if err := decoder.Decode(new(yaml.Node)); errors.Is(err, io.EOF) {
			return opened, nil
		} else if err != nil {
			return nil, fmt.Errorf("without %s: %w", e.Path, err)
		}
	}
}

// lastLine is the number of the last line on which a part of the value begins.
func lastLine(n *yaml.Node) int {
	last := n.Line
	for _, child := range n.Content {
		last = max(last, lastLine(child))
	}
	return last
}

func findPath(source []byte, e Edit) (key, value *yaml.Node, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(source))
	var document yaml.Node
	for range e.Document + 1 {
		document = yaml.Node{}
		if err := decoder.Decode(&document); err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", e.Document, err)
		}
	}
	value = document.Content[0]
	for _, part := range strings.Split(e.Path, ".") {
		var next *yaml.Node
		switch value.Kind {
		case yaml.MappingNode:
			for i := 0; i < len(value.Content); i += 2 {
				if value.Content[i].Value == part {
					key, next = value.Content[i], value.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(part); err == nil && i < len(value.Content) {
				next = value.Content[i]
			}
		}
		if next == nil {
			return nil, nil, fmt.Errorf("the path %s ends before %s", e.Path, part)
		}
		value = next
	}
	if key == nil {
		return nil, nil, fmt.Errorf("the path %s names no key", e.Path)
	}
	return key, value, nil
}

// lines returns the lines of a learner's file that an edit is about.
func (t Task) lines(e Edit, source []byte) (first, last int) {
	all := strings.SplitAfter(string(source), "\n")
	switch {
	case e.Function != "" && path.Ext(e.File) == ".go":
		fset := token.NewFileSet()
		if file, _ := parser.ParseFile(fset, "", source, parser.SkipObjectResolution); file != nil {
			if f := godecl.Func(file, e.Function); f != nil {
				return fset.Position(f.Pos()).Line, fset.Position(f.End()).Line
			}
		}
	case e.Function != "":
		if first, end := shellFunction(all, e.Function); end >= 0 {
			return first + 1, end + 1
		}
	case e.Path != "":
		if key, _, err := findPath(source, e); err == nil {
			return key.Line, len(all)
		}
	}
	for i, line := range all {
		if strings.Contains(line, "Your turn, task "+t.ID()) {
			return i + 1, len(all)
		}
	}
	return 1, len(all)
}

// Line returns the file and line to look at for a mistake: the first line that
// its expression matches within what was open, else where that begins.
func (t Task) Line(files Files, m Mistake) (name string, line int) {
	at := regexp.MustCompile(m.At)
	isAbout := func(e Edit) bool { return len(m.Mutant) > 0 && e.File == m.Mutant[0].File }
	for _, about := range []bool{true, false} { // the file that the mistake is about comes first
		for _, e := range t.Open {
			if isAbout(e) != about {
				continue
			}
			first, last := t.lines(e, files[e.File])
			for i, text := range strings.Split(string(files[e.File]), "\n") {
				if m.At != "" && i+1 >= first && i+1 <= last && at.MatchString(text) {
					return e.File, i + 1
				}
			}
		}
	}
	first, _ := t.lines(t.Open[0], files[t.Open[0].File])
	return t.Open[0].File, first
}

// ImportOf returns the import by which our solution has a package of that name, such as
// `corev1 "k8s.io/api/core/v1"`, or "" if it has none.
func (t Task) ImportOf(name string) (string, error) {
	files, err := t.Solution()
	if err != nil {
		return "", err
	}
	for file, source := range files {
		if path.Ext(file) != ".go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
		if err != nil {
			return "", err
		}
		for _, i := range parsed.Imports {
			switch {
			case i.Name != nil && i.Name.Name == name:
				return name + " " + i.Path.Value, nil
			case i.Name == nil && path.Base(strings.Trim(i.Path.Value, `"`)) == name:
				return i.Path.Value, nil
			}
		}
	}
	return "", nil
}

// OpenLine returns the file and line that still say that the task is not done, the
// first of several.
func (t Task) OpenLine(files Files) (name string, line int) {
	for _, e := range t.Open {
		for i, text := range strings.Split(string(files[e.File]), "\n") {
			if strings.Contains(text, t.NotDone()) {
				return e.File, i + 1
			}
		}
	}
	return t.Line(files, Mistake{})
}
