package main

import (
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// recordAnnotation is on a Deployment from the moment that it gets the new
// image until the whole rollout is through, or undone. Beware: the controller
// copies a Deployment's annotations to its ReplicaSet, and kubectl rollout undo
// copies them back from there.
const recordAnnotation = "workshop.k8s-go.dev/staged-rollout"

// A record is what recordAnnotation holds, as JSON: what to go back to.
type record struct {
	Container string `json:"container"`
	From      string `json:"from"`
	To        string `json:"to"`
	Order     int    `json:"order"`     // its place in the plan, from 1: the way back is the way there, reversed
	Available bool   `json:"available"` // whether it was available before; if not, the way back need not wait for it
}

// recordOf returns the record on a Deployment, or nil.
func recordOf(d *appsv1.Deployment) (*record, error) {
	text, ok := d.Annotations[recordAnnotation]
	if !ok {
		return nil, nil
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Container == "" || r.From == "" || r.To == "" {
		return nil, fmt.Errorf("%s: annotation %s is not one that this program wrote: %s", d.Name, recordAnnotation, text)
	}
	return &r, nil
}

// containerOf returns the container of that name, or the only one if name is empty.
func containerOf(d *appsv1.Deployment, name string) (*corev1.Container, error) {
	containers := d.Spec.Template.Spec.Containers
	if name == "" && len(containers) == 1 {
		return &containers[0], nil
	}
	var names []string
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i], nil
		}
		names = append(names, containers[i].Name)
	}
	if name == "" {
		return nil, fmt.Errorf("%s has the containers %s: say which one with -container", d.Name, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("%s has no container %q, only %s", d.Name, name, strings.Join(names, ", "))
}

// advance returns the patch that gives a Deployment the new image, and the
// image that it has now. The patch is nil if the image is there already, set by
// an earlier run of this rollout or by somebody else.
func advance(d *appsv1.Deployment, container, image string, order int) (patch []byte, from string, err error) {
	c, err := containerOf(d, container)
	if err != nil {
		return nil, "", err
	}
	r, err := recordOf(d)
	if err != nil {
		return nil, "", err
	}
	switch {
	case r != nil && (r.To != image || r.Container != c.Name):
		return nil, "", fmt.Errorf("%s is in an unfinished rollout of container %s to %s: finish that one first, or undo it with -rollback", d.Name, r.Container, r.To)
	case r != nil && c.Image != image:
		return nil, "", fmt.Errorf("%s: somebody has set the image to %s since an unfinished rollout: clear that with -rollback", d.Name, c.Image)
	case d.Spec.Paused:
		return nil, "", fmt.Errorf("%s is paused: it would never get to the new image", d.Name)
	case c.Image == image:
		return nil, image, nil
	}
	text, err := json.Marshal(record{Container: c.Name, From: c.Image, To: image, Order: order, Available: d.Status.AvailableReplicas >= replicas(d)})
	if err != nil {
		return nil, "", err
	}
	patch, err = patchOf(d, string(text), c.Name, image)
	return patch, c.Image, err
}

// restore returns the patch that takes a rollout back, and the record that it
// follows. Both are nil where there is nothing to take back. If the image is
// not the rollout's any more, the patch removes the record only, and lost is
// the image that somebody else has set.
func restore(d *appsv1.Deployment, to string) (patch []byte, r *record, lost string, err error) {
	r, err = recordOf(d)
	if err != nil || r == nil || to != "" && r.To != to {
		return nil, nil, "", err
	}
	c, err := containerOf(d, r.Container)
	if err == nil && c.Image == r.To {
		patch, err = patchOf(d, nil, r.Container, r.From)
		return patch, r, "", err
	}
	if lost = "no container " + r.Container; err == nil {
		lost = c.Image
	}
	patch, err = forget(d)
	return patch, r, lost, err
}

// forget returns the patch that removes the record, or nil if there is none.
func forget(d *appsv1.Deployment) ([]byte, error) {
	if _, ok := d.Annotations[recordAnnotation]; !ok {
		return nil, nil
	}
	return patchOf(d, nil, "", "")
}

// patchOf returns a strategic merge patch with the record (nil removes it) and,
// unless container is empty, an image. It holds nothing else, so what others
// write at the same time stays; and the resourceVersion, so the server refuses
// it with a conflict if the Deployment is not the one that we decided on.
//
// Server-side apply would be the wrong tool: it owns what it sets, and an
// applied image that is no longer applied is removed, not put back.
func patchOf(d *appsv1.Deployment, text any, container, image string) ([]byte, error) {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": d.ResourceVersion,
		"annotations":     map[string]any{recordAnnotation: text},
	}}
	if container != "" {
		patch["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": container, "image": image}},
		}}}
	}
	return json.Marshal(patch)
}
