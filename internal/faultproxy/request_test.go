package faultproxy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An object of no Table may have any field.
func TestEventOfAnObjectWithRows(t *testing.T) {
	got, err := parse([]byte(`{"type":"ADDED","object":{"kind":"Shelf","metadata":{"namespace":"n","name":"a","resourceVersion":"7"},"rows":12}}`))
	if want := (Event{Type: "ADDED", Kind: "Shelf", Namespace: "n", Name: "a", ResourceVersion: "7"}); err != nil || got != want {
		t.Errorf("%v %v", got, err)
	}
}

// kubectl get --watch asks for Tables, and what it watches is in their rows.
func TestEventOfATable(t *testing.T) {
	for _, version := range []string{`"metadata":{"resourceVersion":"7"},`, `"metadata":{},`} {
		got, err := parse([]byte(`{"type":"ADDED","object":{"kind":"Table",` + version +
			`"rows":[{"cells":["a"],"object":{"kind":"PartialObjectMetadata","metadata":{"namespace":"n","name":"a","resourceVersion":"7"}}}]}}`))
		want := Event{Type: "ADDED", Kind: "PartialObjectMetadata", Namespace: "n", Name: "a", ResourceVersion: "7"}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
}
