package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/06-controller/loop"
)

// deadline is how long the program may take to decide.
const deadline = 10 * time.Second

// byOwner is an index of children by the UID of their controller.
const byOwner = "owner"

// errForeign says that the name of a child is taken. Trying again would not help.
var errForeign = errors.New("exists and does not belong to it")

// A question is what the program reads.
type question struct {
	Parent   *unstructured.Unstructured   `json:"parent"`
	Children []*unstructured.Unstructured `json:"children"` // of this parent, as they are
	Refused  string                       `json:"refused"`  // what the API server has said of the children wanted, if it will say so again
	Taken    string                       `json:"taken"`    // a child wanted whose name somebody else has
}

// An answer is what the program prints.
type answer struct {
	Status   map[string]any   `json:"status"`
	Children []map[string]any `json:"children"` // as they should be; what a child does not mention stays as it is
}

// A controller asks a program what should be, and brings it about.
type controller struct {
	loop              *loop.Loop
	parents, children dynamic.ResourceInterface
	cached, owned     cache.Indexer // what the informers hold: never change an object from there
	waiting           sync.Map      // keys of parents that want what they do not get, as a name that somebody else has
	namespace         string
	program           []string
	informers         informers
}

// informers make the dynamic factory one that the loop can start.
type informers struct {
	dynamicinformer.DynamicSharedInformerFactory
}

func (i informers) StartWithContext(ctx context.Context) { i.Start(ctx.Done()) }

func newController(client, once dynamic.Interface, namespace string, parents, children schema.GroupVersionResource, program []string, options loop.Options) (*controller, error) {
	c := &controller{
		parents: once.Resource(parents).Namespace(namespace), children: once.Resource(children).Namespace(namespace),
		namespace: namespace, program: program,
		informers: informers{dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)},
	}
	c.loop = loop.New("hook", c.reconcile, options)
	of, made := c.informers.ForResource(parents).Informer(), c.informers.ForResource(children).Informer()
	c.cached, c.owned = of.GetIndexer(), made.GetIndexer()
	err := made.AddIndexers(cache.Indexers{byOwner: func(obj any) ([]string, error) {
		if owner := metav1.GetControllerOfNoCopy(obj.(*unstructured.Unstructured)); owner != nil {
			return []string{string(owner.UID)}, nil
		}
		return nil, nil
	}})
	return c, errors.Join(err, c.loop.Watch(of, each(func(o *unstructured.Unstructured) {
		c.loop.Add(cache.MetaObjectToName(o), "parent changed")
	})), c.loop.Watch(made, each(func(o *unstructured.Unstructured) {
		if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
			c.loop.Add(cache.NewObjectName(namespace, owner.Name), "child changed")
		}
		c.waiting.Range(func(key, _ any) bool { // it may be, or have been, in their way
			c.loop.Add(key.(cache.ObjectName), "somebody else's object changed")
			return true
		})
	})))
}

// each calls f with the object of each event, as it was and as it is.
func each(f func(*unstructured.Unstructured)) cache.ResourceEventHandler {
	handle := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(*unstructured.Unstructured); ok {
			f(o)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(old, obj any) { handle(old); handle(obj) }, DeleteFunc: handle}
}

// reconcile asks the program about one parent, and does what it answers.
func (c *controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, exists, err := c.cached.GetByKey(key.String())
	if err != nil || !exists {
		c.waiting.Delete(key)
		return 0, err
	}
	parent := obj.(*unstructured.Unstructured)
	if parent.GetDeletionTimestamp() != nil {
		return 0, nil // the garbage collector deletes the children
	}
	q := question{Parent: parent, Children: []*unstructured.Unstructured{}}
	owned, err := c.owned.ByIndex(byOwner, string(parent.GetUID()))
	if err != nil {
		return 0, err
	}
	for _, child := range owned {
		q.Children = append(q.Children, child.(*unstructured.Unstructured))
	}
	// The index has no order, and the same question has to look the same.
	slices.SortFunc(q.Children, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	a, err := c.ask(ctx, q)
	if err != nil {
		return 0, err
	}
	c.waiting.Store(key, true) // before it looks: what it sees in the way may go at any time
	taken, failed := c.bring(ctx, parent, q.Children, a.Children)
	if taken == "" && loop.Refused(failed) == "" { // what goes may also make room in a quota
		c.waiting.Delete(key)
	}
	if q.Taken, q.Refused = taken, loop.Refused(failed); q.Refused == "" && failed != nil {
		return 0, failed // this will pass
	}
	if q.Taken+q.Refused != "" { // the status has to say so
		if a, err = c.ask(ctx, q); err != nil {
			return 0, errors.Join(failed, err)
		}
	}
	return c.again(a.Children), errors.Join(failed, c.report(ctx, parent, a.Status, q.Refused != ""))
}

// again is when to look at children that the cache does not show yet. What was made or found live may be gone before, and then
// no event tells us.
func (c *controller) again(children []map[string]any) time.Duration {
	for _, child := range children {
		if _, known, _ := c.owned.GetByKey(c.namespace + "/" + (&unstructured.Unstructured{Object: child}).GetName()); !known {
			return 5 * time.Second
		}
	}
	return 0
}

// ask runs the program.
func (c *controller) ask(ctx context.Context, q question) (a answer, err error) {
	in, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	command := exec.CommandContext(ctx, c.program[0], c.program[1:]...)
	var out, said bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(in), &out, &said
	command.WaitDelay = time.Second // for what it has started itself
	if err := command.Run(); err != nil {
		return a, fmt.Errorf("%s: %w: %s", c.program[0], errors.Join(err, ctx.Err()), strings.TrimSpace(said.String()))
	}
	// Whole numbers become int64, as in the objects of the API; encoding/json makes each a float64.
	if err := utiljson.Unmarshal(out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("%s did not print an answer: %w: %.200s", c.program[0], err, out.Bytes())
	}
	if a.Children == nil { // without a decision, nothing may be deleted
		return a, fmt.Errorf("%s did not say which children there should be; [] is for none: %.200s", c.program[0], out.Bytes())
	}
	return a, nil
}

// bring makes a parent's children what they should be.
func (c *controller) bring(ctx context.Context, parent *unstructured.Unstructured, have []*unstructured.Unstructured, want []map[string]any) (taken string, err error) {
	errs, wanted := []error{}, map[string]bool{}
	for _, w := range want {
		child := &unstructured.Unstructured{Object: w}
		if child.GetName() == "" { // generateName would make another one each time
			errs = append(errs, fmt.Errorf("%s: a child has no name", c.program[0]))
			continue
		}
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(parent, parent.GroupVersionKind())})
		wanted[child.GetName()] = true
		err := c.one(ctx, parent, child)
		if errors.Is(err, errForeign) { // the event of its end brings the key back
			taken, err = err.Error(), nil
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); taken != "" || err != nil {
		return taken, err // what would be deleted may be all that there is
	}
	left := slices.DeleteFunc(slices.Clone(have), func(child *unstructured.Unstructured) bool {
		return wanted[child.GetName()] || child.GetDeletionTimestamp() != nil
	})
	if len(left) > 0 {
		if err := c.confirm(ctx, parent); err != nil {
			return taken, err
		}
	}
	for _, child := range left { // one that may not go keeps no other
		uid, version := child.GetUID(), child.GetResourceVersion() // neither of one that has got the name since, nor of what it has become
		background := metav1.DeletePropagationBackground           // for a Job, the default would leave its pods behind
		if err := c.children.Delete(ctx, child.GetName(), metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return taken, errors.Join(errs...)
}

// confirm asks the API server whether a parent is still the one that the program has decided about: before
// something is made for it, or deleted, a cache that may be behind is not enough.
func (c *controller) confirm(ctx context.Context, parent *unstructured.Unstructured) error {
	live, err := c.parents.Get(ctx, parent.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.GetUID() != parent.GetUID() || live.GetResourceVersion() != parent.GetResourceVersion()) {
		return loop.ErrStale
	}
	return err
}

// one creates a child, or changes what differs in the one that is there.
func (c *controller) one(ctx context.Context, parent, child *unstructured.Unstructured) error {
	obj, exists, err := c.owned.GetByKey(c.namespace + "/" + child.GetName())
	if err != nil {
		return err
	}
	var now *unstructured.Unstructured
	if exists {
		now = obj.(*unstructured.Unstructured)
	} else if err = c.confirm(ctx, parent); err != nil {
		return err
	} else if _, err = c.children.Create(ctx, child, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	} else if now, err = c.children.Get(ctx, child.GetName(), metav1.GetOptions{}); err != nil { // the cache was behind
		return err
	}
	switch child.SetOwnerReferences(nil); { // those that are there stay: there may be others beside the parent
	case !metav1.IsControlledBy(now, parent):
		return fmt.Errorf("%s %s %w", now.GetKind(), now.GetName(), errForeign)
	case now.GetDeletionTimestamp() != nil || equality.Semantic.DeepEqual(merge(now.Object, child.Object), now.Object):
		return nil
	}
	_, err = c.children.Update(ctx, &unstructured.Unstructured{Object: merge(now.Object, child.Object).(map[string]any)}, metav1.UpdateOptions{})
	return err
}

// merge returns what is there with what is wanted in its place. A list whose elements are
// objects is merged element by element, because the API server fills in defaults there, too:
// by their names, if they have any, and what has another name stays.
func merge(now, want any) any {
	switch want := want.(type) {
	case map[string]any:
		now, _ := now.(map[string]any)
		merged := map[string]any{}
		maps.Copy(merged, now)
		for key, value := range want {
			merged[key] = merge(now[key], value)
		}
		return merged
	case []any:
		now, _ := now.([]any)
		if len(want) > 0 && !slices.ContainsFunc(slices.Concat(now, want), func(element any) bool { return nameOf(element) == "" }) {
			return mergeNamed(now, want)
		}
		merged := slices.Clone(want)
		for i := range min(len(now), len(want)) {
			merged[i] = merge(now[i], want[i])
		}
		return merged
	}
	return want
}

// mergeNamed merges lists such as those of containers.
func mergeNamed(now, want []any) []any {
	merged, left := slices.Clone(now), slices.Clone(now)
	for _, w := range want {
		i := slices.IndexFunc(left, func(element any) bool { return nameOf(element) == nameOf(w) })
		if i < 0 {
			merged = append(merged, w)
			continue
		}
		merged[i], left[i] = merge(left[i], w), nil // a name may be there twice, as that of a volumeMount
	}
	return merged
}

func nameOf(element any) string {
	object, _ := element.(map[string]any)
	name, _ := object["name"].(string)
	return name
}

// report writes the status, if it differs. A condition keeps the time of its last change. While
// the API server refuses, it keeps its message, too: other words each time would be an event each time.
func (c *controller) report(ctx context.Context, parent *unstructured.Unstructured, status map[string]any, refused bool) error {
	before, _, _ := unstructured.NestedSlice(parent.Object, "status", "conditions")
	conditions, _ := status["conditions"].([]any)
	for _, condition := range conditions {
		condition, ok := condition.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: a condition is no object", c.program[0])
		}
		condition["lastTransitionTime"] = time.Now().UTC().Format(time.RFC3339)
		for _, old := range before {
			if old, ok := old.(map[string]any); ok && old["type"] == condition["type"] && old["status"] == condition["status"] {
				condition["lastTransitionTime"] = old["lastTransitionTime"]
				if refused && old["reason"] == condition["reason"] && old["observedGeneration"] == condition["observedGeneration"] {
					condition["message"] = old["message"]
				}
			}
		}
	}
	kind := func(condition any) any { c, _ := condition.(map[string]any); return c["type"] }
	for _, other := range before { // those of other controllers stay
		if status != nil && !slices.ContainsFunc(conditions, func(c any) bool { return kind(c) == kind(other) }) {
			conditions = append(conditions, other)
			status["conditions"] = conditions
		}
	}
	if status == nil || equality.Semantic.DeepEqual(parent.Object["status"], any(status)) {
		return nil
	}
	parent = parent.DeepCopy() // others read what the cache holds
	parent.Object["status"] = status
	_, err := c.parents.UpdateStatus(ctx, parent, metav1.UpdateOptions{})
	return err
}
