// policy-versions converts HealthCheckPolicies between v1alpha1, which step 05 defines, and a v1
// that groups its fields anew. It reads objects from a file, as JSON, and prints each of them in
// the version that -to names.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

const group = "policy.k8s-go.openshift.org/"

// A Spec is that of v1.
type Spec struct {
	Selector metav1.LabelSelector        `json:"selector,omitzero"`
	Eviction policyv1alpha1.EvictionSpec `json:"eviction,omitzero"`
	// Probes were a list, requiredProbes, in the order in which somebody had written them.
	Probes Probes `json:"probes"`
	// Mark were action and podLabel. A policy without a mark kills, and its podLabel, which v1alpha1
	// allows and ignores, has no place here.
	Mark *Mark `json:"mark,omitempty"`
	// GracePeriodSeconds are new. 0 is not the same as nothing.
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
}

// Probes are those that every container has to declare.
type Probes struct {
	Liveness  bool `json:"liveness,omitempty"`
	Readiness bool `json:"readiness,omitempty"`
	Startup   bool `json:"startup,omitempty"`
}

// A Mark is what a pod gets that does not pass.
type Mark struct {
	As  policyv1alpha1.Action `json:"as"` // label or annotate
	Key string                `json:"key"`
}

// keptAnnotation is where an object keeps what its version has no field for.
const keptAnnotation = group + "kept"

// toV1 returns the spec in v1. The annotations are those of the object, and never nil; it may
// change them.
func toV1(old policyv1alpha1.HealthCheckPolicySpec, annotations map[string]string) (Spec, error) {
	var there struct {
		GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	} // what toV1alpha1 has kept
	unpack(annotations, &there)
	hub := Spec{Selector: old.Selector, Eviction: old.Eviction, GracePeriodSeconds: there.GracePeriodSeconds}
	hub.Probes = Probes{
		Liveness:  slices.Contains(old.RequiredProbes, policyv1alpha1.ProbeLiveness),
		Readiness: slices.Contains(old.RequiredProbes, policyv1alpha1.ProbeReadiness),
		Startup:   slices.Contains(old.RequiredProbes, policyv1alpha1.ProbeStartup),
	}
	var keep struct {
		RequiredProbes []policyv1alpha1.Probe `json:"requiredProbes,omitempty"`
		PodLabel       string                 `json:"podLabel,omitempty"`
	}
	if !slices.Equal(old.RequiredProbes, hub.Probes.list()) {
		keep.RequiredProbes = old.RequiredProbes
	}
	if old.Action == policyv1alpha1.ActionKill {
		keep.PodLabel = old.PodLabel
	} else {
		hub.Mark = &Mark{As: old.Action, Key: old.PodLabel}
	}
	return hub, pack(annotations, keep)
}

// toV1alpha1 returns the spec in v1alpha1, and may change the annotations, too.
func toV1alpha1(hub Spec, annotations map[string]string) (policyv1alpha1.HealthCheckPolicySpec, error) {
	var there struct {
		RequiredProbes []policyv1alpha1.Probe `json:"requiredProbes,omitempty"`
		PodLabel       string                 `json:"podLabel,omitempty"`
	} // what toV1 has kept
	unpack(annotations, &there)
	old := policyv1alpha1.HealthCheckPolicySpec{Selector: hub.Selector, Eviction: hub.Eviction, RequiredProbes: hub.Probes.list()}
	if slices.Equal(slices.Sorted(slices.Values(there.RequiredProbes)), slices.Sorted(slices.Values(old.RequiredProbes))) {
		old.RequiredProbes = there.RequiredProbes // still the same ones, so in the old order
	}
	if hub.Mark == nil {
		old.Action, old.PodLabel = policyv1alpha1.ActionKill, there.PodLabel
	} else {
		old.Action, old.PodLabel = hub.Mark.As, hub.Mark.Key
	}
	var keep struct {
		GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	}
	keep.GracePeriodSeconds = hub.GracePeriodSeconds
	return old, pack(annotations, keep)
}

// unpack takes what is kept out of the annotations, and reads it into a struct, to which into
// points. What somebody has spoilt is dropped.
func unpack(annotations map[string]string, into any) {
	if data := annotations[keptAnnotation]; json.Valid([]byte(data)) {
		_ = json.Unmarshal([]byte(data), into)
	}
	delete(annotations, keptAnnotation)
}

// pack keeps a struct in the annotations, unless none of its fields has a value.
func pack(annotations map[string]string, kept any) error {
	data, err := json.Marshal(kept)
	if err == nil && string(data) != "{}" {
		annotations[keptAnnotation] = string(data)
	}
	return err
}

// list has the probes in the order of the fields.
func (p Probes) list() []policyv1alpha1.Probe {
	var all []policyv1alpha1.Probe
	for _, probe := range []struct {
		name   policyv1alpha1.Probe
		wanted bool
	}{{policyv1alpha1.ProbeLiveness, p.Liveness}, {policyv1alpha1.ProbeReadiness, p.Readiness}, {policyv1alpha1.ProbeStartup, p.Startup}} {
		if probe.wanted {
			all = append(all, probe.name)
		}
	}
	return all
}

func main() {
	to := flag.String("to", "", "the version: v1 or v1alpha1")
	flag.Parse()
	if err := run(flag.Arg(0), os.Stdout, *to); err != nil {
		fmt.Fprintln(os.Stderr, "policy-versions:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer, to string) error {
	if to != "v1" && to != "v1alpha1" || path == "" {
		return errors.New("want -to v1 or -to v1alpha1, and a file")
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	decoder, printed := json.NewDecoder(file), json.NewEncoder(out)
	for {
		var o unstructured.Unstructured
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an object: %w", err)
		}
		if err := convert(&o, group+to); err != nil {
			return fmt.Errorf("%s: %w", o.GetName(), err)
		}
		if err := printed.Encode(o.Object); err != nil {
			return err
		}
	}
}

// convert changes the spec and the annotations of an object; all else is the same in both versions.
func convert(o *unstructured.Unstructured, to string) (err error) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	var spec any
	switch from := o.GetAPIVersion(); {
	case from == to:
		return nil
	case from == group+"v1alpha1":
		spec, err = respec(o, annotations, toV1)
	case from == group+"v1":
		spec, err = respec(o, annotations, toV1alpha1)
	default:
		err = fmt.Errorf("apiVersion %s is unknown", from)
	}
	if err != nil {
		return err
	}
	if len(annotations) == 0 {
		annotations = nil // an empty map would be another object
	}
	o.Object["spec"] = spec
	o.SetAnnotations(annotations)
	o.SetAPIVersion(to)
	return nil
}

// respec converts a spec, as typed structs, from the fields of an object to those of another.
func respec[From, To any](o *unstructured.Unstructured, annotations map[string]string, f func(From, map[string]string) (To, error)) (map[string]any, error) {
	fields, _ := o.Object["spec"].(map[string]any)
	var from From
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &from); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	to, err := f(from, annotations)
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&to)
}
