package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/testfile"
)

// Each case is one file of a good clone, as somebody has changed it.
func TestGlossary(t *testing.T) {
	t.Parallel()
	const good = "# Glossary\n\n- **cache copy**: A copy. [02](02-two/README.md#1-fill-the-cache)\n- **entry** (item): One of `v1.entries`,\n  as a rule.\n  [01](01-one/README.md)\n"
	later, first := "01-one/README.md:4: 02-two/README.md explains cache copy later; link the word to GLOSSARY.md", "02-two/README.md:4: the first use of cache copy; explain it there and make it bold, or link it to GLOSSARY.md"
	entry := "GLOSSARY.md: write - **term**: One sentence. [NN](document of step NN) in place of: "
	for i, tc := range []struct{ file, text, want string }{
		{glossaryFile, good, ""},
		{glossaryFile, "# Glossary\n\n| term | text |\n", "GLOSSARY.md has no entry"},
		{glossaryFile, "- cache copy: A copy.\n", entry + "cache copy: A copy."},
		{glossaryFile, "- **cache copy**: A copy. Old. [02](02-two/README.md)\n", entry + "**cache copy**: A copy. Old."},
		{glossaryFile, "- **cache copy**: A copy. [03](03-three/README.md)\n", "GLOSSARY.md: the place of cache copy is 03-three/README.md, which is no document of a step"},
		{glossaryFile, good + "- **Cache**: Memory. [02](02-two/README.md#1-fill-the-cache)\n", "GLOSSARY.md: in the alphabet, Cache does not come after entry"},
		{glossaryFile, good + "- **owner**: Whose. [01](01-one/README.md)\n", "GLOSSARY.md: 01-one/README.md does not use owner; name the place that explains it"},

		{"01-one/README.md", "# One\n\n## Idea\nMany **entries**, and cache\ncopies.\n", later},
		{"01-one/README.md", "# One\n\n## Idea\nA **Cache copy** has **entries**.\n", later},
		{"01-one/README.md", "# One\n\n## Idea\nA [cache copy](https://example.org/GLOSSARY.md) of an **entry**.\n", later},
		{"01-one/README.md", "# One\n\n## Idea\nA [cache copy](../GLOSSARY.md#c) of an **entry**. One more cache copy.\n", ""},
		{"01-one/README.md", "# One\n\n## Idea\nA [cache copy](../02-two/README.md) of an **entry**.\n", ""},
		{"01-one/README.md", "# One of a cache copy\n\nA cache copy.\n\n## A cache copy\n`cache copy`, cache-copy, precache copy <!-- cache copy -->, [x](cache copy), cache\n\n" +
			"copy\n\n```go\ncache copy\n```\n\n**Entry**\n", ""},
		{"01-one/README.md", "# One\n\n## An entry\nAn entry is an **entry**.\n", "01-one/README.md:4: the first use of entry"},

		{"02-two/README.md", "# Two\n\n## Idea\nA cache copy.\n\n## 1. Fill the `cache`!\n\nA **cache copy**.\n", first},
		{"02-two/README.md", "# Two\n\n## Idea\nA cache copy.\n\n## 1. Fill the `cache`!\n\n## 2. Read it\n", first},
		{"02-two/README.md", "# Two\n\n## Idea\nA **cache copy**.\n\n## 1. Fill the `cache`!\n", ""},
		{"02-two/README.md", "# Two\n\n## Idea\nA [cache copy](../GLOSSARY.md).\n\n## 1. Fill the `cache`!\n", ""},
		{"02-two/reference.md", "# Two\n\n## More\nA cache copy, an entry.\n", ""},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			ws := clone(t)
			testfile.WriteAll(t, ws.Root, map[string]string{
				glossaryFile:          good,
				"01-one/README.md":    "# One\n\n## Idea\n\nMany **entries**.\n",
				"02-two/README.md":    "# Two\n\n## Idea\n\n## 1. Fill the `cache`!\n\nA cache\ncopy.\n",
				"02-two/reference.md": "# More\n",
			})
			testfile.WriteAll(t, ws.Root, map[string]string{tc.file: tc.text})
			err := verifyGlossary(ws, []string{"01-one/README.md", "02-two/README.md", "02-two/reference.md"})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s\n%s\nerror %v\nwant  %s", tc.file, tc.text, err, tc.want)
			}
		})
	}
}

// These are the anchors that GitHub gives to headings.
func TestAnchors(t *testing.T) {
	t.Parallel()
	p := proseOf("README.md", []byte("# Ours, whole\n## 7. Say `it`: a_b & c-d?\n## Größe\n## Größe\n"))
	for _, anchor := range []string{"ours-whole", "7-say-it-a_b--c-d", "größe", "größe-1"} {
		if !p.within(-1, "section "+anchor) {
			t.Errorf("%v has no section %s", p.parts, anchor)
		}
	}
	if p.within(-1, "section größe-2") {
		t.Error("a heading counts twice")
	}
}
