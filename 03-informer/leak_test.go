package informer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

// afterMain is added to each program under test: when the lesson has ended
// well, nothing of it may still be running.
const afterMain = `package main

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

func main() {
	lesson()
	err := goleak.Find(
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), // idle connections belong to the process
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"), // as does the log
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, "LEAK:", err)
		os.Exit(3)
	}
}
`

// overlay writes the file for go build -overlay that puts afterMain around the
// main function of every program of this step, and returns its path in dir.
func overlay(dir string) (string, error) {
	mains, err := filepath.Glob("*/main.go")
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, path := range mains {
		source, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		renamed := filepath.Join(dir, filepath.Base(filepath.Dir(abs))+".go")
		if err := os.WriteFile(renamed, []byte(strings.Replace(string(source), "\nfunc main() {", "\nfunc lesson() {", 1)), 0o600); err != nil {
			return "", err
		}
		replace[abs] = renamed
		replace[filepath.Join(filepath.Dir(abs), "after_main.go")] = filepath.Join(dir, "after_main.go")
	}
	if err := os.WriteFile(filepath.Join(dir, "after_main.go"), []byte(afterMain), 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o600)
}

// program builds one of the step's programs. It exits with 3 when it leaves a
// goroutine. GOFLAGS=-race reaches it, too.
func program(t *testing.T, e *testenv.Env, name string) string {
	t.Helper()
	path, err := overlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	flags := os.Getenv("GOFLAGS")
	defer os.Setenv("GOFLAGS", flags)
	os.Setenv("GOFLAGS", strings.TrimSpace(flags+" -overlay="+path))
	return e.Program("./03-informer/" + name)
}
