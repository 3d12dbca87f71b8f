package cluster

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/k8s-go/workshop/internal/image"
)

// PauseImage is in every kind cluster: a program that does nothing until it is
// told to stop, for pods that really have to run. No registry has it, and none
// is asked. NextPauseImage is the same under another tag, for rollouts.
const (
	PauseImage     = "workshop/pause:1"
	NextPauseImage = "workshop/pause:2"
)

// loadPause builds the pause image and puts it into the nodes.
func (k *kind) loadPause(ctx context.Context) error {
	archive := k.dir("pause.tar")
	img, err := image.Build(ctx, k.ws.Root, "./internal/image/pause", runtime.GOARCH, nil)
	if err == nil {
		err = image.Write(archive, PauseImage, img, NextPauseImage)
	}
	if err != nil {
		return fmt.Errorf("building %s: %w", PauseImage, err)
	}
	return k.loadImages(ctx, io.Discard, []string{archive})
}
