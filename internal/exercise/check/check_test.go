package check

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

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
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	log, line := crashed()
	got := findCrash("I0102 \"Working\"\n"+log, dir)
	if got == nil {
		t.Fatal("no panic found in\n" + log)
	}
	if want := (place{"check_test.go", line + 1}); got.place != want || !strings.HasPrefix(got.says, "panic: runtime error: index out of range [") {
		t.Errorf("got %+v, want a panic at %+v", *got, want)
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
