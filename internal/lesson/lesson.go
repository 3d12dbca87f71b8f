// Package lesson runs a step's README on a cluster. The tour, a single step and
// the tests all use it, so that what a test has seen is what a reader will see.
package lesson

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Namespace is the namespace that a step's README creates, works in and
// deletes: "workshop-01" for step 1.
func Namespace(s workspace.Step) string { return fmt.Sprintf("workshop-%02d", s.Number) }

// Run executes the README of a step on the cluster, which must be up.
// What an earlier run that did not reach its end has left in the cluster is
// removed first, and so is what this run leaves if it fails.
func Run(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster, s workspace.Step, show io.Writer, update bool) (readme.Summary, error) {
	if err := remove(ctx, c, s); err != nil {
		return readme.Summary{}, err
	}
	runner := readme.Runner{Dir: ws.Root, Env: c.Environ(), Show: show, Update: update}
	summary, err := runner.Run(ctx, s.README())
	if err != nil {
		err = errors.Join(err, remove(context.WithoutCancel(ctx), c, s))
	}
	return summary, err
}

func remove(ctx context.Context, c *cluster.Cluster, s workspace.Step) error {
	if err := removeClusterScoped(ctx, c, s); err != nil {
		return err
	}
	return removeNamespace(ctx, c, Namespace(s))
}

func removeNamespace(ctx context.Context, c *cluster.Cluster, name string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if apierrors.IsConflict(err) { // it is being deleted already
			return false, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("removing namespace %s: %w", name, err)
	}
	return nil
}
