package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// An entry is an object of a state, without what differs from run to run.
type entry struct {
	Kind, Name string // a generated name ends with *
	content    map[string]any
}

func (e entry) String() string { return e.Kind + " " + e.Name }

func (e entry) apiVersion() string { version, _ := e.content["apiVersion"].(string); return version }

// A state is what a run has come to.
type state []entry

// state reads what the contract counts as the end state. Bystanders are looked at elsewhere.
func (s *scene) state(ctx context.Context) (state, error) {
	var objects []unstructured.Unstructured
	leaveOut := map[string][][]string{}
	for _, r := range s.contract.End {
		list, err := s.list(ctx, r.APIVersion, r.Kind, "")
		if err != nil {
			return nil, fmt.Errorf("listing every %s: %w", r.Kind, err)
		}
		objects = append(objects, list...)
		leaveOut[r.Kind] = r.LeaveOut
	}
	objects = slices.DeleteFunc(objects, func(o unstructured.Unstructured) bool {
		return s.bystanders[string(o.GetUID())] != nil || o.GetAnnotations()[resourcelock.LeaderElectionRecordAnnotationKey] != ""
	})
	return stateOf(objects, leaveOut, s.contract.unnamed()), nil
}

var (
	uidPattern       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	namespacePattern = regexp.MustCompile(prefix + `[a-z0-9]+`)
	namePattern      = regexp.MustCompile(`[a-z0-9][-a-z0-9]*[a-z0-9]`) // also of what the server has named
	timePattern      = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)$`)
)

// fleeting are the fields of metadata that no two runs have in common.
var fleeting = []string{"uid", "resourceVersion", "generation", "generateName", "creationTimestamp", "deletionTimestamp",
	"deletionGracePeriodSeconds", "managedFields", "selfLink", "namespace"}

// stateOf reads objects. Those of the kinds that are unnamed are called after their owners.
func stateOf(objects []unstructured.Unstructured, leaveOut map[string][][]string, unnamed map[string]bool) state {
	names, owners := map[string]string{}, map[types.UID]string{}
	for _, o := range objects {
		owners[o.GetUID()] = o.GetName()
	}
	// The controller's reference, or else, as hand-written clients often leave controller: true out, the first one.
	ownerOf := func(o *unstructured.Unstructured) *metav1.OwnerReference {
		if by := metav1.GetControllerOf(o); by != nil {
			return by
		}
		refs := o.GetOwnerReferences()
		if at := slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return owners[r.UID] != "" }); at >= 0 {
			return &refs[at]
		}
		return nil
	}
	displayName := func(o unstructured.Unstructured) string {
		if o.GetGenerateName() != "" {
			return o.GetGenerateName() + "*"
		}
		if by := ownerOf(&o); by != nil && unnamed[o.GetKind()] && owners[by.UID] != "" {
			return owners[by.UID] + "-*"
		}
		return o.GetName()
	}
	for _, o := range objects {
		name := displayName(o)
		names[string(o.GetUID())] = fmt.Sprintf("<uid of %s %s>", o.GetKind(), name)
		if by := ownerOf(&o); name != o.GetName() && (by == nil || by.Name != o.GetName()) { // others name it, in their status for example
			names[o.GetName()] = name
		}
	}
	st := state{} // never nil: also nothing is a state
	for _, o := range objects {
		content := o.DeepCopy().Object
		for _, path := range leaveOut[o.GetKind()] {
			without(content, path)
		}
		metadata, _ := content["metadata"].(map[string]any)
		for _, field := range fleeting {
			delete(metadata, field)
		}
		ofOthers(content)
		if o.GetAPIVersion() == "v1" && o.GetKind() == "Service" {
			withoutAllocations(content)
		}
		metadata["name"] = displayName(o)
		if o.GetDeletionTimestamp() != nil {
			metadata["deletionTimestamp"] = "<time>"
		}
		if o.GetNamespace() != "" { // each case has one of its own, which stands in addresses, for example
			names[o.GetNamespace()] = "<namespace>"
		}
		content, _ = steady(content, o.GetGeneration(), names).(map[string]any)
		st = append(st, entry{o.GetKind(), displayName(o), content})
	}
	slices.SortFunc(st, func(a, b entry) int {
		return cmp.Or(strings.Compare(a.String(), b.String()), strings.Compare(text(a.content), text(b.content)))
	})
	return st
}

// withoutAllocations takes away the addresses and ports that the API server has chosen for a Service.
func withoutAllocations(service map[string]any) {
	spec, _ := service["spec"].(map[string]any)
	if spec["clusterIP"] != corev1.ClusterIPNone {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	delete(spec, "healthCheckNodePort")
	without(spec, []string{"ports", "*", "nodePort"})
}

// ofOthers takes away what the rivals of some cases leave.
func ofOthers(content map[string]any) {
	for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
		metadata, _, _ := unstructured.NestedFieldNoCopy(content, path...)
		fields, _ := metadata.(map[string]any)
		annotations, _ := fields["annotations"].(map[string]any)
		delete(annotations, rival)
		if annotations != nil && len(annotations) == 0 {
			delete(fields, "annotations")
		}
	}
	status, _ := content["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	own := slices.DeleteFunc(slices.Clone(conditions), func(c any) bool { return typeOf(c) == rival })
	switch {
	case len(own) == len(conditions):
	case len(own) == 0:
		delete(status, "conditions")
	default:
		status["conditions"] = own
	}
}

// typeOf is what tells an element from others in a list like that of conditions.
func typeOf(element any) string {
	fields, _ := element.(map[string]any)
	name, _ := fields["type"].(string)
	return name
}

// typed says whether each element of a list has a type of its own, and so none has a place.
func typed(list []any) bool {
	seen := map[string]bool{"": true}
	for _, element := range list {
		if name := typeOf(element); seen[name] {
			return false
		} else {
			seen[name] = true
		}
	}
	return true
}

func text(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(data)
}

// without removes the field at a path.
func without(value any, path []string) {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			if path[0] != "*" && path[0] != key {
				continue
			}
			if len(path) == 1 {
				delete(v, key)
			} else {
				without(v[key], path[1:])
			}
		}
	case []any:
		if path[0] == "*" && len(path) > 1 {
			for _, element := range v {
				without(element, path[1:])
			}
		}
	}
}

// steady replaces what differs from run to run: UIDs, namespaces and generated names by names, times,
// and generations by whether they are the current one.
func steady(value any, generation int64, names map[string]string) any {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if n, ok := field.(int64); ok && key == "observedGeneration" {
				v[key] = map[bool]string{true: "<current>", false: "<behind>"}[n == generation]
			} else {
				v[key] = steady(field, generation, names)
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i], generation, names)
		}
		if typed(v) {
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(typeOf(a), typeOf(b)) })
		}
	case string:
		if timePattern.MatchString(v) {
			return "<time>"
		}
		known := func(name string) string { return cmp.Or(names[name], name) }
		v = namePattern.ReplaceAllStringFunc(namespacePattern.ReplaceAllStringFunc(v, known), known)
		return uidPattern.ReplaceAllStringFunc(v, func(uid string) string { return cmp.Or(names[uid], "<uid of something gone>") })
	}
	return value
}

// A difference is what a run has come to otherwise than the undisturbed one.
type difference struct {
	extra, missing []entry
	changed        []change
}

type change struct {
	entry
	fields []string // "spec.replicas is 2 instead of 3"
}

func (d difference) empty() bool { return len(d.extra)+len(d.missing)+len(d.changed) == 0 }

func compare(want, got state) (d difference) {
	for _, name := range names(want, got) {
		wanted, found := slices.Clone(want.of(name)), slices.Clone(got.of(name))
		// Of several with the same generated name, those that are equal belong together.
		wanted = slices.DeleteFunc(wanted, func(w entry) bool {
			at := slices.IndexFunc(found, func(f entry) bool { return len(fields("", w.content, f.content)) == 0 }) // null is as good as missing
			if at >= 0 {
				found = slices.Delete(found, at, at+1)
			}
			return at >= 0
		})
		for len(wanted) > 0 && len(found) > 0 {
			d.changed = append(d.changed, change{wanted[0], fields("", wanted[0].content, found[0].content)})
			wanted, found = wanted[1:], found[1:]
		}
		d.missing, d.extra = append(d.missing, wanted...), append(d.extra, found...)
	}
	return d
}

func names(states ...state) []string {
	all := map[string]bool{}
	for _, s := range states {
		for _, e := range s {
			all[e.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func (s state) of(name string) (found state) {
	for _, e := range s {
		if e.String() == name {
			found = append(found, e)
		}
	}
	return found
}

// fields says where two values differ.
func fields(path string, want, got any) (lines []string) {
	w, isMap := want.(map[string]any)
	g, alsoMap := got.(map[string]any)
	if isMap && alsoMap {
		keys := maps.Clone(w)
		maps.Copy(keys, g)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			lines = append(lines, fields(join(path, key), w[key], g[key])...)
		}
		return lines
	}
	if reflect.DeepEqual(want, got) {
		return nil
	}
	if w, g := elements(want), elements(got); w != nil && g != nil {
		return fields(path, w, g)
	}
	return differ(path, want, got)
}

// differ says that two values differ.
func differ(path string, want, got any) []string {
	if reflect.DeepEqual(want, got) {
		return nil
	}
	short := func(value any) string {
		if value == nil {
			return "missing"
		}
		s := text(value)
		return s[:min(len(s), 200)]
	}
	return []string{fmt.Sprintf("%s is %s instead of %s", path, short(got), short(want))}
}

// elements are those of a list by what tells them apart, which is their type or their place; nil
// if the value is no list of objects.
func elements(value any) map[string]any {
	list, _ := value.([]any)
	if len(list) == 0 || slices.ContainsFunc(list, func(one any) bool { _, isMap := one.(map[string]any); return !isMap }) {
		return nil
	}
	all := map[string]any{}
	for i, one := range list {
		key := strconv.Itoa(i)
		if typed(list) {
			key = typeOf(one)
		}
		all["["+key+"]"] = one
	}
	return all
}

// holds reports whether an object has at least what is wanted. Each element of a wanted
// list has to be like some element of the object's list; null is for a field that must not be there.
func holds(object, wanted any) bool { return len(lacks("", wanted, object)) == 0 }

// lacks says what an object does not have of what is wanted.
func lacks(path string, wanted, object any) (lines []string) {
	switch w := wanted.(type) {
	case map[string]any:
		o, ok := object.(map[string]any)
		if !ok && object != nil {
			break
		}
		for _, key := range slices.Sorted(maps.Keys(w)) {
			if w[key] != nil || o[key] != nil {
				lines = append(lines, lacks(join(path, key), w[key], o[key])...)
			}
		}
		return lines
	case []any:
		o, _ := object.([]any)
		if len(w) > 0 && !slices.ContainsFunc(w, func(one any) bool {
			return !slices.ContainsFunc(o, func(element any) bool { return holds(element, one) })
		}) {
			return nil
		}
	}
	return differ(path, wanted, object)
}
