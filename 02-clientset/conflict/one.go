package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// oneConflict changes a ConfigMap that somebody else changes at the same time.
func oneConflict(ctx context.Context, configMaps corev1client.ConfigMapInterface) error {
	attempt := 0
	// DefaultRetry, five attempts 10 ms apart, is for objects of your own. For
	// those that a controller writes too there is DefaultBackoff: folder crud.
	var err error // of the last attempt: if ctx ends the first one, RetryOnConflict returns nil
	_ = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		attempt++
		var cm *corev1.ConfigMap
		if cm, err = configMaps.Get(ctx, "conflict", metav1.GetOptions{}); err != nil {
			return err
		}
		if attempt == 1 {
			// Somebody else is faster than we are.
			if _, err = configMaps.Patch(ctx, cm.Name, types.MergePatchType, []byte(`{"data":{"theirs":"kept"}}`), metav1.PatchOptions{}); err != nil {
				return err
			}
		}
		cm.Data["ours"] = "kept"
		_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{})
		fmt.Printf("attempt %d: conflict=%t\n", attempt, apierrors.IsConflict(err))
		return err
	})
	return err
}
