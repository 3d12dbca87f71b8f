package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/09-outside/client"
	"github.com/k8s-go/workshop/09-outside/pkg/apis/outside/v1alpha1"
	typed "github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned/typed/outside/v1alpha1"
	listers "github.com/k8s-go/workshop/09-outside/pkg/generated/listers/outside/v1alpha1"
)

// A controller rents a room for each ColdRoom.
type controller struct {
	loop   *loop.Loop
	client typed.ColdRoomsGetter
	cached listers.ColdRoomLister
	cache  cache.Store // what cached reads
	writes loop.Writes
	events events.EventRecorder
	store  *store
	old    sync.Map // of cache.ObjectName: the oldRequest that its status holds
	options
}

// An oldRequest has a key that the store may have forgotten.
type oldRequest struct {
	key  string
	seen time.Time // first, in this process
}

// options are what the user of the program chooses.
type options struct {
	namespace  string
	poll       time.Duration // how often to look at a room that nobody has changed here
	retry      time.Duration // how long after a refusal to try again without a change
	remembered time.Duration // for how long the store certainly knows a key
	late       time.Duration // by how much its lists are late at most
}

// soon is when to look at something that the store is busy with.
const soon = time.Second

// alarming is how long a store may want to be left alone before a status says so.
const alarming = 30 * time.Second

// most is how many steps a look takes: more than a new room or another size needs. A store
// that says yes and does nothing must not keep a worker for ever.
const most = 12

// calm leaves out the events that only report a failure: they would end the wait that follows it.
type calm struct{ cache.ResourceEventHandler }

func (h calm) OnUpdate(before, after any) {
	was, is := before.(*v1alpha1.ColdRoom), after.(*v1alpha1.ColdRoom)
	if c := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ConditionSynced); c == nil || c.Reason != v1alpha1.ReasonFailing || was.Generation != is.Generation {
		h.ResourceEventHandler.OnUpdate(before, after)
	}
}

// reconcile takes step after step, and keeps the status of each before it takes the next one.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	behind := c.writes.Behind(key) // asked before the cache is read, which may catch up in between
	cached, err := c.cached.ColdRooms(key.Namespace).Get(key.Name)
	if err != nil { // a cache's only error is NotFound
		c.writes.Forget(key)
		c.old.Delete(key)
		return 0, nil
	}
	if behind {
		return soon / 10, loop.ErrBehind // or with the event of what was written
	}
	cr := cached.DeepCopy()
	for range most {
		before := cr.DeepCopy()
		cr.Status.ObservedGeneration = cr.Generation
		again, done, err := c.step(ctx, cr)
		if err != nil && !failing(cr, err) {
			cr.Status.ObservedGeneration = before.Status.ObservedGeneration // the status says nothing about the new one
		}
		after, failed := c.keep(ctx, before, cr)
		if failed == nil {
			c.tell(before, cr)
		}
		if wait := (*busy)(nil); errors.As(err, &wait) && failed == nil {
			return wait.wait + soon/10, nil
		}
		if apierrors.IsNotFound(failed) {
			return 0, loop.ErrStale // it is gone, which the cache will show
		}
		if err := errors.Join(err, failed); err != nil || done || after == nil {
			return again, err
		}
		cr = after
	}
	return soon, nil
}

// keep writes what a step has changed, and returns the object as it is then; nil if it is gone.
// Each write carries the resourceVersion, so nothing is kept that an old cache has led to.
func (c *controller) keep(ctx context.Context, before, cr *v1alpha1.ColdRoom) (after *v1alpha1.ColdRoom, err error) {
	client := c.client.ColdRooms(cr.Namespace)
	after = cr
	if !equality.Semantic.DeepEqual(before.Status, cr.Status) {
		after, err = client.UpdateStatus(ctx, cr, metav1.UpdateOptions{})
		if err = c.wrote(cr, after, err, "status"); err != nil {
			return nil, err
		}
	}
	if !slices.Equal(before.Finalizers, cr.Finalizers) {
		// A patch: an update would lose the fields that this program does not know.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": cr.Finalizers, "uid": cr.UID, "resourceVersion": after.ResourceVersion}})
		if err != nil {
			return nil, fmt.Errorf("encoding the finalizers: %w", err)
		}
		after, err = client.Patch(ctx, cr.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err = c.wrote(cr, after, err, "finalizer"); err != nil || after.DeletionTimestamp != nil {
			return nil, err
		}
	}
	return after, nil
}

// tell says in an Event what a step has come to, for kubectl describe. Within some minutes, Events of the
// same reason and action are one, which keeps the first text.
func (c *controller) tell(before, cr *v1alpha1.ColdRoom) {
	about := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ColdRoom", Namespace: cr.Namespace, Name: cr.Name, UID: cr.UID}
	is := meta.FindStatusCondition(cr.Status.Conditions, v1alpha1.ConditionSynced)
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionSynced)
	letGo := len(cr.Finalizers) < len(before.Finalizers) && cr.Status.RoomID != ""
	switch {
	case letGo && cr.Spec.DeletionPolicy == v1alpha1.Orphan:
		c.events.Eventf(about, nil, corev1.EventTypeNormal, "Orphaned", "LetGo", "Left %s rented in the store", cr.Status.RoomID)
	case letGo:
		c.events.Eventf(about, nil, corev1.EventTypeNormal, "Released", "GiveUp", "Gave up %s in the store", cr.Status.RoomID)
	case before.Status.RoomID == "" && cr.Status.RoomID != "":
		c.events.Eventf(about, nil, corev1.EventTypeNormal, "Rented", "Rent", "Rented a room in the store")
	case is != nil && is.Reason == v1alpha1.ReasonRefused && (was == nil || was.Reason != is.Reason || was.Message != is.Message):
		action := "Rent"
		if cr.DeletionTimestamp != nil {
			action = "GiveUp"
		} else if cr.Status.RoomID != "" {
			action = "Change"
		}
		c.events.Eventf(about, nil, corev1.EventTypeWarning, v1alpha1.ReasonRefused, action, "The store refuses: %s", is.Message)
	}
}

// wrote remembers a write, so that nothing is done about a cache that does not show it yet.
func (c *controller) wrote(cr, after *v1alpha1.ColdRoom, err error, what string) error {
	key := cache.MetaObjectToName(cr)
	if err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // nobody knows whether it was written
			c.writes.Record(key, c.cache, "")
		}
		return err
	}
	c.writes.Record(key, c.cache, after.ResourceVersion)
	c.loop.Wrote(key, what, "a step was taken")
	return nil
}

// step does one thing about a ColdRoom. It changes the object's status and finalizers, and makes at
// most one call that changes something in the store. Unless it is done, there is a next step.
func (c *controller) step(ctx context.Context, cr *v1alpha1.ColdRoom) (again time.Duration, done bool, err error) {
	switch {
	case cr.DeletionTimestamp != nil:
		return c.end(ctx, cr)
	case !slices.Contains(cr.Finalizers, v1alpha1.Finalizer):
		cr.Finalizers = append(cr.Finalizers, v1alpha1.Finalizer) // before the first call
		return 0, false, nil
	case cr.Status.RoomID == "":
		return c.rent(ctx, cr)
	}
	room, err := c.store.room(ctx, cr.Status.RoomID)
	if gone(err) || err == nil && !ours(cr, room) { // somebody has given it up, or this is another store
		forget(cr)
		return 0, false, nil
	}
	if err != nil {
		return 0, true, err
	}
	return c.adjust(ctx, cr, room)
}

// rent leads from no room to the ID of one.
func (c *controller) rent(ctx context.Context, cr *v1alpha1.ColdRoom) (again time.Duration, done bool, err error) {
	ready(cr, metav1.ConditionFalse, v1alpha1.ReasonNotRented)
	request := cr.Status.Request
	switch {
	case request == nil:
		// Perhaps there is one already, of which no status says anything any more.
		rooms, err := c.store.of(ctx, v1alpha1.UIDTag, string(cr.UID))
		if err != nil {
			return 0, true, err
		}
		for _, listed := range rooms {
			room, err := c.store.room(ctx, listed.Id) // as it is now
			if err != nil && !gone(err) {
				return 0, true, err
			}
			if err == nil && room.State != client.Emptying && ours(cr, room) {
				cr.Status.RoomID = room.Id
				return 0, false, nil
			}
		}
		// Written down before it is sent: whoever comes after a crash sends the same again.
		cr.Status.Requests++
		cr.Status.Request = &v1alpha1.RoomRequest{Key: fmt.Sprintf("%s-%d", cr.UID, cr.Status.Requests),
			Pallets: cr.Spec.Pallets, Celsius: *cr.Spec.Celsius, Attempt: attempt(cr)}
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
		return 0, false, nil
	case request.Refused != "":
		if wait := c.holds(cr, request.Attempt); wait > 0 {
			return wait, true, nil
		}
		if request.Pallets != cr.Spec.Pallets || request.Celsius != *cr.Spec.Celsius {
			cr.Status.Request = nil
			return 0, false, nil
		}
		request.Attempt = attempt(cr) // with the same key: perhaps the old one is still on its way
		return 0, false, nil
	}
	if old, wait := c.outdated(cr); wait > 0 {
		return wait, true, nil
	} else if old {
		cr.Status.Request = nil // lists show by now what it has led to
		return 0, false, nil
	}
	room, err := c.send(ctx, cr)
	if message := neverDone(err); message != "" {
		refuse(&request.Attempt, message)
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonRefused, message)
		return 0, false, nil
	}
	if gone(err) { // the room of this key has been given up
		cr.Status.Request = nil
		return 0, false, nil
	}
	if reused(err) { // by a request before the status was lost, and with it the number of requests
		request.Since = c.tooOld()
		return 0, false, nil
	}
	if err != nil {
		return 0, true, err
	}
	cr.Status.RoomID, cr.Status.Request = room.Id, nil
	return 0, false, nil
}

// outdated says whether the store may have forgotten the key of a ColdRoom's request, and how long lists
// may still not show what it has led to. That time begins here, when the key is first found too old:
// counted from its record, it would be over at once where a clock has jumped.
func (c *controller) outdated(cr *v1alpha1.ColdRoom) (old bool, wait time.Duration) {
	request, name := cr.Status.Request, cache.MetaObjectToName(cr)
	if time.Since(request.Since.Time) <= c.remembered {
		c.old.Delete(name)
		return false, 0
	}
	if o, ok := c.old.Load(name); ok && o.(oldRequest).key == request.Key {
		return true, c.late - time.Since(o.(oldRequest).seen)
	}
	c.old.Store(name, oldRequest{request.Key, time.Now()})
	return true, c.late
}

// tooOld is a time since which a key is not trusted any more, while lists do not show yet what it has led to.
func (c *controller) tooOld() metav1.Time { return metav1.NewTime(time.Now().Add(-c.remembered)) }

// errNotRead is no failure of the store.
var errNotRead = errors.New("reading the ColdRoom before a request to the store")

// confirm asks the API server whether a ColdRoom is still as the cache has it: before what cannot be undone,
// a cache that may be old is not enough.
func (c *controller) confirm(ctx context.Context, cr *v1alpha1.ColdRoom) error {
	now, err := c.client.ColdRooms(cr.Namespace).Get(ctx, cr.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotRead, err)
	}
	if now.UID != cr.UID || now.ResourceVersion != cr.ResourceVersion {
		return loop.ErrStale
	}
	return nil
}

// send sends the request that the status holds.
func (c *controller) send(ctx context.Context, cr *v1alpha1.ColdRoom) (*client.Room, error) {
	// The request may have been refused, and another one sent.
	if err := c.confirm(ctx, cr); err != nil {
		return nil, err
	}
	request := cr.Status.Request
	return c.store.rent(ctx, request.Key, client.RoomRequest{Name: cr.Namespace + "/" + cr.Name, Tags: &map[string]string{v1alpha1.UIDTag: string(cr.UID)},
		Pallets: int(request.Pallets), Celsius: int(request.Celsius)})
}

// adjust makes a room what the spec wants.
func (c *controller) adjust(ctx context.Context, cr *v1alpha1.ColdRoom, room *client.Room) (again time.Duration, done bool, err error) {
	observe(cr, room)
	if room.State == client.Preparing || room.State == client.Emptying {
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
		return soon, true, nil
	}
	want, cooling := int(*cr.Spec.Celsius), time.Duration(0) // how long a refused temperature is not asked for again
	if room.Celsius == want {
		cr.Status.Cooling = nil
	}
	if cr.Status.Cooling != nil {
		cooling = c.holds(cr, *cr.Status.Cooling)
	}
	if room.Celsius != want && cooling <= 0 {
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
		_, err := c.store.ChangeRoomWithResponse(ctx, room.Id, client.ChangeRoomJSONRequestBody{Celsius: want})
		if message := forGood(err); message != "" {
			refused := attempt(cr)
			refuse(&refused, message)
			cr.Status.Cooling = &refused
			synced(cr, metav1.ConditionFalse, v1alpha1.ReasonRefused, message)
			return 0, false, nil
		}
		return 0, err != nil, err
	}
	resize := cr.Status.Resize
	if resize == nil || resize.Refused != "" {
		wait := time.Duration(0)
		if resize != nil {
			wait = c.holds(cr, resize.Attempt)
		}
		switch {
		case room.State == client.Closed: // it was rolled back, or somebody has closed it
			_, err := c.store.OpenRoomWithResponse(ctx, room.Id)
			return 0, err != nil, err
		case room.Pallets == int(cr.Spec.Pallets):
			cr.Status.Resize = nil
			if cooling > 0 {
				synced(cr, metav1.ConditionFalse, v1alpha1.ReasonRefused, cr.Status.Cooling.Refused)
				return min(cooling, c.poll), true, nil
			}
			synced(cr, metav1.ConditionTrue, v1alpha1.ReasonSynced, "")
			return c.poll, true, nil
		case wait > 0:
			synced(cr, metav1.ConditionFalse, v1alpha1.ReasonRefused, resize.Refused) // it may say that the store is away
			return min(wait, c.poll), true, nil
		}
		// Written down before the first of three calls: whoever finds it closed knows why.
		cr.Status.Resize = &v1alpha1.Resize{To: cr.Spec.Pallets, Attempt: attempt(cr)}
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
		return 0, false, nil
	}
	switch {
	case resize.To != cr.Spec.Pallets: // it has changed in between
		cr.Status.Resize = &v1alpha1.Resize{To: cr.Spec.Pallets, Attempt: attempt(cr)}
		return 0, false, nil
	case room.Pallets == int(resize.To):
		if room.State == client.Closed {
			_, err := c.store.OpenRoomWithResponse(ctx, room.Id)
			return 0, err != nil, err
		}
		cr.Status.Resize = nil
		return 0, false, nil
	case room.State != client.Closed:
		_, err = c.store.CloseRoomWithResponse(ctx, room.Id)
	default:
		_, err = c.store.ResizeRoomWithResponse(ctx, room.Id, client.ResizeRoomJSONRequestBody{Pallets: int(resize.To)})
	}
	if message := forGood(err); message != "" {
		refuse(&resize.Attempt, message)
		synced(cr, metav1.ConditionFalse, v1alpha1.ReasonRefused, message)
		return 0, false, nil
	}
	return 0, err != nil, err
}

// end gives the room up, and lets the object go when there is certainly none.
func (c *controller) end(ctx context.Context, cr *v1alpha1.ColdRoom) (again time.Duration, done bool, err error) {
	i := slices.Index(cr.Finalizers, v1alpha1.Finalizer)
	if i < 0 {
		return 0, true, nil
	}
	letGo := func() (time.Duration, bool, error) {
		cr.Finalizers = slices.Delete(cr.Finalizers, i, i+1)
		return 0, false, nil
	}
	if cr.Spec.DeletionPolicy == v1alpha1.Orphan {
		return letGo()
	}
	if request := cr.Status.Request; cr.Status.RoomID == "" && request != nil && request.Refused == "" {
		// Nobody knows whether this has led to a room, and a list may be late. The same request again says it.
		switch old, wait := c.outdated(cr); {
		case !old:
			room, err := c.send(ctx, cr)
			switch {
			case err == nil:
				cr.Status.RoomID, cr.Status.Request = room.Id, nil
			case neverDone(err) != "" || gone(err):
				cr.Status.Request = nil
			case reused(err):
				request.Since = c.tooOld()
			default:
				return 0, true, err
			}
			return 0, false, nil
		case wait > 0:
			return wait, true, nil
		}
	}
	rooms, err := c.store.of(ctx, v1alpha1.UIDTag, string(cr.UID))
	if err != nil {
		return 0, true, err
	}
	if id := cr.Status.RoomID; id != "" && !slices.ContainsFunc(rooms, func(r client.Room) bool { return r.Id == id }) {
		rooms = append(rooms, client.Room{Id: id}) // the list is late
	}
	again, message := time.Duration(0), ""
	for _, listed := range rooms {
		room, err := c.store.room(ctx, listed.Id) // as it is now
		if gone(err) || err == nil && !ours(cr, room) {
			continue
		}
		if err == nil && room.State != client.Emptying {
			if err := c.confirm(ctx, cr); err != nil { // somebody may want to keep it by now: deletionPolicy
				return 0, true, err
			}
			_, err = c.store.GiveUpRoomWithResponse(ctx, room.Id)
		}
		switch no := forGood(err); {
		case no != "":
			again, message = c.poll, no
		case err != nil:
			return 0, true, err
		case again == 0:
			again = soon
		}
	}
	if again > 0 {
		ready(cr, metav1.ConditionFalse, v1alpha1.ReasonClosed)
		reason := v1alpha1.ReasonProgressing
		if message != "" {
			reason = v1alpha1.ReasonRefused
		}
		synced(cr, metav1.ConditionFalse, reason, message)
		return again, true, nil
	}
	return letGo()
}

func attempt(cr *v1alpha1.ColdRoom) v1alpha1.Attempt {
	return v1alpha1.Attempt{Generation: cr.Generation, Since: metav1.Now()}
}

// refuse keeps why the store has refused an attempt. It holds from now on, however long the answer took.
func refuse(a *v1alpha1.Attempt, message string) { a.Refused, a.Since = message, metav1.Now() }

// holds says how long a refusal still holds. A change of the spec ends it at once, and so does a clock that was set back.
func (c *controller) holds(cr *v1alpha1.ColdRoom, refused v1alpha1.Attempt) time.Duration {
	wait := time.Until(refused.Since.Add(c.retry))
	if refused.Generation != cr.Generation || wait > c.retry {
		return 0
	}
	return wait
}

// ours reports whether a room was rented for this ColdRoom, and not for somebody else.
func ours(cr *v1alpha1.ColdRoom, room *client.Room) bool {
	return room.Tags != nil && (*room.Tags)[v1alpha1.UIDTag] == string(cr.UID)
}

// forget is for a room that is gone.
func forget(cr *v1alpha1.ColdRoom) {
	cr.Status.RoomID, cr.Status.Request, cr.Status.Resize, cr.Status.Cooling, cr.Status.Pallets, cr.Status.Celsius = "", nil, nil, nil, nil, nil
	ready(cr, metav1.ConditionFalse, v1alpha1.ReasonNotRented)
	synced(cr, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
}

// observe writes down what a room is like.
func observe(cr *v1alpha1.ColdRoom, room *client.Room) {
	pallets, celsius := int32(room.Pallets), int32(room.Celsius)
	cr.Status.Pallets, cr.Status.Celsius = &pallets, &celsius
	switch room.State {
	case client.Ready:
		ready(cr, metav1.ConditionTrue, v1alpha1.ReasonReady)
	case client.Preparing:
		ready(cr, metav1.ConditionFalse, v1alpha1.ReasonPreparing)
	default:
		ready(cr, metav1.ConditionFalse, v1alpha1.ReasonClosed)
	}
}

// failing says what goes wrong for now, in words that stay the same while it does. It returns false
// if there is nothing to say.
func failing(cr *v1alpha1.ColdRoom, err error) bool {
	if errors.Is(err, loop.ErrStale) || errors.Is(err, errNotRead) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false
	}
	var r *refused
	var b *busy
	message := "the store cannot be reached"
	switch {
	case errors.As(err, &r) && r.code < http.StatusInternalServerError, errors.Is(err, errStrange), errors.Is(err, errNoToken):
		message = err.Error()
	case errors.As(err, &r):
		message = fmt.Sprintf("the store answers %d", r.code)
	case errors.As(err, &b):
		if b.wait < alarming {
			return false
		}
		message = b.Error()
	}
	// A gateway may say something else each time, such as the number of the request. Reported are its first words.
	kind, _, _ := strings.Cut(message, ": ")
	if is := meta.FindStatusCondition(cr.Status.Conditions, v1alpha1.ConditionSynced); is != nil && is.Reason == v1alpha1.ReasonFailing && strings.HasPrefix(is.Message, kind) {
		message = is.Message
	}
	synced(cr, metav1.ConditionFalse, v1alpha1.ReasonFailing, message)
	return true
}

func ready(cr *v1alpha1.ColdRoom, status metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&cr.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, ObservedGeneration: cr.Generation})
}

func synced(cr *v1alpha1.ColdRoom, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&cr.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionSynced, Status: status, Reason: reason, Message: message, ObservedGeneration: cr.Generation})
}

// errNoToken says that nobody has put the token where it is looked for.
var errNoToken = errors.New("there is no token for the store")

// tokenOf reads the token from a Secret.
func tokenOf(secret *corev1.Secret) (string, error) {
	if token := strings.TrimSpace(string(secret.Data["token"])); token != "" { // a file ends with a newline
		return token, nil
	}
	return "", fmt.Errorf("%w: the Secret %s has no key token", errNoToken, secret.Name)
}
