package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// errInterrupted is what Ctrl-C makes of a run.
var errInterrupted = errors.New("interrupted")

// fieldManager stands in managedFields for what this program has set.
const fieldManager = "staged-rollout"

type rollout struct {
	options
	deployments appsv1client.DeploymentInterface
	namespaces  corev1client.NamespaceInterface
	out         io.Writer
}

// plan lists the matching Deployments, by name, and puts them into stages.
func (r *rollout) plan(ctx context.Context, steps []step) ([][]appsv1.Deployment, error) {
	deployments, err := r.matching(ctx)
	if err != nil {
		return nil, err
	}
	stages, err := split(deployments, steps)
	if err != nil {
		return nil, fmt.Errorf("planning the stages: %w", err)
	}
	return stages, nil
}

func (r *rollout) matching(ctx context.Context) ([]appsv1.Deployment, error) {
	list, err := r.deployments.List(ctx, metav1.ListOptions{LabelSelector: r.selector})
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w; nothing was written", errInterrupted)
	}
	if err != nil {
		return nil, fmt.Errorf("listing Deployments in namespace %s: %w", r.namespace, err)
	}
	if len(list.Items) == 0 {
		// A list in a namespace that does not exist is just empty.
		if _, err := r.namespaces.Get(ctx, r.namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no namespace %s", r.namespace)
		}
		return nil, fmt.Errorf("no Deployment in namespace %s matches %q", r.namespace, r.selector)
	}
	return list.Items, nil
}

// rehearse sends every change as a dry run, which passes admission and
// validation like the real one, and shows the plan if that is all we are to do.
func (r *rollout) rehearse(ctx context.Context, stages [][]appsv1.Deployment) error {
	out := io.Discard
	if r.dryRun {
		out = r.out
	}
	order := 0
	for i, stage := range stages {
		fmt.Fprintf(out, "stage %d of %d\n", i+1, len(stages))
		for _, d := range stage {
			order++
			if ctx.Err() != nil {
				return errInterrupted
			}
			if _, _, err := r.update(ctx, d.Name, order, true, out); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out, "dry run: the server accepts this; nothing was written")
	return nil
}

// execute does one stage after the other. If one fails, everything goes back.
func (r *rollout) execute(ctx context.Context, stages [][]appsv1.Deployment) error {
	var names []string
	for _, d := range slices.Concat(stages...) {
		names = append(names, d.Name)
	}
	// The goals of earlier stages stay: what breaks late stops the rollout too.
	goals := map[string]*goal{}
	for i, stage := range stages {
		fmt.Fprintf(r.out, "stage %d of %d\n", i+1, len(stages))
		err := r.execStage(ctx, stage, goals)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %d of %d Deployments have the new image; the same command again goes on, with -rollback it undoes that",
				errInterrupted, len(goals), len(names))
		}
		if err != nil {
			return r.giveUp(ctx, fmt.Errorf("stage %d of %d: %w", i+1, len(stages), err), names)
		}
		fmt.Fprintf(r.out, "stage %d of %d is available\n", i+1, len(stages))
	}
	// From here on Ctrl-C is too late: a record removed here and kept there
	// would make a rollback undo only half.
	for _, name := range names {
		if _, err := r.change(ctx, name, false, forget); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("all stages are available, but the record of %s is still there: %w; run the same command again", name, err)
		}
	}
	fmt.Fprintf(r.out, "done: %d Deployments have %s\n", len(names), r.image)
	return nil
}

func (r *rollout) execStage(ctx context.Context, stage []appsv1.Deployment, goals map[string]*goal) error {
	for _, d := range stage {
		if ctx.Err() != nil {
			return errInterrupted
		}
		now, patched, err := r.update(ctx, d.Name, len(goals)+1, false, r.out)
		if err != nil {
			return err
		}
		goals[d.Name] = &goal{container: r.container, image: r.image}
		if patched {
			goals[d.Name].before = condition(now, appsv1.DeploymentProgressing)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("not available within %s", r.timeout))
	defer cancel()
	return r.await(ctx, goals)
}

// update gives one Deployment the new image, unless it has it already.
func (r *rollout) update(ctx context.Context, name string, order int, dryRun bool, out io.Writer) (d *appsv1.Deployment, patched bool, err error) {
	var from string
	d, err = r.change(ctx, name, dryRun, func(d *appsv1.Deployment) (patch []byte, err error) {
		patch, from, err = advance(d, r.container, r.image, order)
		patched = patch != nil
		return patch, err
	})
	switch {
	case err != nil:
		return nil, false, err
	case patched:
		fmt.Fprintf(out, "  %s: %s -> %s\n", name, from, r.image)
	default:
		fmt.Fprintf(out, "  %s: has %s already\n", name, r.image)
	}
	return d, patched, nil
}

// change is the only place that writes. It reads a Deployment and sends the
// patch that edit makes of it (none if nil), as one request, so that image and
// record are both written or neither. When somebody else was faster, or the
// server cannot answer for a moment, it reads again and edit decides anew.
//
// Once begun it is not interrupted: a request that was given up may still be
// executed, and nobody would know.
func (r *rollout) change(ctx context.Context, name string, dryRun bool, edit func(*appsv1.Deployment) ([]byte, error)) (d *appsv1.Deployment, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	options := metav1.PatchOptions{FieldManager: fieldManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	// In a Deployment that rolls, the controller writes many times a second.
	backoff := wait.Backoff{Steps: 15, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 0.5}
	err = retry.OnError(backoff, func(err error) bool { return apierrors.IsConflict(err) || retriable(err) }, func() error {
		if d, err = r.deployments.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading %s: %w", name, requestError{err})
		}
		patch, err := edit(d)
		if err != nil || patch == nil {
			return err
		}
		if d, err = r.deployments.Patch(ctx, name, types.StrategicMergePatchType, patch, options); err != nil {
			return fmt.Errorf("patching %s: %w", name, requestError{err})
		}
		return nil
	})
	return d, err
}

// giveUp rolls back what the plan has touched and returns the error to show.
func (r *rollout) giveUp(ctx context.Context, failure error, names []string) error {
	fmt.Fprintln(r.out, "rolling back")
	n, err := r.rollBack(ctx, names)
	if err != nil {
		return fmt.Errorf("%w; %s at the image from before, but %w; -rollback tries again", failure, back(n), err)
	}
	return fmt.Errorf("%w; %s at the image from before", failure, back(n))
}

func back(n int) string {
	if n == 1 {
		return "1 Deployment is back"
	}
	return fmt.Sprintf("%d Deployments are back", n)
}

// undo is a run with -rollback.
func (r *rollout) undo(ctx context.Context) error {
	deployments, err := r.matching(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range deployments {
		names = append(names, d.Name)
	}
	n, err := r.rollBack(ctx, names)
	if err != nil {
		return fmt.Errorf("%s at the image from before, but %w", back(n), err)
	}
	if n == 0 {
		fmt.Fprintln(r.out, "no Deployment is in an unfinished rollout")
		return nil
	}
	if r.dryRun {
		fmt.Fprintln(r.out, "dry run: the server accepts this; nothing was written")
	} else {
		fmt.Fprintf(r.out, "done: %s at the image from before\n", back(n))
	}
	return nil
}

// rollBack restores those Deployments that have a record, the newest first,
// and waits for those that were available before. It returns how many got
// their image back. One that cannot be restored does not keep the others back.
func (r *rollout) rollBack(ctx context.Context, names []string) (n int, err error) {
	type touched struct {
		name  string
		order int
	}
	var all []touched
	var errs []error
	for _, name := range names {
		// No patch, so this only reads, also after Ctrl-C.
		_, err := r.change(ctx, name, false, func(d *appsv1.Deployment) ([]byte, error) {
			record, err := recordOf(d)
			if record != nil {
				all = append(all, touched{name, record.Order})
			}
			return nil, err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(all, func(a, b touched) int { return cmp.Compare(b.order, a.order) })

	goals := map[string]*goal{}
	for _, t := range all {
		if r.rollback && ctx.Err() != nil { // an automatic rollback goes on, that is what it is for
			return n, errors.Join(append(errs, errInterrupted)...)
		}
		var done *record
		var lost string
		d, err := r.change(ctx, t.name, r.dryRun, func(d *appsv1.Deployment) (patch []byte, err error) {
			patch, done, lost, err = restore(d, r.image)
			return patch, err
		})
		switch {
		case err != nil:
			errs = append(errs, err)
		case lost != "":
			errs = append(errs, fmt.Errorf("%s keeps %s, which somebody else has set (it had %s before)", t.name, lost, done.From))
		case done != nil:
			n++
			fmt.Fprintf(r.out, "  %s: %s -> %s\n", t.name, done.To, done.From)
			if done.Available && !r.dryRun {
				goals[t.name] = &goal{container: done.Container, image: done.From, before: condition(d, appsv1.DeploymentProgressing)}
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("not available again within %s", r.timeout))
	defer cancel()
	if err := r.await(ctx, goals); err != nil {
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}
