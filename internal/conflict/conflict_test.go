package conflict

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
)

func TestRetry(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "", nil)
	for what, answers := range map[string][]error{
		"canceled at first":      {context.Canceled},
		"canceled after another": {conflict, context.Canceled},
		"in time":                {conflict, nil},
		"too often":              {conflict, conflict, conflict, conflict},
	} {
		n := 0
		err := Retry(retry.DefaultBackoff, func() error {
			n++
			return answers[n-1]
		})
		if want := answers[len(answers)-1]; n != len(answers) || !errors.Is(err, want) {
			t.Errorf("%s: %v after %d attempts, want %v after %d", what, err, n, want, len(answers))
		}
	}
}
