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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/poll"
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
	values, err := Owns(s)
	if err != nil {
		return err
	}
	config, err := c.Config()
	if err != nil {
		return err
	}
	if err := removeClusterScoped(ctx, config, values); err != nil {
		return err
	}
	return removeNamespace(ctx, config, Namespace(s))
}

func removeNamespace(ctx context.Context, config *rest.Config, name string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	err = poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil, apierrors.IsConflict(err): // the answer while it is being deleted
			return errors.New("it is being deleted")
		default:
			return poll.Stop(err)
		}
	})
	if err != nil {
		return fmt.Errorf("removing namespace %s: %w", name, err)
	}
	return nil
}
