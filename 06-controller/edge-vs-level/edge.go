package main

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
)

// edge acts on what has happened: a pod was deleted, so it creates another one.
// It is right only if it hears of each deletion exactly once, and if nothing
// keeps it from acting on it.
func edge(ctx context.Context, pods *keeper, e event) error {
	switch e.Type {
	case started:
		// To create what is missing after a restart, it would have to count;
		// then it would act on a level, not on an edge.
		if e.found > 0 {
			return nil
		}
		for range pods.replicas {
			if err := pods.create(ctx); err != nil {
				return err
			}
		}
	case watch.Deleted:
		return pods.create(ctx)
	}
	return nil
}
