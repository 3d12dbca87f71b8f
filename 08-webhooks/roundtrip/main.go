// roundtrip converts random Icecreams from one version to the other and back, half of them
// from each version, and says how many of them came back as something else. Of those it
// prints the one that differs least.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/08-webhooks/conversion"
)

func main() {
	n := flag.Int("n", 100_000, "how many Icecreams")
	seed := flag.Int64("seed", 1, "another seed makes other Icecreams")
	drop := flag.Bool("drop-annotation", false, "take the converter's annotation away on the way, as a client does that writes only what it knows")
	flag.Parse()
	lost, smallest, err := roundTrips(*n, *seed, *drop)
	if err == nil && *n < 1 {
		err = errors.New("-n must be at least 1")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "roundtrip:", err)
		os.Exit(2)
	}
	fmt.Printf("%d Icecreams there and back, %d changed\n", *n, lost)
	if lost > 0 {
		fmt.Printf("the smallest change: %s\n", strings.Join(smallest, "; "))
		os.Exit(1)
	}
}

// roundTrips returns how many have changed, and what in the one that has changed least.
func roundTrips(n int, seed int64, drop bool) (lost int, smallest []string, err error) {
	fill := filler(seed)
	for i := range n {
		from, to := conversion.V1, conversion.V1alpha1
		var made any = &conversion.Icecream{}
		if i%2 == 1 {
			from, to = to, from
			made = &icecreamv1alpha1.Icecream{}
		}
		fill.Fill(made)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
		if err != nil {
			return 0, nil, err
		}
		before := &unstructured.Unstructured{Object: object}
		before.SetAPIVersion(from)
		before.SetKind("Icecream")
		after := before.DeepCopy()
		if err := conversion.Convert(after, to); err != nil {
			return 0, nil, err
		}
		if drop {
			annotations := after.GetAnnotations()
			delete(annotations, conversion.KeptAnnotation)
			after.SetAnnotations(annotations)
		}
		if err := conversion.Convert(after, from); err != nil {
			return 0, nil, err
		}
		if changed := changes("", before.Object, after.Object); len(changed) > 0 {
			lost++
			if smallest == nil || len(strings.Join(changed, "")) < len(strings.Join(smallest, "")) {
				smallest = changed
			}
		}
	}
	return lost, smallest, nil
}

// filler fills every field, of the metadata and the status, too, with values that the schema accepts.
func filler(seed int64) *randfill.Filler {
	funcs := func(codecs serializer.CodecFactory) []any {
		return append(metafuzzer.Funcs(codecs),
			func(spec *conversion.Spec, c randfill.Continue) {
				c.FillNoCustom(spec)
				if p := spec.Deployment.Portions; p != nil {
					// Small numbers are what people use, and the largest is where a type ends.
					*p = []int64{c.Int63n(1000), c.Int63n(math.MaxInt32 * conversion.PortionsPerPod), math.MaxInt32 * conversion.PortionsPerPod}[c.Intn(3)]
				}
				if len(spec.Toppings) == 0 {
					spec.Toppings = nil // JSON leaves both out
				}
			},
			func(spec *icecreamv1alpha1.IcecreamSpec, c randfill.Continue) {
				c.FillNoCustom(spec)
				if r := spec.Replicas; r != nil {
					*r = []int32{c.Int31n(10), c.Int31(), math.MaxInt32}[c.Intn(3)]
				}
			},
			func(meta *metav1.ObjectMeta, c randfill.Continue) {
				c.FillNoCustom(meta)
				meta.ManagedFields = nil // the converter passes them on
			},
		)
	}
	return fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(runtime.NewScheme()))
}

// changes lists the fields that differ, as path: before -> after.
func changes(path string, before, after any) []string {
	b, isMap := before.(map[string]any)
	a, both := after.(map[string]any)
	if !isMap || !both {
		if reflect.DeepEqual(before, after) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %s -> %s", path, short(before), short(after))}
	}
	keys := maps.Clone(b)
	maps.Copy(keys, a)
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, changes(strings.TrimPrefix(path+"."+key, "."), b[key], a[key])...)
	}
	return all
}

// short is a value as a person can read it, in ASCII: random strings have any characters.
func short(value any) string {
	if value == nil {
		return "nothing"
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	s := strings.Trim(strconv.QuoteToASCII(string(data)), `"`)
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return s
}
