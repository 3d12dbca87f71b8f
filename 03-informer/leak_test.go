package informer

import (
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
	var err error
	for range 10 { // half a second each: what ends only now, on a busy machine, is no leak
		if err = leak(); err == nil {
			return
		}
	}
	fmt.Fprintln(os.Stderr, "LEAK:", err)
	os.Exit(3)
}

func leak() error {
	return goleak.Find(
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), // idle connections belong to the process
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"), // as does the log
	)
}
`

// program builds one of the step's programs with afterMain around its main
// function. It exits with 3 when it leaves a goroutine.
func program(t *testing.T, e *testenv.Env, name string) string {
	t.Helper()
	return e.Program("./03-informer/"+name,
		testenv.Replace("main.go", "\nfunc main() {", "\nfunc lesson() {"), testenv.AddFile("after_main.go", afterMain))
}
