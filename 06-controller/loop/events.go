package loop

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// MaxNote is how many bytes the API server takes as the note of an Event.
const MaxNote = 1024

// Recorder returns a recorder of Events. It works until stop is called, so
// longer than ctx: the work in flight has Events, too.
func Recorder(ctx context.Context, client kubernetes.Interface, controller string) (recorder events.EventRecorder, stop func(), err error) {
	broadcaster := events.NewBroadcaster(eventSink{&events.EventSinkImpl{Interface: client.EventsV1()}, make(chan struct{}, eventsAtOnce)})
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop = func() {
		cancel()
		broadcaster.Shutdown()
	}
	if err := broadcaster.StartRecordingToSinkWithContext(recording); err != nil {
		stop()
		return nil, nil, fmt.Errorf("starting to record Events: %w", err)
	}
	return broadcaster.NewRecorder(scheme.Scheme, controller), stop, nil
}

// eventsAtOnce is how many Events are on their way at the same time: client-go has a goroutine for each.
const eventsAtOnce = 8

// eventSink writes Events, each within a Deadline: a server that does not answer some of them holds
// up all others for so long. In a namespace that is being deleted it refuses new ones, which is no error.
type eventSink struct {
	events.EventSink
	slots chan struct{}
}

// enter waits for a slot. Call leave in any case.
func (s eventSink) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	select {
	case s.slots <- struct{}{}:
		return ctx, func() { <-s.slots; cancel() }, nil
	case <-ctx.Done():
		return ctx, cancel, ctx.Err()
	}
}

func (s eventSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	ctx, leave, err := s.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	return s.EventSink.Patch(ctx, event, data)
}

func (s eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	ctx, leave, err := s.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	created, err := s.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return event, nil
	}
	return created, err
}
