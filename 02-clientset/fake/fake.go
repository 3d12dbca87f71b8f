// Package fake asks the same questions of any client, so that its test can
// compare client-go's fake clientset with a real server.
package fake

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Answers is what a client answered: "ok", or the reason of the error.
type Answers struct {
	CreateAgain   string // creating an object that exists
	GetMissing    string // reading one that does not
	ByLabel       int    // objects listed with a label that one of two has
	UpdateStale   string // updating from a copy that somebody has overwritten since
	LostUpdate    bool   // the other writer's change is gone afterwards
	CreateBadName string // creating an object with a name that is none
	ByField       int    // objects listed with a field that one of two has
}

// Ask works on two ConfigMaps in a namespace that holds no others with the
// label lesson=fake. The function takes the interface, as code should that
// wants to be tested with a fake.
func Ask(ctx context.Context, client kubernetes.Interface, namespace string) (Answers, error) {
	configMaps := client.CoreV1().ConfigMaps(namespace)
	var a Answers
	for _, role := range []string{"first", "second"} {
		if _, err := configMaps.Create(ctx, configMap(role), metav1.CreateOptions{}); err != nil {
			return a, fmt.Errorf("creating: %w", err)
		}
	}
	_, err := configMaps.Create(ctx, configMap("first"), metav1.CreateOptions{})
	a.CreateAgain = outcome(err)
	_, err = configMaps.Get(ctx, "missing", metav1.GetOptions{})
	a.GetMissing = outcome(err)

	list, err := configMaps.List(ctx, metav1.ListOptions{LabelSelector: "lesson=fake,role=first"})
	if err != nil {
		return a, fmt.Errorf("listing by label: %w", err)
	}
	a.ByLabel = len(list.Items)
	list, err = configMaps.List(ctx, metav1.ListOptions{LabelSelector: "lesson=fake", FieldSelector: "metadata.name=first"})
	if err != nil {
		return a, fmt.Errorf("listing by field: %w", err)
	}
	a.ByField = len(list.Items)

	ours, err := configMaps.Get(ctx, "first", metav1.GetOptions{})
	if err != nil {
		return a, fmt.Errorf("reading: %w", err)
	}
	theirs := ours.DeepCopy()
	theirs.Data = map[string]string{"theirs": "yes"}
	if _, err := configMaps.Update(ctx, theirs, metav1.UpdateOptions{}); err != nil {
		return a, fmt.Errorf("updating: %w", err)
	}
	ours.Data = map[string]string{"ours": "yes"}
	_, err = configMaps.Update(ctx, ours, metav1.UpdateOptions{})
	a.UpdateStale = outcome(err)
	after, err := configMaps.Get(ctx, "first", metav1.GetOptions{})
	if err != nil {
		return a, fmt.Errorf("reading: %w", err)
	}
	a.LostUpdate = after.Data["theirs"] == ""

	_, err = configMaps.Create(ctx, configMap("Not_A_Name"), metav1.CreateOptions{})
	a.CreateBadName = outcome(err)
	return a, nil
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return string(apierrors.ReasonForError(err))
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"lesson": "fake", "role": name}}}
}
