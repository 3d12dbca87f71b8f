package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// A goal is what a Deployment is waited for to reach.
type goal struct {
	container, image string
	// before is the condition Progressing at the time of our write: a failure
	// of the previous image, which the controller may keep for a while.
	before *appsv1.DeploymentCondition

	done bool
	text string // how far it was when last seen
}

// complete reports whether all replicas run the current template and are available.
func complete(d *appsv1.Deployment) bool {
	want := replicas(d)
	// Until the controller has seen this generation, the numbers are about another one.
	return d.Status.ObservedGeneration >= d.Generation &&
		d.Status.UpdatedReplicas == want && d.Status.Replicas == want && d.Status.AvailableReplicas == want
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func condition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	i := slices.IndexFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &d.Status.Conditions[i]
}

// look updates the goal with what a Deployment is like. The error says why it
// will not be reached.
func (g *goal) look(d *appsv1.Deployment) error {
	c, err := containerOf(d, g.container)
	if err != nil {
		return err
	}
	if c.Image != g.image {
		return fmt.Errorf("somebody else has set the image of %s to %s", d.Name, c.Image)
	}
	g.done = complete(d)
	g.text = fmt.Sprintf("%d of %d updated, %d available", d.Status.UpdatedReplicas, replicas(d), d.Status.AvailableReplicas)
	if old := d.Status.Replicas - d.Status.UpdatedReplicas; old > 0 {
		g.text += fmt.Sprintf(", %d old", old)
	}
	seen := d.Status.ObservedGeneration >= d.Generation
	if !seen {
		g.text = "not yet seen by the controller"
	}
	if f := condition(d, appsv1.DeploymentReplicaFailure); f != nil && f.Status == corev1.ConditionTrue && !g.done {
		g.text += ": " + f.Message
	}
	// No look at the generation here: a controller that cannot even make the
	// ReplicaSet reports that without saying that it has seen the new spec.
	p := condition(d, appsv1.DeploymentProgressing)
	if p == nil || p.Status != corev1.ConditionFalse || g.done {
		return nil
	}
	if b := g.before; b != nil && b.Status == p.Status && b.Reason == p.Reason && b.Message == p.Message && b.LastUpdateTime.Equal(&p.LastUpdateTime) {
		return nil
	}
	if !seen {
		return fmt.Errorf("%s: %s", d.Name, p.Message)
	}
	return fmt.Errorf("%s: %s (%s)", d.Name, p.Message, g.text)
}

// await returns when all goals, by name of the Deployment, are reached at the
// same time. The error is about the first one that cannot be; or, when ctx
// ends, about those that are missing.
func (r *rollout) await(ctx context.Context, goals map[string]*goal) error {
	var last error // why the server could not be asked the last time
	// A watch ends sooner or later, by time or by accident. What happened
	// until the next one begins is in the list before it.
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (done bool, err error) {
		done, err = r.listAndWatch(ctx, goals)
		if retriable(err) {
			last, err = err, nil
		}
		return done, err
	})
	if err == nil || ctx.Err() == nil {
		return err
	}
	var missing []string
	for name, g := range goals {
		if !g.done {
			missing = append(missing, name+": "+g.text)
		}
	}
	slices.Sort(missing)
	err = fmt.Errorf("%w: %s", context.Cause(ctx), strings.Join(missing, "; "))
	if last != nil && !errors.Is(last, ctx.Err()) {
		err = fmt.Errorf("%w (%w)", err, last)
	}
	return err
}

// A requestError is about a request, not about what it was to find out.
type requestError struct{ error }

func (e requestError) Unwrap() error { return e.error }

// retriable tells a server that cannot answer now from one that says no.
func retriable(err error) bool {
	var request requestError
	if !errors.As(err, &request) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(request.error, &status) {
		return true // no answer at all
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// listAndWatch looks at all Deployments and then at their changes until the
// goals are reached (true) or the watch ends (false).
func (r *rollout) listAndWatch(ctx context.Context, goals map[string]*goal) (bool, error) {
	if len(goals) == 0 {
		return true, nil
	}
	list, err := r.deployments.List(ctx, metav1.ListOptions{LabelSelector: r.selector})
	if err != nil {
		return false, requestError{fmt.Errorf("listing Deployments: %w", err)}
	}
	seen := map[string]bool{}
	for i := range list.Items {
		seen[list.Items[i].Name] = true
		if err := r.report(&list.Items[i], goals); err != nil {
			return false, err
		}
	}
	for name := range goals {
		if !seen[name] {
			return false, goneError(name)
		}
	}
	if reached(goals) {
		return true, nil
	}
	w, err := r.deployments.Watch(ctx, metav1.ListOptions{LabelSelector: r.selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return false, requestError{fmt.Errorf("watching Deployments: %w", err)}
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		d, ok := event.Object.(*appsv1.Deployment)
		if !ok { // an error, such as 410 Gone: begin again with a list
			return false, nil
		}
		if event.Type == watch.Deleted && goals[d.Name] != nil {
			return false, goneError(d.Name)
		}
		if err := r.report(d, goals); err != nil {
			return false, err
		}
		if reached(goals) {
			return true, nil
		}
	}
	return false, nil
}

func goneError(name string) error {
	return fmt.Errorf("%s is gone, or its labels no longer match", name)
}

// report updates the goal of a Deployment, if it has one, and prints how far it is.
func (r *rollout) report(d *appsv1.Deployment, goals map[string]*goal) error {
	g := goals[d.Name]
	if g == nil {
		return nil
	}
	before := g.text
	if err := g.look(d); err != nil {
		return err
	}
	if g.text != before && !r.quiet {
		fmt.Fprintf(r.out, "  %s: %s\n", d.Name, g.text)
	}
	return nil
}

func reached(goals map[string]*goal) bool {
	for _, g := range goals {
		if !g.done {
			return false
		}
	}
	return true
}
