// load changes objects at a steady rate, each change one request, and counts how many the API
// server refuses, and why. It ends with SIGINT or SIGTERM, or after -for.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "the namespace of the objects")
	objects := flag.String("objects", "", "what to change, separated by commas: RESOURCE.VERSION.GROUP/NAME")
	rate := flag.Int("rate", 200, "changes a second")
	limit := flag.Duration("for", 0, "how long (default: until the signal)")
	flag.Parse()
	if *objects == "" || *rate < 1 {
		return errors.New("-objects is missing, or -rate is less than 1")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	var changes []func(ctx context.Context, n int) error
	for object := range strings.SplitSeq(*objects, ",") {
		resource, name, _ := strings.Cut(object, "/")
		gvr, _ := schema.ParseResourceArg(resource)
		if gvr == nil || name == "" {
			return fmt.Errorf("-objects: %q is not RESOURCE.VERSION.GROUP/NAME", object)
		}
		client := client.Resource(*gvr).Namespace(*namespace)
		changes = append(changes, func(ctx context.Context, n int) error {
			_, err := client.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {"load": "%d"}}}`, n), metav1.PatchOptions{FieldManager: "load"})
			return err
		})
	}
	if *limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *limit)
		defer cancel()
	}
	fmt.Println("working")
	begin := time.Now()
	answers := load(ctx, *rate, changes)
	total := 0
	for _, n := range answers {
		total += n
	}
	fmt.Printf("%d changes in %s, %d refused\n", total, time.Since(begin).Round(time.Second), total-answers[""])
	for _, why := range slices.SortedFunc(maps.Keys(answers), func(a, b string) int { return cmp.Compare(answers[b], answers[a]) }) {
		if why != "" {
			fmt.Printf("%5d %s\n", answers[why], why)
		}
	}
	return nil
}

// load makes the changes in turn until ctx ends, and counts the errors by their texts; "" is none.
func load(ctx context.Context, rate int, changes []func(context.Context, int) error) map[string]int {
	answers := map[string]int{}
	var mu sync.Mutex
	turns := make(chan int)
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			for n := range turns {
				// Not ctx: what is on its way at the end counts, too.
				err := changes[n%len(changes)](context.WithoutCancel(ctx), n)
				mu.Lock()
				answers[text(err)]++
				mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-tick.C:
			turns <- n
		case <-ctx.Done():
		}
	}
	close(turns)
	workers.Wait()
	return answers
}

// changing is what differs from error to error: ports, and the name of the object.
var changing = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+->\S+|"https://\S+"`)

func text(err error) string {
	if err == nil {
		return ""
	}
	return changing.ReplaceAllString(err.Error(), "...")
}
