package main

import (
	"context"
	"slices"
)

// level looks at what there is, whatever has happened, and creates or deletes
// the difference to what should be. An event only tells it when to look.
func level(ctx context.Context, pods *keeper, _ event) error {
	names, err := pods.list(ctx)
	if err != nil {
		return err
	}
	for range pods.replicas - len(names) {
		if err := pods.create(ctx); err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, name := range names[min(pods.replicas, len(names)):] {
		if err := pods.delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
