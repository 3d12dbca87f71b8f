// edge-vs-level keeps a number of pods, in one of two styles: -style edge acts
// on events (edge.go), -style level on the state (level.go). The lines around
// them are the same: here the loop that lists and watches, in keeper.go what
// both do with pods.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	style := flag.String("style", "", "edge or level")
	replicas := flag.Int("replicas", 3, "how many pods to keep")
	resync := flag.Duration("resync", 2*time.Second, "how often to look without an event")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, rules, *namespace, *style, *replicas, *resync); err != nil {
		fmt.Fprintln(os.Stderr, "edge-vs-level:", err)
		os.Exit(1)
	}
}

// An event says why a style is called: a pod has changed (ADDED, MODIFIED or
// DELETED), or one of the reasons below.
type event struct {
	Type  watch.EventType
	pod   string
	found int // when started: how many pods there were
}

const (
	started  watch.EventType = "STARTED"
	listed   watch.EventType = "LISTED" // the watch has ended, and the next one begins at a new list
	resynced watch.EventType = "RESYNC"
)

func run(ctx context.Context, rules *clientcmd.ClientConfigLoadingRules, namespace, style string, replicas int, resync time.Duration) error {
	react, ok := map[string]func(context.Context, *keeper, event) error{"edge": edge, "level": level}[style]
	if !ok {
		return fmt.Errorf("-style %q: choose edge or level", style)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.UserAgent = "keeper-" + style // by which the fault proxy tells the styles apart
	config.QPS = -1                      // no limit of its own; the server has one
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	pods := &keeper{PodInterface: client.CoreV1().Pods(namespace), style: style, replicas: replicas, started: time.Now()}
	tell := func(e event) {
		pods.reason = strings.TrimSpace(string(e.Type) + " " + e.pod)
		if e.Type != watch.Modified && e.Type != resynced { // there are many; both styles are told of them all the same
			pods.print(pods.reason)
		}
		if err := react(ctx, pods, e); err != nil && ctx.Err() == nil {
			pods.print("  failed: " + err.Error())
		}
	}
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	pause := func() { // no busy loop while the server does not answer, or ends each watch at once
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}

	for reason := started; ctx.Err() == nil; {
		found, w, err := pods.listAndWatch(ctx)
		if err != nil {
			pods.print("  failed: " + err.Error())
			pause()
			continue
		}
		tell(event{Type: reason, found: found})
		reason = listed
		heard := false
		for open := true; open; {
			select {
			case e, more := <-w.ResultChan():
				if pod, ok := e.Object.(*corev1.Pod); ok {
					heard = true
					tell(event{Type: e.Type, pod: pod.Name})
				}
				open = more && e.Type != watch.Error
			case <-ticker.C:
				tell(event{Type: resynced})
			}
		}
		w.Stop()
		if !heard {
			pause()
		}
	}
	return nil
}
