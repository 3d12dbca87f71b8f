// Package conversion turns Icecreams of one version into those of another. v1 is the hub: it
// can hold whatever any version can, and it is what is stored. Every other version is a
// spoke, which only knows the way to the hub and back, so n versions need 2(n-1) functions
// and not n(n-1).
package conversion

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// The versions of an Icecream, as they stand in apiVersion.
const (
	V1       = "controller.nicoleh.io/v1"
	V1alpha1 = "controller.nicoleh.io/v1alpha1"
)

// KeptAnnotation is where an Icecream of v1alpha1 keeps what only v1 has a field for. No other
// part of an object can hold it: of the metadata a converter may change labels and annotations, and a label is too short.
const KeptAnnotation = "controller.nicoleh.io/v1"

// PortionsPerPod is what one pod serves: v1 counts portions where v1alpha1 counted pods.
const PortionsPerPod = 100

// Icecream is version v1.
type Icecream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec                            `json:"spec"`
	Status icecreamv1alpha1.IcecreamStatus `json:"status,omitzero"` // the same in both versions
}

// Spec regroups what v1alpha1 had side by side, and has one field more.
type Spec struct {
	Deployment Deployment `json:"deployment"`
	// Toppings have no place in v1alpha1.
	Toppings []string `json:"toppings,omitempty"`
}

// Deployment is what there was as deploymentName and replicas.
type Deployment struct {
	Name string `json:"name"`
	// Portions is another unit: 201 portions are 3 pods, and 3 pods are 300 portions.
	Portions *int64 `json:"portions,omitempty"`
}

// kept is the content of KeptAnnotation.
type kept struct {
	Portions *int64   `json:"portions,omitempty"`
	Toppings []string `json:"toppings,omitempty"`
}

// valid says whether v1's schema takes it, which nobody asks after a conversion.
func (k kept) valid() bool {
	different := len(slices.Compact(slices.Sorted(slices.Values(k.Toppings))))
	tooLong := func(topping string) bool { return utf8.RuneCountInString(topping) > 63 }
	return different == len(k.Toppings) && different <= 10 && !slices.ContainsFunc(k.Toppings, tooLong) && (k.Portions == nil || *k.Portions >= 0 && *k.Portions <= math.MaxInt32*PortionsPerPod)
}

// A spoke changes an object in place, all but its apiVersion.
type spoke struct {
	toHub, fromHub func(object *unstructured.Unstructured) error
}

var spokes = map[string]spoke{
	V1:       {func(*unstructured.Unstructured) error { return nil }, func(*unstructured.Unstructured) error { return nil }},
	V1alpha1: {v1alpha1ToHub, v1alpha1FromHub},
}

// Convert changes an Icecream in place into one of that apiVersion. It returns an error for a
// version or a spec that it does not know. Whatever the schema accepts it must convert: one
// object that it refuses makes every list of all the others fail.
func Convert(object *unstructured.Unstructured, apiVersion string) error {
	from, ok := spokes[object.GetAPIVersion()]
	to, known := spokes[apiVersion]
	if !ok || !known || object.GetKind() != "Icecream" {
		return fmt.Errorf("nothing converts %s %s to %s", object.GetAPIVersion(), object.GetKind(), apiVersion)
	}
	if object.GetAPIVersion() == apiVersion {
		return nil
	}
	if err := from.toHub(object); err != nil {
		return fmt.Errorf("from %s: %w", object.GetAPIVersion(), err)
	}
	if err := to.fromHub(object); err != nil {
		return fmt.Errorf("to %s: %w", apiVersion, err)
	}
	object.SetAPIVersion(apiVersion)
	return nil
}

func v1alpha1FromHub(object *unstructured.Unstructured) error {
	annotate(object, "") // one that somebody has copied from an object of v1alpha1 would come back as spec
	return replaceSpec(object, func(hub Spec) icecreamv1alpha1.IcecreamSpec {
		spec := icecreamv1alpha1.IcecreamSpec{DeploymentName: hub.Deployment.Name}
		keep := kept{Toppings: hub.Toppings}
		if portions := hub.Deployment.Portions; portions != nil {
			spec.Replicas = new(pods(*portions))
			if *portions != int64(*spec.Replicas)*PortionsPerPod {
				keep.Portions = portions // the number of pods does not tell it
			}
		}
		if keep.Portions != nil || len(keep.Toppings) > 0 {
			data, _ := json.Marshal(keep) // numbers and strings are always JSON
			annotate(object, string(data))
			if validation.ValidateAnnotationsSize(object.GetAnnotations()) != nil {
				annotate(object, "") // the API server would refuse the object, and with it every list
			}
		}
		return spec
	})
}

func v1alpha1ToHub(object *unstructured.Unstructured) error {
	var keep kept
	if json.Unmarshal([]byte(object.GetAnnotations()[KeptAnnotation]), &keep) != nil || !keep.valid() {
		keep = kept{} // none, or one that somebody has spoilt: that must not stop every list
	}
	annotate(object, "")
	return replaceSpec(object, func(spec icecreamv1alpha1.IcecreamSpec) Spec {
		hub := Spec{Deployment: Deployment{Name: spec.DeploymentName}, Toppings: keep.Toppings}
		if spec.Replicas != nil {
			hub.Deployment.Portions = new(int64(*spec.Replicas) * PortionsPerPod)
			// Unless somebody who knows only v1alpha1 has meanwhile asked for other pods.
			if keep.Portions != nil && pods(*keep.Portions) == *spec.Replicas {
				hub.Deployment.Portions = keep.Portions
			}
		}
		return hub
	})
}

// pods is how many it takes for so many portions.
func pods(portions int64) int32 {
	n := portions / PortionsPerPod
	if portions%PortionsPerPod > 0 {
		n++
	}
	return int32(max(0, min(n, math.MaxInt32)))
}

// replaceSpec converts the spec of an object, if it has one.
func replaceSpec[From, To any](object *unstructured.Unstructured, convert func(From) To) error {
	old, ok := object.Object["spec"].(map[string]any)
	if !ok {
		return nil
	}
	var from From
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(old, &from); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	to := convert(from)
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&to)
	object.Object["spec"] = spec
	return err
}

// annotate sets KeptAnnotation, or removes it.
func annotate(object *unstructured.Unstructured, value string) {
	annotations := object.GetAnnotations()
	delete(annotations, KeptAnnotation)
	if value != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[KeptAnnotation] = value
	}
	if len(annotations) == 0 {
		annotations = nil // an empty map would be another object
	}
	object.SetAnnotations(annotations)
}
