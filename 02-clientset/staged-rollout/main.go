// Command staged-rollout gives the Deployments that match a selector a new
// image, stage by stage. It goes on when all of a stage are available, and puts
// every image back when one does not get there.
//
// All it knows is in the cluster: each write sets the image and, in the same
// request, an annotation that says what the image was. So a run that was
// interrupted, or killed, can be repeated to go on, or undone with -rollback. Only
// when it is killed after all stages are available, while it removes these
// annotations, is repeating the one way: of the rest, -rollback would undo a part.
//
// It needs get, list, watch and patch on deployments, and nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

type options struct {
	kubeconfig, namespace              string
	selector, image, container, stages string
	timeout                            time.Duration
	dryRun, rollback, quiet            bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first Ctrl-C lets the current write end. A second one finds the
	// default again and ends the program, which is safe too: see change.
	keepQuiet := context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "interrupted: stopping after the current write")
	})
	err := run(ctx)
	keepQuiet() // before stop, which cancels ctx as Ctrl-C does
	stop()
	switch {
	case errors.Is(err, errInterrupted):
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(130) // what shells report for a program that Ctrl-C has ended
	case err != nil:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: KUBECONFIG, then ~/.kube/config)")
	flag.StringVar(&o.namespace, "namespace", "", "namespace of the Deployments (default: the context's)")
	flag.StringVar(&o.selector, "selector", "", "labels of the Deployments to update, such as app=web")
	flag.StringVar(&o.image, "image", "", "the new image")
	flag.StringVar(&o.container, "container", "", "the container to update, where a Deployment has several")
	flag.StringVar(&o.stages, "stages", byAnnotation, "how many Deployments to have updated after each stage, such as 1,25%,100%;\nor annotation: each says its stage in "+stageAnnotation)
	flag.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long a stage may take to be available")
	flag.BoolVar(&o.dryRun, "dry-run", false, "show the plan, ask the server whether it would accept it, write nothing")
	flag.BoolVar(&o.rollback, "rollback", false, "undo an interrupted run (with -image: only one to that image)")
	flag.BoolVar(&o.quiet, "quiet", false, "no line for each change of a Deployment that is waited for")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if o.selector == "" || (o.image == "" && !o.rollback) {
		return errors.New("-selector and -image are needed (with -rollback only -selector); -help lists the flags")
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return fmt.Errorf("-selector: %w", err)
	}
	if selector.Empty() {
		return fmt.Errorf("-selector %q selects everything in the namespace: name a label", o.selector)
	}
	if o.timeout <= 0 {
		return fmt.Errorf("-timeout %s: it must be more than zero", o.timeout)
	}
	steps, err := parseStages(o.stages)
	if err != nil {
		return fmt.Errorf("-stages: %w", err)
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no kubeconfig found: give -kubeconfig or set KUBECONFIG")
	}
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if o.namespace == "" {
		if o.namespace, _, err = loader.Namespace(); err != nil {
			return fmt.Errorf("reading the kubeconfig: %w", err)
		}
	}
	config.QPS = -1 // 5 requests a second would make a large rollout crawl; the server has limits of its own
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}

	r := &rollout{
		options:     o,
		deployments: client.AppsV1().Deployments(o.namespace),
		namespaces:  client.CoreV1().Namespaces(),
		out:         os.Stdout,
	}
	if o.rollback {
		return r.undo(ctx)
	}
	stages, err := r.plan(ctx, steps)
	if err != nil {
		return err
	}
	// Each run begins with a rehearsal: what the server refuses for the last
	// Deployment is better known before the first is touched.
	if err := r.rehearse(ctx, stages); err != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	if o.dryRun {
		return nil
	}
	return r.execute(ctx, stages)
}
