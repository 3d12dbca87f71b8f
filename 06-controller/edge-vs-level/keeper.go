package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"
)

// A keeper has what both styles do with their pods.
type keeper struct {
	typedcorev1.PodInterface
	style    string // the label of the pods
	replicas int
	started  time.Time
	reason   string // why the style was called
}

// listAndWatch returns how many pods there are and a watch that goes on from there.
func (k *keeper) listAndWatch(ctx context.Context) (found int, w watch.Interface, err error) {
	options := metav1.ListOptions{LabelSelector: "keeper=" + k.style}
	list, err := k.List(ctx, options)
	if err != nil {
		return 0, nil, fmt.Errorf("listing pods: %w", err)
	}
	options.ResourceVersion = list.ResourceVersion
	if w, err = k.Watch(ctx, options); err != nil {
		return 0, nil, fmt.Errorf("watching pods: %w", err)
	}
	return len(list.Items), w, nil
}

// list returns the names of the pods that are not being deleted. It asks the
// server, because a cache may not have the pod that was just created.
func (k *keeper) list(ctx context.Context) ([]string, error) {
	list, err := k.List(ctx, metav1.ListOptions{LabelSelector: "keeper=" + k.style})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var names []string
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			names = append(names, pod.Name)
		}
	}
	return names, nil
}

func (k *keeper) create(ctx context.Context) error {
	pod, err := k.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: k.style + "-", Labels: map[string]string{"keeper": k.style}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers:                    []corev1.Container{{Name: "pause", Image: "workshop/pause:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a pod: %w", err)
	}
	k.print("  created " + pod.Name + " because of " + k.reason)
	return nil
}

func (k *keeper) delete(ctx context.Context, name string) error {
	if err := k.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting a pod: %w", err)
	}
	k.print("  deleted " + name + " because of " + k.reason)
	return nil
}

// print writes a line of the timeline.
func (k *keeper) print(line string) {
	fmt.Printf("%8.2fs  %s\n", time.Since(k.started).Seconds(), line)
}
