// Package lesson runs a step's README on a cluster. The tour, a single step and
// the tests all use it, so that what a test has seen is what a reader will see.
package lesson

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Run executes the documents of a step on the cluster, which must be up, for the
// person that WORKSHOP_PREFIX names, each in a shell of its own. What an earlier run that did not reach its end
// has left in the cluster is removed first, and so is what this run leaves if it fails. In an existing cluster,
// where the namespace may be somebody else's, it is an error if there is one.
func Run(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster, s workspace.Step, show io.Writer, update bool, environ ...string) (readme.Summary, error) {
	p, err := ParsePrefix(os.Getenv(PrefixVariable))
	if err != nil {
		return readme.Summary{}, err
	}
	return p.Run(ctx, ws, c, s, show, update, environ...)
}

// Run is the function Run for the person who has this prefix. The lesson's shell
// has environ in addition.
func (p Prefix) Run(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster, s workspace.Step, show io.Writer, update bool, environ ...string) (all readme.Summary, err error) {
	if update && p != "" {
		return readme.Summary{}, fmt.Errorf("a README is written for everybody: unset %s", PrefixVariable)
	}
	files, err := p.Documents(ws, s)
	if err != nil {
		return readme.Summary{}, err
	}
	told := show
	if told == nil {
		told = io.Discard
	}
	unlock, err := c.OwnNamespace(ctx, p.Namespace(s), told)
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if c.Name() == "existing" {
		if err := p.free(ctx, c, s); err != nil {
			return all, err
		}
	}
	env := append(append(workspace.Quick(workspace.Without(c.Environ(), PrefixVariable)), p.Environ()), environ...)
	runner := readme.Runner{Dir: ws.Root, Env: env, Show: show, Update: update}
	for _, file := range files {
		if err := p.remove(ctx, c, s); err != nil {
			return all, err
		}
		summary, err := runner.Run(ctx, file)
		all = all.Add(summary)
		if err != nil {
			return all, errors.Join(err, interrupt.CleanUp(p.remove(context.WithoutCancel(ctx), c, s)))
		}
	}
	return all, nil
}

// free fails if somebody has the namespace of a lesson already, in a cluster that is not ours.
func (p Prefix) free(ctx context.Context, c *cluster.Cluster, s workspace.Step) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	name := p.Namespace(s)
	ns, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil { // as a lesson leaves it
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for namespace %s: %w", name, err)
	}
	otherwise := fmt.Sprintf("choose a prefix of your own, such as %s=anna-", PrefixVariable)
	if owned, err := Owns(s); err != nil {
		return err
	} else if len(owned) > 0 { // with which no prefix helps
		otherwise = "use a cluster of your own, as make up CLUSTER=kwok starts it"
	}
	return fmt.Errorf("namespace %s is there already, and the lesson would delete it: if it is yours, kubectl delete namespace %s; if not, %s", name, name, otherwise)
}

func (p Prefix) remove(ctx context.Context, c *cluster.Cluster, s workspace.Step) error {
	values, err := Owns(s)
	if err != nil {
		return err
	}
	config, err := c.Config()
	if err != nil {
		return err
	}
	if err := removeClusterScoped(ctx, config, values, p.Namespace(s)); err != nil {
		return err
	}
	if len(values) > 0 { // there may have been definitions
		if err := c.ForgetDiscovery(); err != nil {
			return err
		}
	}
	return removeNamespace(ctx, config, p.Namespace(s))
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
