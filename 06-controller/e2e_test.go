package controller

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	// The tests mostly wait for the cluster, so more of them can run side by side
	// than the machine has cores.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "16"); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(2)
		}
	}
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }
