package apis_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// Documents as a person writes them and a controller completes them. Every field
// of our types has a value, none of them its zero value.
const policyDocument = `
apiVersion: policy.k8s-go.openshift.org/v1alpha1
kind: HealthCheckPolicy
metadata: {name: example, namespace: shop}
spec:
  action: annotate
  podLabel: health-check-missing
  requiredProbes: [startup, liveness]
  eviction: {minIntervalSeconds: 60}
  selector:
    matchLabels: {tier: web}
    matchExpressions: [{key: app, operator: In, values: [shop]}]
status:
  observedGeneration: 3
  statistics: {pods: {failed: 5, passed: 42}}
  lastChecked: "2026-11-21T09:13:07Z"
  lastEvictionTime: "2026-11-21T09:13:00Z"
  conditions:
  - {type: Compliant, status: "False", reason: ProbesMissing, message: 5 of 47 pods, observedGeneration: 3, lastTransitionTime: "2026-11-21T09:13:07Z"}
`

const icecreamDocument = `
apiVersion: controller.nicoleh.io/v1alpha1
kind: Icecream
metadata: {name: example, namespace: shop}
spec: {deploymentName: vanilla, replicas: 3}
status:
  observedGeneration: 2
  replicas: 3
  availableReplicas: 2
  selector: controller.nicoleh.io/uid=1
  nodes: [node-0, node-1]
  conditions:
  - {type: Available, status: "False", reason: Progressing, message: 2 of 3, observedGeneration: 2, lastTransitionTime: "2026-11-21T09:13:07Z"}
`

// The random objects of TestRoundTrip are written and read with the same tags,
// so a misspelt one makes no difference there. It does to a document.
func TestDocuments(t *testing.T) {
	for document, object := range map[string]runtime.Object{
		policyDocument:   &policyv1alpha1.HealthCheckPolicy{},
		icecreamDocument: &icecreamv1alpha1.Icecream{},
	} {
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("reading the document: %v\n%s", err, document)
			continue
		}
		checkWritten(t, document, object)
	}
}

// Behind a pointer 0 is a number, and what is absent is not known.
func TestZeroIsWritten(t *testing.T) {
	zero := int32(0)
	checkWritten(t, `{metadata: {}, spec: {deploymentName: "", replicas: 0}, status: {replicas: 0, availableReplicas: 0}}`,
		&icecreamv1alpha1.Icecream{
			Spec:   icecreamv1alpha1.IcecreamSpec{Replicas: &zero},
			Status: icecreamv1alpha1.IcecreamStatus{Replicas: &zero, AvailableReplicas: &zero},
		})
	checkWritten(t, `{metadata: {}, spec: {deploymentName: ""}}`, &icecreamv1alpha1.Icecream{})
	checkWritten(t, `{metadata: {}, spec: {}, status: {statistics: {pods: {failed: 0, passed: 0}}}}`,
		&policyv1alpha1.HealthCheckPolicy{Status: policyv1alpha1.HealthCheckPolicyStatus{Statistics: &policyv1alpha1.Statistics{}}})
	// A struct that is empty is left to the server's defaults.
	checkWritten(t, `{metadata: {}, spec: {}}`, &policyv1alpha1.HealthCheckPolicy{})
}

func checkWritten(t *testing.T, document string, object runtime.Object) {
	t.Helper()
	var want, got any
	if err := yaml.UnmarshalStrict([]byte(document), &want); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%T as JSON (-want +got):\n%s", object, diff)
	}
}
