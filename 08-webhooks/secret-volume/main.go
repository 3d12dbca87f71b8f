// secret-volume keeps the data of a Secret as files in a folder, as the kubelet does for a
// pod that mounts it. It is for programs that run outside of a pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "secret-volume:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "the namespace of the Secret")
	name := flag.String("secret", "", "the name of the Secret")
	directory := flag.String("dir", "", "the folder, which is made if it is missing")
	delay := flag.Duration("delay", 0, "how long a change takes to arrive; in a pod that can be over a minute")
	flag.Parse()
	if *name == "" || *directory == "" {
		return errors.New("-secret and -dir are needed")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	if err := os.MkdirAll(*directory, 0o700); err != nil {
		return fmt.Errorf("making the folder: %w", err)
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, *name).String()
		}))
	latest := make(chan *corev1.Secret, 1)
	changed := func(o any) {
		select {
		case <-latest: // what nobody has written down yet is out of date
		default:
		}
		latest <- o.(*corev1.Secret)
	}
	if _, err := factory.Core().V1().Secrets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, now any) { changed(now) },
		// Like the kubelet, it leaves the files of a deleted Secret.
	}); err != nil {
		return fmt.Errorf("adding an event handler: %w", err)
	}
	factory.StartWithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case secret := <-latest:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(*delay):
			}
			if err := write(*directory, secret.Data); err != nil {
				return err
			}
			fmt.Printf("resourceVersion %s is in %s\n", secret.ResourceVersion, *directory)
		}
	}
}

// write replaces all files at once. A reader sees the old ones or the new ones: each name is a
// link to ..data/name, and ..data is a link to a folder, which a single rename replaces.
func write(directory string, data map[string][]byte) error {
	now, err := os.MkdirTemp(directory, "..")
	if err != nil {
		return fmt.Errorf("making a folder for the files: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(data)) {
		if err := os.WriteFile(filepath.Join(now, name), data[name], 0o600); err != nil {
			return fmt.Errorf("writing a file: %w", err)
		}
	}
	current := filepath.Join(directory, "..data")
	before, _ := os.Readlink(current) // there is none the first time
	_ = os.Remove(current + ".new")   // of a process that was killed
	if err := os.Symlink(filepath.Base(now), current+".new"); err != nil {
		return fmt.Errorf("linking the new files: %w", err)
	}
	if err := os.Rename(current+".new", current); err != nil {
		return fmt.Errorf("replacing the old files: %w", err)
	}
	for name := range data {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(directory, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("linking %s: %w", name, err)
		}
	}
	if before == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(directory, before))
}
