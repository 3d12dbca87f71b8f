package fake

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	clientfake "k8s.io/client-go/kubernetes/fake"
)

// TestFakeClientset needs no cluster. TestRealServer, in the folder above,
// asks a real one; both together say what a unit test may rely on.
func TestFakeClientset(t *testing.T) {
	got, err := Ask(t.Context(), clientfake.NewClientset(), "default")
	if err != nil {
		t.Fatal(err)
	}
	want := Answers{
		// Right: it keeps objects, and knows which it has.
		CreateAgain: "AlreadyExists",
		GetMissing:  "NotFound",
		ByLabel:     1,
		// Wrong: it compares no versions, validates nothing, knows no fields, and
		// does nothing that a server or a controller would add: uids, defaults,
		// finalizers, garbage collection. A retry loop that forgets to re-read
		// passes such a test.
		UpdateStale:   "ok",
		LostUpdate:    true,
		CreateBadName: "ok",
		ByField:       2,
		UID:           false,
		Finalizer:     false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers of the fake (-want +got):\n%s", diff)
	}
}
