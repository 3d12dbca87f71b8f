// repaired-watch mirrors the ConfigMaps of a namespace as an informer does, in
// one function: it resumes a broken watch after the last event, and lists again
// when the API server no longer has the history since then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "repaired-watch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	until := flag.String("until", "", "stop when a ConfigMap of this name appears (default: run until interrupted)")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	// Every namespace has a ConfigMap with the cluster's CA, which is not our topic.
	options := metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}

	list, err := configMaps.List(ctx, options)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	mirror := map[string]string{}
	for _, cm := range list.Items {
		fmt.Printf("LISTED %s=%s\n", cm.Name, cm.Data["v"])
		mirror[cm.Name] = cm.Data["v"]
	}
	defer func() { fmt.Println("mirror:", content(mirror)) }()
	if _, ok := mirror[*until]; ok {
		return nil
	}

	return follow(ctx, configMaps, options, list.ResourceVersion, *until, mirror)
}

// follow keeps the mirror equal to what the API server has, until an object named
// until appears. The mirror holds the state of the version already.
func follow(ctx context.Context, configMaps typedcorev1.ConfigMapInterface, options metav1.ListOptions, version, until string, mirror map[string]string) error {
	for ctx.Err() == nil {
		if version == "" {
			list, err := configMaps.List(ctx, options)
			if err != nil {
				pause(ctx, err)
				continue
			}
			clear(mirror) // what the list lacks was deleted
			for _, cm := range list.Items {
				mirror[cm.Name] = cm.Data["v"]
			}
			if _, ok := mirror[until]; ok {
				return nil
			}
			version = list.ResourceVersion
		}
		w, err := configMaps.Watch(ctx, metav1.ListOptions{FieldSelector: options.FieldSelector, ResourceVersion: version})
		if err != nil {
			if expired(err) {
				version = ""
			}
			pause(ctx, err)
			continue
		}
		fmt.Println("watching")
		began, events := time.Now(), 0
		for event := range w.ResultChan() {
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				err := apierrors.FromObject(event.Object)
				if expired(err) {
					version = ""
				}
				pause(ctx, err)
				break // nothing comes after an ERROR
			}
			events++
			fmt.Printf("%s %s=%s\n", event.Type, cm.Name, cm.Data["v"])
			if event.Type == watch.Deleted {
				delete(mirror, cm.Name)
			} else {
				mirror[cm.Name] = cm.Data["v"]
			}
			version = cm.ResourceVersion
			if cm.Name == until {
				w.Stop()
				return nil
			}
		}
		w.Stop()
		if version != "" && events == 0 && time.Since(began) < time.Second { // something on the way ends each watch at once
			pause(ctx, errors.New("the watch has ended at once"))
		}
	}
	return nil
}

// expired says whether an error is 410 Gone: the API server no longer has the
// history since the version that it was asked for.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// pause says what has failed, and lets a second pass before the API server gets the next request.
func pause(ctx context.Context, err error) {
	if ctx.Err() == nil { // otherwise the end of the program is all that it tells
		fmt.Fprintln(os.Stderr, "trying again:", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// content returns what a mirror holds, in the order of names.
func content(mirror map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(mirror)) {
		all = append(all, name+"="+mirror[name])
	}
	return strings.Join(all, " ")
}
