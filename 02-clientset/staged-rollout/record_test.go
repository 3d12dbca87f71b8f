package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/k8s-go/workshop/internal/fatal"
)

func web(image, recorded string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "7", Annotations: map[string]string{"owner": "anna"}}}
	d.Spec.Replicas = new(int32(2))
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "log", Image: "log:1"}, {Name: "web", Image: image, Args: []string{"-v"}}}
	if recorded != "" {
		d.Annotations[recordAnnotation] = recorded
	}
	return d
}

// patched applies a patch as the API server does.
func patched(t *testing.T, d *appsv1.Deployment, patch []byte) *appsv1.Deployment {
	t.Helper()
	if !strings.Contains(string(patch), `"resourceVersion":"7"`) {
		t.Errorf("without the resourceVersion, %s overwrites what others do meanwhile", patch)
	}
	before, err := json.Marshal(d)
	fatal.If(t, err)
	after, err := strategicpatch.StrategicMergePatch(before, patch, d)
	fatal.If(t, err)
	var result appsv1.Deployment
	fatal.If(t, json.Unmarshal(after, &result))
	return &result
}

func TestThereAndBack(t *testing.T) {
	before := web("web:1", "")
	patch, from, err := advance(before, "web", "web:2", 3)
	if err != nil || from != "web:1" {
		t.Fatal(from, err)
	}
	there := patched(t, before, patch)
	r, err := recordOf(there)
	fatal.If(t, err)
	if diff := cmp.Diff(&record{Container: "web", From: "web:1", To: "web:2", Order: 3}, r); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(web("web:2", there.Annotations[recordAnnotation]), there); diff != "" {
		t.Errorf("besides image and record (-want +got):\n%s", diff)
	}
	if patch, _, err := advance(there, "web", "web:2", 3); patch != nil || err != nil {
		t.Errorf("the second time: patch %s, error %v", patch, err)
	}
	patch, _, lost, err := restore(there, "web:2")
	if err != nil || lost != "" {
		t.Fatal(lost, err)
	}
	if diff := cmp.Diff(before, patched(t, there, patch)); diff != "" {
		t.Errorf("after the way back (-want +got):\n%s", diff)
	}
	patch, err = forget(there)
	fatal.If(t, err)
	if diff := cmp.Diff(web("web:2", ""), patched(t, there, patch)); diff != "" {
		t.Errorf("after the end (-want +got):\n%s", diff)
	}
}

func TestRestoreKeepsWhatOthersSet(t *testing.T) {
	d := web("web:9", `{"container":"web","from":"web:1","to":"web:2"}`)
	patch, _, lost, err := restore(d, "")
	if err != nil || lost != "web:9" {
		t.Fatalf("lost %q, error %v", lost, err)
	}
	if diff := cmp.Diff(web("web:9", ""), patched(t, d, patch)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if patch, _, _, err := restore(web("web:2", `{"container":"web","from":"web:1","to":"web:2"}`), "web:3"); patch != nil || err != nil {
		t.Errorf("a rollout to another image is undone: %s, %v", patch, err)
	}
}

func TestAdvanceRefuses(t *testing.T) {
	paused := web("web:1", "")
	paused.Spec.Paused = true
	for name, tc := range map[string]struct {
		d               *appsv1.Deployment
		container, want string
	}{
		"several containers":    {web("web:1", ""), "", "web has the containers log, web: say which one with -container"},
		"no such container":     {web("web:1", ""), "db", `web has no container "db", only log, web`},
		"paused":                {paused, "web", "paused"},
		"unfinished, other":     {web("web:5", `{"container":"web","from":"web:1","to":"web:5"}`), "web", "unfinished rollout of container web to web:5"},
		"unfinished, container": {web("web:1", `{"container":"log","from":"log:0","to":"web:2"}`), "web", "unfinished rollout of container log"},
		"changed meanwhile":     {web("web:9", `{"container":"web","from":"web:1","to":"web:2"}`), "web", "somebody has set the image to web:9"},
		"not a record":          {web("web:1", `yes`), "web", "is not one that this program wrote"},
		"half a record":         {web("web:1", `{"container":"web","to":"web:2"}`), "web", "is not one that this program wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			patch, _, err := advance(tc.d, tc.container, "web:2", 1)
			if err == nil || !strings.Contains(err.Error(), tc.want) || patch != nil {
				t.Errorf("patch %s, error %v, want %q", patch, err, tc.want)
			}
		})
	}
}
