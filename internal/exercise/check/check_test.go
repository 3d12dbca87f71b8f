package check

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A verdict about YAML points at a line of the file, also in its second document.
func TestReadYAMLNamesTheLine(t *testing.T) {
	t.Parallel()
	const first = "# a comment\nkind: ConfigMap\n---\n"
	for _, tc := range []struct {
		name, text string
		line       int // 0: it can be read
	}{
		{"right", first + "kind: ConfigMap\n", 0},
		{"in the first", "kind: ConfigMap\ndata: a: b\n---\nkind: ConfigMap\n", 2},
		{"in the second", first + "kind: ConfigMap\ndata: a: b\n", 5},
		{"twice", first + "kind: ConfigMap\nkind: ConfigMap\n", 5},
		{"unknown field", first + "kind: ConfigMap\ndada: {}\n", 1}, // without a number: where the task begins
		{"one document", "kind: ConfigMap\n", 1},
		{"begun with a separator", "# mine\n---\nkind: ConfigMap\n---\nkind: ConfigMap\ndata: a: b\n", 6},
		{"of Windows", "kind: ConfigMap\r\n---\r\nkind: ConfigMap\r\n", 0},
		{"with a comment between", "kind: ConfigMap\n--- # the second\nkind: ConfigMap\ndata: a: b\n", 4},
		{"a comment is no document", "kind: ConfigMap\n---\n# nothing\n", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			step := workspace.Step{Name: "04-step", Number: 4, Dir: t.TempDir()}
			task := exercise.Task{Step: step, Number: 1, Name: "task", Files: map[string]string{"x.yaml": "ours.yaml"}, Open: []exercise.Edit{{File: "x.yaml", Path: "data"}}}
			c := &C{T: t, task: task, tree: t.TempDir()}
			for _, path := range []string{filepath.Join(step.Dir, "ours.yaml"), c.Path("x.yaml")} {
				testfile.Write(t, path, tc.text)
			}
			var v exercise.Verdict
			func() {
				defer func() {
					switch r := recover().(type) {
					case nil:
					case ended:
						v = r.verdict
					default:
						panic(r)
					}
				}()
				c.ReadYAML("x.yaml", "two ConfigMaps", &corev1.ConfigMap{}, &corev1.ConfigMap{})
			}()
			if v.Line != tc.line || tc.line > 0 && (v.Outcome != exercise.Failed || v.File != "x.yaml") {
				t.Errorf("verdict %+v, want line %d", v, tc.line)
			}
		})
	}
}

// crashed returns what a program logs that recovers from a panic, and the panic's line.
func crashed() (log string, line int) {
	defer func() {
		if r := recover(); r != nil {
			log = fmt.Sprintf("E0102 \"Trying again later\" err=<\n\tpanic: %v\n\t%s\n >\n", r, strings.ReplaceAll(string(debug.Stack()), "\n", "\n\t"))
		}
	}()
	_, _, line, _ = runtime.Caller(0)
	return os.Args[len(os.Args)], line // the line below that one
}

func TestFindCrash(t *testing.T) {
	t.Parallel()
	dir, err := os.Getwd()
	fatal.If(t, err)
	log, line := crashed()
	got := findCrash("I0102 \"Working\"\n"+log, dir)
	if got == nil {
		t.Fatal("no panic found in\n" + log)
	}
	if want := (place{"check_test.go", line + 1}); got.place != want || !strings.HasPrefix(got.says, "panic: runtime error: index out of range [") {
		t.Errorf("got %+v, want a panic at %+v", *got, want)
	}
	// The mutation detector compares in a goroutine of its own, long after the change.
	detected := findCrash("CACHE *v1.ConfigMap[2] ALTERED!\npanic: cache *v1.ConfigMap modified\n\ngoroutine 40 [running]:\n"+
		"k8s.io/client-go/tools/cache.(*defaultCacheMutationDetector).CompareObjects(0xc000)\n", dir)
	if detected == nil || detected.line != 0 || !strings.HasPrefix(detected.says, "panic: cache *v1.ConfigMap modified: ") {
		t.Errorf("got %+v", detected)
	}
	for name, found := range map[string]*crash{
		"elsewhere":  findCrash(log, dir+"/elsewhere"),
		"no panic":   findCrash("do not panic: all is well\n\t"+dir+"/check_test.go:1", dir),
		"before it":  findCrash("\t"+dir+"/check_test.go:1\npanic: later", dir),
		"no message": findCrash("", dir),
	} {
		if found != nil {
			t.Errorf("%s: found %+v", name, *found)
		}
	}
}

// A compiler message leads to the learner's file, also where the step has a module of its own.
func TestShownModule(t *testing.T) {
	t.Parallel()
	tree := filepath.Join(t.TempDir(), "work")
	testfile.WriteAll(t, tree, map[string]string{"go.mod": "", "10-ten/go.mod": "", "10-ten/icecream/main.go": "", "03-three/repair/main.go": ""})
	for folder, want := range map[string]string{"10-ten/icecream": "work/10-ten", "03-three/repair": "work"} {
		if got := shownModule(tree, filepath.Join(tree, folder)); got != want {
			t.Errorf("%s: %s, want %s", folder, got, want)
		}
	}
}
