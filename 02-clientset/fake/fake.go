// Package fake asks the same questions of any client, so that its test can
// compare client-go's fake clientset with a real server.
package fake

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
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
	UID           bool   // what was created has a uid
	Finalizer     bool   // an object with a finalizer outlives its deletion
}

// Ask works on two ConfigMaps in a namespace that holds no others with the
// label lesson=fake. The function takes the interface, as code should that
// wants to be tested with a fake.
func Ask(ctx context.Context, client kubernetes.Interface, namespace string) (Answers, error) {
	configMaps := client.CoreV1().ConfigMaps(namespace)
	var a Answers
	for _, role := range []string{"first", "second"} {
		created, err := configMaps.Create(ctx, configMap(role), metav1.CreateOptions{})
		if err != nil {
			return a, fmt.Errorf("creating: %w", err)
		}
		a.UID = created.UID != ""
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

	held, err := configMaps.Get(ctx, "second", metav1.GetOptions{})
	if err != nil {
		return a, fmt.Errorf("reading: %w", err)
	}
	held.Finalizers = []string{"workshop.k8s-go.dev/held"}
	if _, err := configMaps.Update(ctx, held, metav1.UpdateOptions{}); err != nil {
		return a, fmt.Errorf("adding a finalizer: %w", err)
	}
	if err := configMaps.Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
		return a, fmt.Errorf("deleting: %w", err)
	}
	release := []byte(`{"metadata":{"finalizers":null}}`)
	_, err = configMaps.Patch(ctx, "second", types.MergePatchType, release, metav1.PatchOptions{})
	if a.Finalizer = err == nil; err != nil && !apierrors.IsNotFound(err) {
		return a, fmt.Errorf("removing the finalizer: %w", err)
	}
	return a, nil
}

// AddOne counts in a ConfigMap that others may write at the same time. It is
// here to be tested with reactors, which break a fake on purpose.
func AddOne(ctx context.Context, client kubernetes.Interface, namespace, name string) error {
	configMaps := client.CoreV1().ConfigMaps(namespace)
	var last error // if ctx ends the first attempt, RetryOnConflict returns nil
	_ = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		last = addOnce(ctx, configMaps, name)
		return last
	})
	return last
}

func addOnce(ctx context.Context, configMaps corev1client.ConfigMapInterface, name string) error {
	cm, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the count: %w", err)
	}
	n, err := strconv.Atoi(cm.Data["count"])
	if err != nil {
		return fmt.Errorf("the count in ConfigMap %s: %w", name, err)
	}
	cm.Data["count"] = strconv.Itoa(n + 1)
	if _, err := configMaps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the count: %w", err)
	}
	return nil
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
