// Package conflict writes what others write, too.
package conflict

import (
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// Retry is retry.RetryOnConflict, and returns the error of the last attempt. That of client-go 0.36 makes nil of a
// first attempt that its context has ended (kubernetes/kubernetes#140402), as that of a killed controller's request does.
func Retry(backoff wait.Backoff, attempt func() error) error {
	var last error
	_ = retry.RetryOnConflict(backoff, func() error {
		last = attempt()
		return last
	})
	return last
}
