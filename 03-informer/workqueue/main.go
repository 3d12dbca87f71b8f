// workqueue takes client-go's queue through its promises, one at a time. It
// needs no cluster. Between an informer's handlers and the workers of a
// controller there is always one of these; step 06 builds on what it shows.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "workqueue:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	const base = 40 * time.Millisecond
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](base, time.Minute))
	defer context.AfterFunc(ctx, queue.ShutDown)() // Get returns on an interrupt, too
	defer queue.ShutDown()

	// Keys, not events: whoever gets "pod-a" looks at the cache for what pod-a
	// is like now, so being told once is enough.
	for range 3 {
		queue.Add("pod-a")
	}
	fmt.Println("added 3 times, waiting:", queue.Len())

	key, shutdown := queue.Get()
	if shutdown {
		return context.Cause(ctx)
	}
	queue.Add(key)
	queue.Add(key)
	fmt.Println("added again while being processed, waiting:", queue.Len()) // no second worker gets it now
	queue.Done(key)
	fmt.Println("after Done, waiting:", queue.Len())

	for failures := 0; failures < 4; failures++ {
		if key, shutdown = queue.Get(); shutdown {
			return context.Cause(ctx)
		}
		due := time.Now().Add(base << failures)
		queue.AddRateLimited(key) // the worker has failed
		queue.Done(key)           // and yet has to say that it is through
		fmt.Printf("failure %d: back in %s\n", queue.NumRequeues(key), base<<failures)
		if key, shutdown = queue.Get(); shutdown {
			return context.Cause(ctx)
		}
		if time.Now().Before(due) {
			return fmt.Errorf("%s came back before its time", key)
		}
		queue.Add(key) // for the next round, at once
		queue.Done(key)
	}

	// Done is about the key being in somebody's hands, Forget about its past.
	queue.Forget("pod-a")
	fmt.Println("after Forget, failures:", queue.NumRequeues("pod-a"))

	// The drain waits for what is being processed (pod-a), not for what is
	// queued (pod-b).
	if key, shutdown = queue.Get(); shutdown {
		return context.Cause(ctx)
	}
	queue.Add("pod-b")
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		queue.ShutDownWithDrain()
	}()
	err := wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) { return queue.ShuttingDown(), nil })
	if err != nil {
		return err
	}
	queue.Add("pod-c")
	fmt.Println("shutting down: pod-c is not taken any more, waiting:", queue.Len())
	select {
	case <-drained:
		return fmt.Errorf("drained while %s was being processed", key)
	default:
		fmt.Println("the drain waits for", key)
	}
	queue.Done(key)
	<-drained
	fmt.Println("drained, waiting:", queue.Len())

	// So a graceful stop waits for the workers. Each of them continues until Get
	// says that the queue is shut down and empty.
	var workers sync.WaitGroup
	workers.Go(func() {
		for {
			key, shutdown := queue.Get()
			if shutdown {
				return
			}
			fmt.Println("a worker has processed", key)
			queue.Done(key)
		}
	})
	workers.Wait()
	fmt.Println("the worker has ended, waiting:", queue.Len())
	return nil
}
