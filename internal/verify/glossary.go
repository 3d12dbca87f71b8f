package verify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/workspace"
)

// glossaryFile has one sentence for each term, and the place where a lesson explains the
// term first, which is a section of a document, or a whole document:
//
//   - **ghost**: An object that a client still has in its copy, although it is deleted. [03](03-informer/README.md#1-cut-the-connection)
const glossaryFile = "GLOSSARY.md"

var glossaryEntry = regexp.MustCompile(`^\*\*([^*]+)\*\*[^:]*: (?:[^.]|\.\S)+\.\s+\[\d\d\]\(([^)#]+)#?([^)]*)\)(?:\n|$)`)

// verifyGlossary checks that no lesson uses a term before it is explained. The first use in
// the prose of each document, up to the document of the term's place, has to be
//   - a link to the glossary or to the document of the place; or
//   - bold, or in the section of the place, if it is in the document of the place.
//
// A use is the term as a whole word, in any case, singular or plural. Headings do not count,
// because they announce what follows.
func verifyGlossary(ws workspace.Workspace, documents []string) error {
	glossary, err := os.ReadFile(filepath.Join(ws.Root, glossaryFile))
	if err != nil {
		return err
	}
	pages := map[string]prose{}
	for _, name := range documents {
		source, err := os.ReadFile(filepath.Join(ws.Root, name))
		if err != nil {
			return err
		}
		pages[name] = proseOf(name, source)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	last := ""
	for _, item := range strings.Split("\n"+string(glossary), "\n- ")[1:] {
		m := glossaryEntry.FindStringSubmatch(item)
		if m == nil {
			wrong("%s: write - **term**: One sentence. [NN](document of step NN) in place of: %.60s", glossaryFile, item)
			continue
		}
		term, place, section := m[1], m[2], m[3]
		if strings.ToLower(term) <= last {
			wrong("%s: in the alphabet, %s does not come after %s", glossaryFile, term, last)
		}
		last = strings.ToLower(term)
		if !slices.Contains(documents, place) {
			wrong("%s: the place of %s is %s, which is no document of a step", glossaryFile, term, place)
		}
		for _, name := range documents[:slices.Index(documents, place)+1] {
			page := pages[name]
			at, line := page.firstUse(term)
			switch {
			case at < 0 && name == place:
				wrong("%s: %s does not use %s; name the place that explains it", glossaryFile, place, term)
			case at < 0 || page.within(at, "link "+glossaryFile) || page.within(at, "link "+place):
			case name != place:
				wrong("%s:%d: %s explains %s later; link the word to %s", name, line, place, term, glossaryFile)
			case !page.within(at, "bold") && !page.within(at, "section "+section):
				wrong("%s:%d: the first use of %s; explain it there and make it bold, or link it to %s", name, line, term, glossaryFile)
			}
		}
	}
	if last == "" {
		wrong("%s has no entry", glossaryFile)
	}
	return errors.Join(errs...)
}

// prose is a document, and the same with a | for each byte of code, comments, headings and targets of links.
type prose struct {
	source, text []byte
	parts        []part
}

// A part of a document is bold, a link to a file of the clone, or a section with its anchor.
type part struct {
	what     string
	from, to int
}

var (
	noProse  = regexp.MustCompile("(?ms)^ *```.*?^ *```$|<!--.*?-->|`[^`]*`")
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	linkText = regexp.MustCompile(`\[[^\]]*(\]\(([^)#]*)[^)]*\))`)
	boldText = regexp.MustCompile(`\*\*[^*]+\*\*`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`) // what GitHub leaves out of a heading's anchor
)

// proseOf reads a document. What it promises above its first "## " is no prose.
func proseOf(name string, source []byte) prose {
	p := prose{source: source, text: bytes.Clone(source)}
	blank := func(from, to int) { copy(p.text[from:to], bytes.Repeat([]byte("|"), to-from)) }
	for _, m := range noProse.FindAllIndex(source, -1) {
		blank(m[0], m[1])
	}
	seen := map[string]int{}
	for i, m := range heading.FindAllSubmatchIndex(p.text, -1) {
		if i > 0 {
			p.parts[i-1].to = m[0]
		}
		anchor := strings.ReplaceAll(strings.ToLower(noAnchor.ReplaceAllString(string(source[m[2]:m[3]]), "")), " ", "-")
		if seen[anchor]++; seen[anchor] > 1 {
			anchor += fmt.Sprintf("-%d", seen[anchor]-1)
		}
		p.parts = append(p.parts, part{"section " + anchor, m[0], len(source)})
		blank(m[0], m[1])
	}
	for _, m := range linkText.FindAllSubmatchIndex(p.text, -1) {
		p.parts = append(p.parts, part{"link " + path.Join(path.Dir(name), string(source[m[4]:m[5]])), m[0], m[2]})
		blank(m[2], m[1])
	}
	for _, m := range boldText.FindAllIndex(p.text, -1) {
		p.parts = append(p.parts, part{"bold", m[0], m[1]})
	}
	blank(0, max(0, bytes.Index(source, []byte("\n## "))))
	return p
}

// within says whether a place in the text is in such a part; -1 is anywhere.
func (p prose) within(at int, what string) bool {
	return slices.ContainsFunc(p.parts, func(q part) bool { return q.what == what && (at < 0 || q.from <= at && at < q.to) })
}

// firstUse returns where a term is used first, and in which line, or -1.
func (p prose) firstUse(term string) (at, line int) {
	words := strings.ReplaceAll(regexp.QuoteMeta(term), " ", `(?: |\n *)`)
	if stem, ok := strings.CutSuffix(words, "y"); ok {
		words = stem + "(?:y|ie)"
	}
	m := regexp.MustCompile(`(?i)(?:^|[^\w-])(` + words + `(?:e?s)?)(?:$|[^\w-])`).FindSubmatchIndex(p.text)
	if m == nil {
		return -1, 0
	}
	return m[2], 1 + bytes.Count(p.source[:m[2]], []byte("\n"))
}
