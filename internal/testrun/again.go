package testrun

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// mostAgain is how many tests run a second time. More are no accident of a busy machine.
const mostAgain = 3

// A failure is a test that failed, and the job that it was in.
type failure struct {
	pkg, test string
	job       int
}

// again returns the tests that a second run can clear, or none: where something else than
// a test has failed, or a package did not come to its end, or a data race was seen, a
// test that passes later shows nothing.
func (r Run) again(tests *testjson.Execution, errs []error) []failure {
	for _, err := range errs {
		var exit *exec.ExitError
		var left unclean
		if err != nil && (errors.As(err, &left) || !errors.As(err, &exit)) {
			return nil
		}
	}
	if len(tests.Errors()) > 0 || tests.HasPanic() || tests.HasDataRace() {
		return nil
	}
	var failed []failure
	for _, t := range tests.Failed() {
		root, _ := t.Test.Split()
		job := slices.IndexFunc(r.Jobs, func(args []string) bool { return slices.Contains(args, t.Package) })
		if root == "" || job < 0 { // the package itself, or one that was named by a pattern
			return nil
		}
		var said strings.Builder
		if err := tests.Package(t.Package).WriteOutputTo(&said, 0); err != nil || strings.Contains(said.String(), "error: cleaning up after the tests: ") {
			return nil // what is left, no second run takes away
		}
		if f := (failure{t.Package, root, job}); !slices.Contains(failed, f) {
			failed = append(failed, f)
		}
	}
	if len(failed) > mostAgain {
		return nil
	}
	return failed
}

// rerun runs one test alone, in the first seat.
func (r Run) rerun(ctx context.Context, f failure) error {
	flags := slices.DeleteFunc(slices.Clone(r.Jobs[f.job]), func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	r.Jobs = [][]string{append(flags, "-run=^"+regexp.QuoteMeta(f.test)+"$", f.pkg)}
	r.Seats = r.Seats[:min(1, len(r.Seats))]
	_, err := r.once(ctx)
	return err
}

// clear runs the tests that failed once more, one after another, and returns nil if all
// of them pass. They are named in any case: each is a fault of the test or of the code.
func (r Run) clear(ctx context.Context, failed []failure) error {
	var errs []error
	for i, f := range failed {
		name := testjson.RelativePackagePath(f.pkg) + " " + f.test
		fmt.Fprintf(r.Out, "\nOnce more, alone (%d of %d): %s\n", i+1, len(failed), name)
		verdict := "FLAKY: %s failed once and passed alone; its first output is above\n"
		if err := r.rerun(ctx, f); err != nil {
			errs = append(errs, err)
			verdict = "FAILED twice: %s\n"
		}
		fmt.Fprintf(r.Out, verdict, name)
	}
	return errors.Join(errs...)
}
