package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/09-outside/client"
)

const (
	finalizer = "outside.k8s-go.openshift.org/shelf"
	roomID    = "outside.k8s-go.openshift.org/room"    // annotation: the ID of its room
	asked     = "outside.k8s-go.openshift.org/request" // annotation: a request whose answer is not here yet
	refused   = "outside.k8s-go.openshift.org/refused" // annotation: why the store does not give it as many pallets as it wants
	wanted    = "outside.k8s-go.openshift.org/wanted"  // annotation: how many pallets were refused
)

type shelf struct {
	kube   v1.ConfigMapsGetter
	cached listers.ConfigMapLister
	store  *client.ClientWithResponses
}

// A request is what is written down before it is sent.
type request struct {
	Key     string `json:"key"`
	Pallets int    `json:"pallets"`
}

// reconcile is called with the name of a ConfigMap, never twice at the same time. After an error,
// and after the time that it returns, it is called again.
func (s *shelf) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	// Not from the cache: what is done here cannot be undone.
	cm, err := s.kube.ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, ok := cm.Labels["shelf"]; !ok && !slices.Contains(cm.Finalizers, finalizer) {
		return 0, nil
	}
	switch {
	case cm.DeletionTimestamp != nil && !slices.Contains(cm.Finalizers, finalizer):
		return 0, nil
	case cm.Annotations[asked] != "":
		return 0, s.send(ctx, cm)
	case cm.DeletionTimestamp != nil:
		return s.end(ctx, cm)
	case cm.Annotations[roomID] != "":
		return s.adjust(ctx, cm)
	}
	pallets, err := strconv.Atoi(cm.Data["pallets"])
	if err != nil {
		return 0, nil // somebody has to change it, and that is an event
	}
	// First what is to be done, and that it has to be undone. Then it is done.
	if !slices.Contains(cm.Finalizers, finalizer) {
		cm.Finalizers = append(cm.Finalizers, finalizer)
	}
	data, err := json.Marshal(request{Key: string(cm.UID), Pallets: pallets})
	if err != nil {
		return 0, err
	}
	return 0, s.write(ctx, cm, map[string]string{asked: string(data)})
}

// send sends the request that stands in the ConfigMap, for the first time or once more.
func (s *shelf) send(ctx context.Context, cm *corev1.ConfigMap) error {
	var r request
	if err := json.Unmarshal([]byte(cm.Annotations[asked]), &r); err != nil {
		return err
	}
	answer, err := s.store.RentRoomWithResponse(ctx, &client.RentRoomParams{IdempotencyKey: &r.Key},
		client.RoomRequest{Name: cm.Namespace + "/" + cm.Name, Pallets: r.Pallets, Celsius: -18})
	switch {
	case err != nil:
		return err
	case answer.JSON201 != nil:
		return s.write(ctx, cm, map[string]string{asked: "", roomID: answer.JSON201.Id})
	case answer.JSON200 != nil:
		return s.write(ctx, cm, map[string]string{asked: "", roomID: answer.JSON200.Id})
	case gone(answer.StatusCode(), answer.JSONDefault) && cm.DeletionTimestamp != nil: // it was there, and is gone
		return s.write(ctx, cm, map[string]string{asked: ""})
	case answer.StatusCode() == http.StatusPaymentRequired || answer.StatusCode() == http.StatusUnprocessableEntity:
		if cm.DeletionTimestamp != nil || cm.Data["pallets"] != strconv.Itoa(r.Pallets) { // it has never been there, and is wanted no more
			return s.write(ctx, cm, map[string]string{asked: ""})
		}
	}
	return fmt.Errorf("renting a room: %s: %s", answer.Status(), answer.Body)
}

// adjust gives the room as many pallets as the ConfigMap wants.
func (s *shelf) adjust(ctx context.Context, cm *corev1.ConfigMap) (time.Duration, error) {
	id := cm.Annotations[roomID]
	answer, err := s.store.GetRoomWithResponse(ctx, id)
	if err != nil {
		return 0, err
	}
	room := answer.JSON200
	if room == nil {
		return 0, fmt.Errorf("looking at %s: %s", id, answer.Status())
	}
	pallets, err := strconv.Atoi(cm.Data["pallets"])
	if err != nil {
		pallets = room.Pallets // nothing to change, but the room may be closed
	}
	switch {
	case room.State == client.Preparing:
		return time.Second, nil
	case room.Pallets == pallets || cm.Annotations[wanted] == cm.Data["pallets"]:
		if room.State == client.Closed {
			opened, err := s.store.OpenRoomWithResponse(ctx, id)
			if err == nil && opened.JSON200 == nil {
				err = errors.New(opened.Status())
			}
			if err != nil {
				return 0, fmt.Errorf("opening %s: %w", id, err)
			}
		}
		if room.Pallets == pallets && cm.Annotations[refused] != "" {
			return 0, s.write(ctx, cm, map[string]string{refused: "", wanted: ""})
		}
		return 0, nil
	case room.State == client.Ready:
		closed, err := s.store.CloseRoomWithResponse(ctx, id)
		if err == nil && closed.JSON200 == nil {
			err = errors.New(closed.Status())
		}
		if err != nil {
			return 0, fmt.Errorf("closing %s: %w", id, err)
		}
	}
	resized, err := s.store.ResizeRoomWithResponse(ctx, id, client.ResizeRoomJSONRequestBody{Pallets: pallets})
	switch {
	case err != nil:
		return 0, err
	case resized.StatusCode() == http.StatusPaymentRequired || resized.StatusCode() == http.StatusUnprocessableEntity:
		// The event of this write leads to the branch that opens it.
		return 0, s.write(ctx, cm, map[string]string{wanted: cm.Data["pallets"], refused: resized.JSONDefault.Message})
	case resized.JSON200 == nil:
		return 0, fmt.Errorf("resizing %s: %s", id, resized.Status())
	}
	return time.Millisecond, nil // the next look opens it
}

// end gives the room up, and lets the ConfigMap go when it is gone.
func (s *shelf) end(ctx context.Context, cm *corev1.ConfigMap) (time.Duration, error) {
	if id := cm.Annotations[roomID]; id != "" {
		answer, err := s.store.GiveUpRoomWithResponse(ctx, id)
		switch {
		case err != nil:
			return 0, err
		case answer.JSON200 != nil:
			return time.Second, nil
		case !gone(answer.StatusCode(), answer.JSONDefault):
			return 0, fmt.Errorf("giving up %s: %s: %s", id, answer.Status(), answer.Body)
		}
	}
	cm.Finalizers = slices.DeleteFunc(cm.Finalizers, func(f string) bool { return f == finalizer })
	return 0, s.write(ctx, cm, nil)
}

// gone reports whether the store says that there is no such room. A 404 without its word for that is
// somebody else's, such as a gateway's.
func gone(code int, refusal *client.Refusal) bool {
	return code == http.StatusNotFound && refusal != nil && refusal.Reason == "NotFound"
}

// write sets annotations, or takes those away that are empty.
func (s *shelf) write(ctx context.Context, cm *corev1.ConfigMap, annotations map[string]string) error {
	if cm.Annotations == nil {
		cm.Annotations = map[string]string{}
	}
	for name, value := range annotations {
		if cm.Annotations[name] = value; value == "" {
			delete(cm.Annotations, name)
		}
	}
	_, err := s.kube.ConfigMaps(cm.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
