// Package fatal ends a test at an error that leaves it nothing to look at.
package fatal

import "testing"

// If ends the test if there is an error.
func If(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
