package crdtest

import (
	"cmp"
	"context"
	"os"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// shared are the definitions that the tests of one package use side by side.
var shared = struct {
	mu    sync.Mutex
	users map[string]int // by name
}{users: map[string]int{}}

// Share installs definitions for tests that run side by side: the first test
// that needs one installs it, and the last one removes it.
//
// When a learner's files are checked, a definition that is there is used and
// stays, because the learner may have objects of it. Whoever runs the check makes
// sure that it is the same as ours. One that is applied during the check stays, too.
func Share(t testing.TB, e *testenv.Env, paths ...string) {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	checking := os.Getenv(exercise.WorkEnv) != ""
	var missing []*apiextensionsv1.CustomResourceDefinition
	for _, path := range paths {
		crd := Read(t, path)
		t.Cleanup(func() {
			shared.mu.Lock()
			defer shared.mu.Unlock()
			if shared.users[crd.Name]--; shared.users[crd.Name] > 0 {
				return
			}
			if !checking || labelOf(t, e, crd.Name) == forCheck {
				Remove(t, e, crd.Name)
			}
		})
		if shared.users[crd.Name]++; shared.users[crd.Name] > 1 {
			continue
		}
		if checking {
			e.OwnDefinitions()
			if label := labelOf(t, e, crd.Name); label != "" && label != forCheck {
				continue
			}
			metav1.SetMetaDataLabel(&crd.ObjectMeta, Label, forCheck)
		}
		missing = append(missing, crd)
	}
	if len(missing) > 0 {
		Install(withoutCleanup{t}, e, missing...)
	}
}

// forCheck is the label of a definition that is there only for a check.
const forCheck = "check"

// labelOf returns who has made a definition; "" if there is none.
func labelOf(t testing.TB, e *testenv.Env, name string) string {
	t.Helper()
	ctx := context.WithoutCancel(e.Context())
	crd, err := Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	fatal.If(t, err)
	return cmp.Or(crd.Labels[Label], "somebody")
}

// withoutCleanup is a test whose clean-up functions never run, so that the
// definitions that were installed for it stay.
type withoutCleanup struct{ testing.TB }

func (withoutCleanup) Cleanup(func()) {}
