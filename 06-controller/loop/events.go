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
	broadcaster := events.NewBroadcaster(eventSink{&events.EventSinkImpl{Interface: client.EventsV1()}})
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

// eventSink writes Events, each request with a Deadline, because they are sent one after the
// other. In a namespace that is being deleted the API server refuses new ones, which is no error.
type eventSink struct{ events.EventSink }

func (s eventSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	return s.EventSink.Patch(ctx, event, data)
}

func (s eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	created, err := s.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return event, nil
	}
	return created, err
}
