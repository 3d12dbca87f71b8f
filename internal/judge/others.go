package judge

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/conflict"
	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// Others are whoever else writes to the same objects. The end state does not count what
// they leave there.
const (
	rival = "judge.test/rival" // an annotation, and the type of a condition
	hold  = "judge.test/hold"  // a finalizer
)

// otherCases are those of level 4, as far as the undisturbed run gives them something to strike.
func otherCases(first *scene, ownCluster bool) []*Case {
	cases := []*Case{
		{Name: "409 Conflict", Level: 4, maybe: true, When: "when somebody else wrote to each object just before it did", inject: storm, finally: rivalsKept},
		{Name: "undone by others", Level: 4, maybe: true, When: "after somebody had undone some of its writes", inject: undo},
		{Name: "made again in between", Level: 4, maybe: true, When: "after an object was deleted and made again between its look and its write", inject: remake},
	}
	if made := first.made(); len(made) > 0 {
		named := func(r faultproxy.Request) bool { o := sent(r); return r.Name != "" || o != nil && o.GetName() != "" }
		if slices.ContainsFunc(made, named) { // and not generateName alone
			cases = append(cases, &Case{Name: "foreign objects", Level: 4, When: "after somebody else had been quicker to make an object of that name", inject: squat})
		}
		cases = append(cases,
			&Case{Name: "refused for a while", Level: 4, When: "after an admission policy had refused all that it creates for some seconds", inject: forAWhile((*scene).refuse, (*scene).refusals)})
		if ownCluster { // whose API server reaches a server of ours
			cases = append(cases,
				&Case{Name: "webhook ended", Level: 4, When: "after a webhook that must agree to all that it creates had ended for some seconds", inject: forAWhile((*scene).endWebhook, (*scene).unanswered)},
				&Case{Name: "webhook hung", Level: 4, When: "after a webhook that must agree to all that it creates had not answered for some seconds", inject: forAWhile((*scene).hangWebhook, (*scene).unanswered)})
		}
	}
	if len(first.repairs()) > 0 {
		cases = append(cases, &Case{Name: "changes refused for a while", Level: 4, maybe: true, When: "after its changes of what it makes had been refused for some seconds with 403", inject: refuseChanges})
	}
	if first.contract.deletes() {
		cases = append(cases, &Case{Name: "finalizers of others", Level: 4, When: "while somebody else's finalizer kept an object that was deleted", around: heldDeletion})
	}
	if len(first.reports()) > 0 {
		cases = append(cases, &Case{Name: "status lost", Level: 4, When: "after the status of all objects was lost, as in a restore from a backup", finally: loseStatus})
	}
	cases = append(cases, &Case{Name: "namespace deleted", Level: 4, When: "while its namespace was being deleted", finally: deleteNamespace})
	if ownCluster && len(first.contract.CRDs) > 0 {
		cases = append(cases, &Case{Name: "CRD version switched", Level: 4, Alone: true, When: "after the CRD had got another version to be stored in", inject: switchVersion})
	}
	return cases
}

// deletes says whether people delete objects that they have made.
func (c *Contract) deletes() bool {
	return slices.ContainsFunc(c.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(s Step) bool { return s.Verb == remove && c.theirs(s) })
	})
}

// concerns says whether a request is about objects of a kind, or about parts of them.
func concerns(r faultproxy.Request, kind *meta.RESTMapping) bool {
	return gvr(r).GroupResource() == kind.Resource.GroupResource()
}

// gvr is the resource of a request, without its subresource.
func gvr(r faultproxy.Request) schema.GroupVersionResource {
	parts := strings.Split(strings.Trim(r.Path, "/"), "/") // api/v1/..., apis/GROUP/VERSION/...
	version := parts[min(1, len(parts)-1)]
	if r.Group != "" {
		version = parts[min(2, len(parts)-1)]
	}
	resource, _, _ := strings.Cut(r.Resource, "/")
	return schema.GroupVersionResource{Group: r.Group, Version: version, Resource: resource}
}

func (s *scene) of(r faultproxy.Request) dynamic.ResourceInterface {
	return s.dynamic.Resource(gvr(r)).Namespace(s.ns)
}

// sent is what a write has sent, as an object; nil if it is a list of changes or unreadable.
func sent(r faultproxy.Request) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if strings.HasPrefix(string(r.Body), "k8s\x00") { // protobuf
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.Body, nil, nil)
		if err != nil {
			return nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(decoded)
		if err != nil {
			return nil
		}
		o.Object = content
		return o
	}
	if json.Unmarshal(r.Body, &o.Object) != nil && yaml.Unmarshal(r.Body, &o.Object) != nil || o.Object == nil { // an apply may be YAML
		return nil
	}
	return o
}

// creation is a request that has made an object, and no part of one.
func creation(r faultproxy.Request) bool {
	return r.Code == http.StatusCreated && (r.Verb == "create" || r.Verb == "patch") && isWrite(r) && !strings.Contains(r.Resource, "/")
}

// made are the requests by which the controller has made objects.
func (s *scene) made() []faultproxy.Request { return s.requests(faultproxy.Match{If: creation}) }

// reports are the requests by which it has written the status of what people make.
func (s *scene) reports() []faultproxy.Request {
	return s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		return isWrite(r) && r.Code/100 == 2 && strings.HasSuffix(r.Resource, "/status")
	}})
}

// repairs are the requests by which it has changed what it makes itself.
func (s *scene) repairs() []faultproxy.Request {
	return s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return s.ownRepair(r) && r.Code == http.StatusOK }})
}

// ownRepair says whether a request changes an object that people do not make.
func (s *scene) ownRepair(r faultproxy.Request) bool {
	if !ownWrite(r) || strings.Contains(r.Resource, "/") {
		return false
	}
	kind, err := s.mapper.KindFor(gvr(r))
	if err != nil {
		return false
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetName(r.Name)
	return !s.contract.theirs(Step{Object: o})
}

// refuseChanges refuses what the controller changes of its own objects until some seconds after something was refused.
func refuseChanges(s *scene) (crash.During, error) {
	err := s.Inject(faultproxy.Rule{Match: faultproxy.Match{If: s.ownRepair}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	length := crash.Between(s.Chance, time.Second, 3*time.Second)
	return func(ctx context.Context) error {
		s.strikes(ctx, s.Injections[0])
		crash.Sleep(ctx, length)
		s.Injections[0].Remove()
		return nil
	}, err
}

// ownWrite says whether a request changes an object that is there, by name.
func ownWrite(r faultproxy.Request) bool {
	return isWrite(r) && r.Name != "" && (r.Verb == "update" || r.Verb == "patch")
}

// storm has a rival write to each object just before the controller does.
func storm(s *scene) (crash.During, error) {
	n, each := 0, map[string]int{}
	const most = 3 // for each object, or there would be no end
	shared, err := s.sharedConditions()
	if err != nil {
		return nil, err
	}
	return nil, s.rule(faultproxy.Rule{Match: faultproxy.Match{If: ownWrite}, Fault: faultproxy.Call, Times: -1,
		Call: func(ctx context.Context, r faultproxy.Request) error {
			s.mu.Lock()
			n++
			each[r.Path]++
			value, enough := fmt.Sprint(n), each[r.Path] > most
			s.mu.Unlock()
			if enough {
				return nil
			}
			marks := fmt.Sprintf(`"metadata":{"annotations":{%q:%q}}`, rival, value)
			whole, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{})
			if err != nil { // it is not there yet, or no longer
				return nil
			}
			if _, template, _ := unstructured.NestedMap(whole.Object, "spec", "template"); template && r.Group == "apps" {
				marks += fmt.Sprintf(`,"spec":{"template":{%s}}`, marks)
			}
			o, err := s.of(r).Patch(ctx, r.Name, types.MergePatchType, []byte("{"+marks+"}"), metav1.PatchOptions{FieldManager: "rival"})
			if err != nil {
				return nil
			}
			condition := shared[gvr(r).GroupResource()] && strings.HasSuffix(r.Resource, "/status") && s.addCondition(ctx, r, value)
			s.Strikes.Add(1)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.rivals[o.GetUID()] = rivalry{o, r, value, s.rivals[o.GetUID()].condition}
			if condition {
				s.rivals[o.GetUID()] = rivalry{o, r, value, value}
			}
			return nil
		}})
}

// sharedConditions are the resources of the contract whose status has conditions of which each may be
// somebody else's: a list that is a map by type.
func (s *scene) sharedConditions() (map[schema.GroupResource]bool, error) {
	shared := map[schema.GroupResource]bool{}
	for _, file := range s.contract.CRDs {
		crds, err := readCRDs(file)
		if err != nil {
			return nil, err
		}
		for _, crd := range crds {
			for _, v := range crd.Spec.Versions {
				if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
					continue
				}
				conditions := v.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]
				if conditions.XListType != nil && *conditions.XListType == "map" && slices.Equal(conditions.XListMapKeys, []string{"type"}) {
					shared[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = true
				}
			}
		}
	}
	return shared, nil
}

// addCondition puts somebody else's condition into a status that gets conditions.
func (s *scene) addCondition(ctx context.Context, r faultproxy.Request, value string) bool {
	o := sent(r)
	if o == nil {
		return false
	}
	if conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); len(conditions) == 0 {
		return false
	}
	return conflict.Retry(retry.DefaultRetry, func() error {
		now, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(now.Object, "status", "conditions")
		if err != nil {
			return err
		}
		conditions = slices.DeleteFunc(conditions, func(c any) bool { return typeOf(c) == rival })
		conditions = append(conditions, map[string]any{"type": rival, "status": "True", "reason": "Rival", "message": value, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
		if err := unstructured.SetNestedSlice(now.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		_, err = s.of(r).UpdateStatus(ctx, now, metav1.UpdateOptions{FieldManager: "rival"})
		return err
	}) == nil
}

// A rivalry is the last thing that a rival has written to an object.
type rivalry struct {
	object    *unstructured.Unstructured
	request   faultproxy.Request
	value     string // of the annotations
	condition string // the message of the condition, if there is one
}

// lost says what of a rivalry is no longer there, and in what a controller writes it.
func (r rivalry) lost(now *unstructured.Unstructured) (what string, status bool) {
	template, ofTemplate, _ := unstructured.NestedStringMap(r.object.Object, "spec", "template", "metadata", "annotations")
	left, _, _ := unstructured.NestedStringMap(now.Object, "spec", "template", "metadata", "annotations")
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	name := Step{Object: r.object}.String()
	switch {
	case now.GetAnnotations()[rival] != r.value:
		return name, false
	case ofTemplate && template[rival] != "" && left[rival] != template[rival]:
		return "the template of " + name, false
	case r.condition != "" && !slices.ContainsFunc(conditions, func(c any) bool {
		return typeOf(c) == rival && c.(map[string]any)["message"] == r.condition
	}):
		return "the conditions of " + name, true
	}
	return "", false
}

// rivalsKept fails if the controller has overwritten what a rival wrote.
func rivalsKept(ctx context.Context, s *scene) error {
	s.mu.Lock() // the controller may still write
	rivals := slices.SortedFunc(maps.Values(s.rivals), func(a, b rivalry) int { return strings.Compare(a.request.Path, b.request.Path) })
	s.mu.Unlock()
	for _, r := range rivals {
		now, err := s.of(r.request).Get(ctx, r.object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.GetUID() != r.object.GetUID():
		case err != nil:
			return err
		default:
			what, status := r.lost(now)
			if what == "" {
				continue
			}
			written := s.requests(faultproxy.Match{Name: r.request.Name, If: func(w faultproxy.Request) bool {
				return ownWrite(w) && gvr(w) == gvr(r.request) && w.Code/100 == 2 && (status && strings.HasSuffix(w.Resource, "/status") || w.ID >= r.request.ID && w.Resource == r.request.Resource)
			}})
			return &failure{kind: overwrote, detail: what, requests: written[max(0, len(written)-3):]}
		}
	}
	return nil
}

// undo puts back what was there before some of the controller's writes.
func undo(s *scene) (crash.During, error) {
	before := map[int]*unstructured.Unstructured{} // by the number of the request; s.mu guards it
	match := faultproxy.Match{If: func(r faultproxy.Request) bool { return ownWrite(r) && !strings.Contains(r.Resource, "/") }}
	look := faultproxy.Rule{Match: match, Fault: faultproxy.Call, Times: -1, Call: func(ctx context.Context, r faultproxy.Request) error {
		if o, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{}); err == nil {
			s.mu.Lock()
			before[r.ID] = o
			s.mu.Unlock()
		}
		return nil
	}}
	times := 2 + s.Chance.IntN(2)
	back := faultproxy.Rule{Match: match, Fault: faultproxy.CallAnswered, Times: -1, Call: func(ctx context.Context, r faultproxy.Request) error {
		s.mu.Lock()
		old := before[r.ID]
		delete(before, r.ID)
		do := old != nil && r.Code/100 == 2 && times > 0
		if do {
			times--
		}
		s.mu.Unlock()
		if !do {
			return nil
		}
		s.people.Lock() // or what somebody changes in between would be undone, too
		defer s.people.Unlock()
		err := conflict.Retry(retry.DefaultRetry, func() error {
			now, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if now.GetUID() != old.GetUID() {
				return errors.New("another one has the name")
			}
			next := old.DeepCopy()
			next.Object["metadata"], next.Object["status"] = now.Object["metadata"], now.Object["status"]
			next.SetLabels(old.GetLabels())
			next.SetAnnotations(old.GetAnnotations())
			_, err = s.of(r).Update(ctx, next, metav1.UpdateOptions{FieldManager: "rival"})
			return err
		})
		if err == nil {
			s.Strikes.Add(1)
		}
		return nil
	}}
	return nil, errors.Join(s.rule(look), s.rule(back))
}

// charge is the people's object that a write of the controller is about; nil if there is none.
func (s *scene) charge(ctx context.Context, r faultproxy.Request) *unstructured.Unstructured {
	theirs := func(apiVersion, kind, name string) *unstructured.Unstructured {
		step := Step{Object: &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}}
		if !s.contract.theirs(step) {
			return nil
		}
		client, err := s.client(apiVersion, kind)
		if err != nil {
			return nil
		}
		o, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return o
	}
	object := sent(r)
	if r.Name != "" {
		now, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{})
		if err == nil {
			object = now
		}
	}
	if object == nil {
		return nil
	}
	if o := theirs(object.GetAPIVersion(), object.GetKind(), object.GetName()); o != nil {
		return o
	}
	for _, owner := range object.GetOwnerReferences() {
		if o := theirs(owner.APIVersion, owner.Kind, owner.Name); o != nil {
			return o
		}
	}
	return nil
}

// remake deletes what a write is about just before it arrives, and makes it again: under its
// name there is another object now.
func remake(s *scene) (crash.During, error) {
	times := 3
	wait := s.Chance.IntN(4)
	return nil, s.rule(faultproxy.Rule{Match: writes, Fault: faultproxy.Call, Times: -1, Call: func(ctx context.Context, r faultproxy.Request) error {
		s.people.Lock() // or what somebody changes in between would be lost
		defer s.people.Unlock()
		if wait--; wait >= 0 || times == 0 || s.done() {
			return nil
		}
		old := s.charge(ctx, r)
		if old == nil || old.GetDeletionTimestamp() != nil || len(old.GetFinalizers()) > 0 {
			return nil // what does not go at once would keep this write waiting
		}
		client, err := s.client(old.GetAPIVersion(), old.GetKind())
		if err != nil {
			return nil
		}
		if err := client.Delete(ctx, old.GetName(), thisOne(old)); err != nil {
			return nil
		}
		times--
		s.removedNow(old.GetName())
		next := again(old)
		// Whatever becomes of the request: people's object must not be missing.
		err = poll.Until(context.WithoutCancel(ctx), 20*time.Millisecond, 10*time.Second, func(ctx context.Context) error {
			_, err := client.Create(ctx, next, metav1.CreateOptions{FieldManager: people})
			return err
		})
		if err != nil {
			s.stop(fmt.Errorf("making %s %s again: %w", old.GetKind(), old.GetName(), err))
			return nil
		}
		s.Strikes.Add(1)
		return nil
	}})
}

// thisOne has a delete spare another object that was made under the same name.
func thisOne(o *unstructured.Unstructured) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(o.GetUID()))}
}

// again is an object as people would make it again.
func again(old *unstructured.Unstructured) *unstructured.Unstructured {
	next := old.DeepCopy()
	metadata := map[string]any{"name": old.GetName()}
	next.Object["metadata"] = metadata
	next.SetLabels(old.GetLabels())
	next.SetAnnotations(old.GetAnnotations())
	delete(next.Object, "status")
	return next
}

// squat has a stranger make the object that the controller is about to make, and take it
// away after a while. Meanwhile it must not be touched.
func squat(s *scene) (crash.During, error) {
	type squatter struct {
		*unstructured.Unstructured
		request faultproxy.Request
		since   time.Time
	}
	var there []squatter // s.mu guards it
	wait, times := s.Chance.IntN(2), 2
	err := s.rule(faultproxy.Rule{Match: writes, Fault: faultproxy.Call, Times: -1, Call: func(ctx context.Context, r faultproxy.Request) error {
		o := sent(r)
		if o == nil || strings.Contains(r.Resource, "/") || r.Verb != "create" && r.Verb != "patch" || s.done() {
			return nil
		}
		if o.GetKind() == "" { // the path says it, too, and clients of other languages leave it at that
			if kind, err := s.mapper.KindFor(gvr(r)); err == nil {
				o.SetGroupVersionKind(kind)
			}
		}
		if o.GetName() == "" && r.Verb == "patch" {
			o.SetName(r.Name)
		}
		if o.GetName() == "" || o.GetKind() == "" || o.GetAPIVersion() == "" {
			return nil
		}
		if _, err := s.of(r).Get(ctx, o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return nil
		}
		s.mu.Lock()
		wait--
		do := wait < 0 && times > 0
		if do {
			times--
		}
		s.mu.Unlock()
		if !do {
			return nil
		}
		since := time.Now()
		made, err := s.of(r).Create(ctx, again(o), metav1.CreateOptions{FieldManager: "stranger"})
		if err == nil {
			s.Strikes.Add(1)
			s.mu.Lock()
			there = append(there, squatter{made, r, since})
			s.mu.Unlock()
		}
		return nil
	}})
	leave := func(ctx context.Context, q squatter) error {
		client := s.of(q.request)
		touched := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
			return isWrite(r) && r.Name == q.GetName() && gvr(r) == gvr(q.request) && r.Code/100 == 2 && (r.Started.After(q.since) || r.ID == q.request.ID) &&
				!s.removedBetween(q.GetName(), q.since, r.Started) // then it is another object of that name
		}})
		now, err := client.Get(ctx, q.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != q.GetUID() {
			if len(touched) == 0 {
				return nil // people have deleted it
			}
			err = nil
		}
		if err == nil && len(touched) > 0 {
			return &failure{kind: trespassed, detail: Step{Object: q.Unstructured}.String(), requests: touched}
		}
		if err == nil {
			err = client.Delete(ctx, q.GetName(), thisOne(q.Unstructured))
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			s.mu.Lock()
			left := slices.Clone(there)
			s.mu.Unlock()
			if len(left) == 0 && s.done() {
				return nil
			}
			if len(left) > 0 && time.Since(left[0].since) > 2*time.Second {
				s.mu.Lock()
				there = there[1:]
				s.mu.Unlock()
				if err := leave(ctx, left[0]); err != nil {
					return err
				}
			}
			crash.Sleep(ctx, 100*time.Millisecond)
		}
		return nil
	}, err
}

// heldDeletion keeps what people delete for a while by somebody else's finalizer, and takes
// away what the controller has made for it. Nobody may make that again.
func heldDeletion(ctx context.Context, s *scene, step Step, play func() error) (err error) {
	if step.Verb != remove || !s.contract.theirs(step) {
		return play()
	}
	client, err := s.client(step.Object.GetAPIVersion(), step.Object.GetKind())
	if err != nil {
		return err
	}
	name := step.Object.GetName()
	held, err := setHold(ctx, client, name, true)
	if apierrors.IsNotFound(err) {
		return play()
	}
	if err != nil {
		return err
	}
	defer func() {
		_, holdErr := setHold(context.WithoutCancel(ctx), client, name, false)
		if err == nil && !apierrors.IsNotFound(holdErr) {
			err = holdErr
		}
	}()
	if err := play(); err != nil {
		return err
	}
	s.Strikes.Add(1)
	crash.Sleep(ctx, 1500*time.Millisecond) // it has heard of the deletion
	since := time.Now()
	err = s.each(ctx, func(children dynamic.ResourceInterface, child unstructured.Unstructured) error {
		if !ownedBy(&child, held.GetUID()) || child.GetDeletionTimestamp() != nil {
			return nil
		}
		return children.Delete(ctx, child.GetName(), metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	crash.Sleep(ctx, 1500*time.Millisecond)
	zombies := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		o := sent(r)
		return creation(r) && r.Started.After(since) && o != nil && ownedBy(o, held.GetUID())
	}})
	if len(zombies) > 0 {
		return &failure{kind: zombie, step: &step, requests: zombies, detail: "  of " + step.String()}
	}
	now, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (now.GetUID() != held.GetUID() || !slices.Contains(now.GetFinalizers(), hold)) {
		found, _ := s.about(step.Object.GetAPIVersion(), step.Object.GetKind(), name)
		return &failure{kind: stripped, step: &step, requests: found[max(0, len(found)-3):]}
	}
	return err
}

func ownedBy(o *unstructured.Unstructured, uid types.UID) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == uid })
}

// setHold puts our finalizer on an object, or takes it away.
func setHold(ctx context.Context, client dynamic.ResourceInterface, name string, on bool) (held *unstructured.Unstructured, err error) {
	err = conflict.Retry(retry.DefaultBackoff, func() error {
		if held, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		finalizers := slices.DeleteFunc(held.GetFinalizers(), func(f string) bool { return f == hold })
		if on {
			finalizers = append(finalizers, hold)
		}
		held.SetFinalizers(finalizers)
		held, err = client.Update(ctx, held, metav1.UpdateOptions{FieldManager: "holder"})
		return err
	})
	return held, err
}

// loseStatus removes the status of what people have made, while the controller works, and while it is away.
func loseStatus(ctx context.Context, s *scene) error {
	// Without a new time in a condition, the status of a controller that remembers its own is the one that it remembers.
	if err := errors.Join(s.wipe(ctx, "conditions"), s.wake(ctx)); err != nil {
		return err
	}
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	s.kill(0)
	if err := errors.Join(s.wipe(ctx, ""), s.launch(0)); err != nil {
		return err
	}
	_, err := s.settle(ctx)
	return err
}

// wipe removes the status of what people have made, but for one field, if that is not all.
func (s *scene) wipe(ctx context.Context, spared string) error {
	var objects []faultproxy.Request
	for _, r := range s.reports() {
		if !slices.ContainsFunc(objects, func(o faultproxy.Request) bool { return gvr(o) == gvr(r) && o.Name == r.Name }) {
			objects = append(objects, r)
		}
	}
	for _, r := range objects {
		err := conflict.Retry(retry.DefaultBackoff, func() error {
			o, err := s.of(r).Get(ctx, r.Name, metav1.GetOptions{})
			if err != nil || !s.contract.theirs(Step{Object: o}) {
				return err
			}
			status, _, _ := unstructured.NestedMap(o.Object, "status")
			delete(o.Object, "status")
			if rest := status[spared]; rest != nil && len(status) > 1 {
				o.Object["status"] = map[string]any{spared: rest}
			}
			if _, err := s.of(r).UpdateStatus(ctx, o, metav1.UpdateOptions{FieldManager: people}); err != nil {
				return err
			}
			s.Strikes.Add(1)
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) { // there may be fields that must not be missing
			return err
		}
	}
	return nil
}

// wake changes all objects a little: a controller need not look at an object of which only the status has changed.
func (s *scene) wake(ctx context.Context) error {
	look := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"look"}}}`, rival)
	return s.each(ctx, func(client dynamic.ResourceInterface, o unstructured.Unstructured) error {
		if s.bystanders[string(o.GetUID())] != nil {
			return nil
		}
		_, err := client.Patch(ctx, o.GetName(), types.MergePatchType, look, metav1.PatchOptions{FieldManager: people})
		return err
	})
}

// each calls f with every object of the contract's end state that is in Kubernetes. An object that has gone meanwhile is no error.
func (s *scene) each(ctx context.Context, f func(dynamic.ResourceInterface, unstructured.Unstructured) error) error {
	for _, r := range s.contract.End {
		if s.contract.Outside.is(r.APIVersion, r.Kind) {
			continue
		}
		client, err := s.client(r.APIVersion, r.Kind)
		if err != nil {
			return err
		}
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if err := f(client, o); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// mostTries is how often a request may be repeated, in the seconds that a namespace needs to
// go, which the server refuses: client-go's usual back-off comes 11 times in 10 s.
const mostTries = 15

// deleteNamespace is the end of everything: the controller must not hold it up, nor fight it.
func deleteNamespace(ctx context.Context, s *scene) error {
	if err := s.untouched(ctx); err != nil {
		return err
	}
	clear(s.bystanders)
	since := time.Now()
	if err := s.core.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{}); err != nil {
		return err
	}
	s.Strikes.Add(1)
	var held error // by whose finalizers
	look := func(ctx context.Context) error {
		held = nil
		ns, err := s.core.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue {
				held = errors.New(c.Message)
				return held
			}
		}
		return errors.New("it is still there")
	}
	err := poll.Until(ctx, 200*time.Millisecond, s.contract.Settle+20*time.Second, look)
	if err != nil && held == nil { // the namespace controller has still to do its part
		err = poll.Until(ctx, 200*time.Millisecond, notTheirs, look)
	}
	switch {
	case err != nil && held != nil && ctx.Err() == nil:
		return &failure{kind: holdsUp, detail: "  " + err.Error()}
	case err != nil:
		return err
	}
	crash.Sleep(ctx, 2*time.Second)
	tried := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return isWrite(r) && r.Started.After(since) }})
	if f := repeated(tried, mostTries); f != nil {
		return f
	}
	return nil
}

// repeated finds what was sent more often than most, although it was refused.
func repeated(requests []faultproxy.Request, most int) *failure {
	tries := map[string][]faultproxy.Request{}
	for _, r := range requests {
		if r.Code < 400 {
			continue
		}
		name := r.Name
		if o := sent(r); name == "" && o != nil {
			name = o.GetName() + o.GetGenerateName()
		}
		key := r.Verb + " " + r.Resource + " " + name
		if tries[key] = append(tries[key], r); len(tries[key]) > most {
			return &failure{kind: hot, detail: fmt.Sprintf("  %s: more than %d times", key, most), requests: tries[key][:3]}
		}
	}
	return nil
}

// token is a part of what our admission policy says.
const token = "judge-refuses-this"

// probe is the resource that shows whether an admission rule of ours is at work.
const probe = "configmaps"

// creations are the rules for whatever the controller has created in the undisturbed run, and for probe.
// people is an expression that is true of what people create.
func (s *scene) creations() (rules []admissionv1.RuleWithOperations, people string, err error) {
	resources := map[schema.GroupVersionResource]bool{{Version: "v1", Resource: probe}: true}
	for _, r := range s.undisturbed.made() {
		resources[gvr(r)] = true
	}
	allowed := []string{probe + "/kube-root-ca.crt"}
	for _, t := range s.contract.Scenario {
		for _, step := range t.Steps {
			if step.Verb != apply {
				continue
			}
			mapping, err := s.mapping(step.Object.GetAPIVersion(), step.Object.GetKind())
			if err != nil {
				return nil, "", err
			}
			allowed = append(allowed, mapping.Resource.Resource+"/"+step.Object.GetName())
		}
	}
	for r := range resources {
		rules = append(rules, admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{r.Group}, APIVersions: []string{r.Version}, Resources: []string{r.Resource}},
		})
	}
	return rules, fmt.Sprintf("request.resource.resource + '/' + (has(object.metadata.name) ? object.metadata.name : '') in ['%s']", strings.Join(allowed, "', '")), nil
}

// atWork waits until the API server, which takes a moment to hear of a rule of ours, answers a creation
// of probe by an error of that kind.
func (s *scene) atWork(ctx context.Context, refused func(error) bool) error {
	return poll.Until(ctx, 50*time.Millisecond, 30*time.Second, func(ctx context.Context) error {
		_, err := s.core.CoreV1().ConfigMaps(s.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "judge-probe-"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if refused(err) {
			return nil
		}
		return errors.Join(err, errors.New("the rule is not at work"))
	})
}

// refuse has the API server refuse whatever the controller has created in the undisturbed
// run, and not what people create.
func (s *scene) refuse(ctx context.Context) (lift func() error, err error) {
	creations, people, err := s.creations()
	if err != nil {
		return nil, err
	}
	var rules []admissionv1.NamedRuleWithOperations
	for _, r := range creations {
		rules = append(rules, admissionv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	reason, here := metav1.StatusReasonForbidden, &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.ns}}
	policies := s.core.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := s.core.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	lift = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		var errs []error
		for _, err := range []error{bindings.Delete(ctx, s.ns, metav1.DeleteOptions{}), policies.Delete(ctx, s.ns, metav1.DeleteOptions{})} {
			if !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	if _, err := policies.Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns, Labels: map[string]string{label: s.run()}},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{NamespaceSelector: here, ResourceRules: rules},
			Validations: []admissionv1.Validation{{
				Expression: people,
				Message:    token + ", as a quota or a policy may do", Reason: &reason,
			}},
		}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := bindings.Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns, Labels: map[string]string{label: s.run()}},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: s.ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: here}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, errors.Join(err, lift())
	}
	if err = s.atWork(ctx, apierrors.IsForbidden); err != nil {
		err = errors.Join(err, lift())
	}
	return lift, err
}

// endWebhook has the API server ask a server that has ended about whatever the controller creates.
func (s *scene) endWebhook(ctx context.Context) (lift func() error, err error) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Close()
	return s.webhook(ctx, server)
}

// hangWebhook has it ask one that takes the question, and does not answer.
func (s *scene) hangWebhook(ctx context.Context) (lift func() error, err error) {
	return s.webhook(ctx, httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or its end would not be noticed
		<-r.Context().Done()
	})))
}

// webhook has the API server ask a server, which gives no answer.
func (s *scene) webhook(ctx context.Context, server *httptest.Server) (lift func() error, err error) {
	rules, people, err := s.creations()
	if err != nil {
		server.Close()
		return nil, err
	}
	configurations := s.core.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	lift = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := configurations.Delete(ctx, s.ns, metav1.DeleteOptions{})
		server.CloseClientConnections()
		server.Close()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if _, err := configurations.Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns, Labels: map[string]string{label: s.run()}},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "judge.k8s-go.openshift.org", Rules: rules,
			ClientConfig:      admissionv1.WebhookClientConfig{URL: new(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.ns}},
			MatchConditions:   []admissionv1.MatchCondition{{Name: "not-people", Expression: "!(" + people + ")"}},
			FailurePolicy:     new(admissionv1.Fail), TimeoutSeconds: new(int32(1)),
			SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, errors.Join(err, lift())
	}
	if err = s.atWork(ctx, apierrors.IsInternalError); err != nil {
		err = errors.Join(err, lift())
	}
	return lift, err
}

// unanswered are the requests that nobody has agreed to.
func (s *scene) unanswered() []faultproxy.Request {
	return s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		return isWrite(r) && (r.Verb == "create" || r.Verb == "patch") && r.Code == http.StatusInternalServerError
	}})
}

// refusals are the requests that our policy has refused.
func (s *scene) refusals() []faultproxy.Request {
	return s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		return isWrite(r) && (r.Verb == "create" || r.Verb == "patch") && r.Code == http.StatusForbidden
	}})
}

// forAWhile blocks what the controller creates until some seconds after something was blocked.
func forAWhile(block func(*scene, context.Context) (lift func() error, err error), blocked func(*scene) []faultproxy.Request) injection {
	return func(s *scene) (crash.During, error) {
		lift, err := block(s, s.ctx)
		length := crash.Between(s.Chance, time.Second, 3*time.Second)
		return func(ctx context.Context) error {
			s.until(ctx, func() bool { return len(blocked(s)) > 0 })
			crash.Sleep(ctx, length)
			s.Strikes.Add(int64(len(blocked(s))))
			return lift()
		}, err
	}
}

// switchVersion has the API server store the objects of the contract's CRDs in another
// version, which has the same schema. It ends their watches.
func switchVersion(s *scene) (crash.During, error) {
	const other = "v0judge"
	wait := crash.Between(s.Chance, 0, time.Second)
	client, err := clientset.NewForConfig(s.config)
	return func(ctx context.Context) error {
		crash.Sleep(ctx, wait)
		for _, name := range s.crds {
			err := conflict.Retry(retry.DefaultBackoff, func() error {
				crds := client.ApiextensionsV1().CustomResourceDefinitions()
				crd, err := crds.Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				versions := &crd.Spec.Versions
				at := slices.IndexFunc(*versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
				next := slices.IndexFunc(*versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == other })
				switch {
				case next < 0:
					added := *(*versions)[at].DeepCopy()
					added.Name = other
					*versions = append(*versions, added)
				case next == at: // in an earlier case
					(*versions)[0].Storage = true
				default:
					(*versions)[next].Storage = true
				}
				(*versions)[at].Storage = false
				_, err = crds.Update(ctx, crd, metav1.UpdateOptions{})
				return err
			})
			if err != nil {
				return fmt.Errorf("switching the version of %s: %w", name, err)
			}
			s.Strikes.Add(1)
		}
		return crash.NewCollector(context.WithoutCancel(ctx), s.cluster)
	}, err
}
