package readme

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// maxWords is the most words that a sentence of a lesson may have; inline code
// counts as one.
const maxWords = 25

var (
	sentenceEnd = regexp.MustCompile(`[.!?]["')]*(\s+|$)`)
	wordless    = regexp.MustCompile(`^[^\pL\pN]*$`) // dashes, arrows and dots that separate words
	inCode      = strings.NewReplacer(" ", "_", ".", "·", "?", "·", "!", "·")
	headless    = regexp.MustCompile(`^(Who|Whoever|Whose|Which|What) `)
)

// notHeadless begins sentences that headless finds although they have a head.
var notHeadless = []string{
	"What happened",            // the heading of a paragraph
	"What you will be able to", // the same
	"What you need",
}

// Prose says of each sentence in a lesson's paragraphs and lists where it
// breaks a rule that a simple check can see: it has over 25 words, or it begins
// with a relative clause that has no head ("Who writes an old one gets 409").
// Code, tables, headings and comments are no sentences.
func Prose(source []byte) []string {
	var faults []string
	tree := goldmark.DefaultParser().Parse(text.NewReader(source))
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n.Kind() {
		case ast.KindParagraph, ast.KindTextBlock:
		case ast.KindHeading:
			return ast.WalkSkipChildren, nil
		default:
			return ast.WalkContinue, nil
		}
		first := source[n.Lines().At(0).Start]
		if !entering || first == '|' { // a table
			return ast.WalkSkipChildren, nil
		}
		line := 1 + strings.Count(string(source[:n.Lines().At(0).Start]), "\n")
		for _, s := range sentences(spoken(n, source)) {
			words := slices.DeleteFunc(strings.Fields(s), wordless.MatchString)
			if len(words) > maxWords {
				faults = append(faults, fmt.Sprintf("line %d: a sentence of %d words, over %d: %s", line, len(words), maxWords, s))
			}
			if headless.MatchString(s) && !strings.HasSuffix(s, "?") &&
				!slices.ContainsFunc(notHeadless, func(begin string) bool { return strings.HasPrefix(s, begin) }) {
				faults = append(faults, fmt.Sprintf("line %d: the sentence begins with a clause that has no head; name who or what it is about: %s", line, s))
			}
		}
		return ast.WalkSkipChildren, nil
	})
	return faults
}

// spoken is a paragraph's text; each piece of inline code is one word without a full stop.
func spoken(n ast.Node, source []byte) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			b.Write(c.Segment.Value(source))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.CodeSpan:
			b.WriteString("`" + inCode.Replace(plain(c, source)) + "`")
		case *ast.RawHTML:
		default:
			b.WriteString(spoken(c, source))
		}
	}
	return b.String()
}

// sentences splits at full stops, question and exclamation marks.
func sentences(paragraph string) []string {
	var result []string
	for rest := strings.TrimSpace(paragraph); rest != ""; {
		end := len(rest)
		if at := sentenceEnd.FindStringIndex(rest); at != nil {
			end = at[1]
		}
		result = append(result, strings.TrimSpace(rest[:end]))
		rest = rest[end:]
	}
	return result
}
