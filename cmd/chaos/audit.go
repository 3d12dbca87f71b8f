package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// auditPolicy makes the API server write down every state of pods and policies,
// and every eviction. It says what was accepted, and when, whatever the network
// has done to the answer.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources:
  - group: ""
    resources: [pods, pods/status, pods/eviction]
  - group: policy.k8s-go.openshift.org
    resources: [healthcheckpolicies, healthcheckpolicies/status]
- level: None
`

// A record is one line of the audit log.
type record struct {
	Stage      string
	Verb       string
	UserAgent  string
	RequestURI string
	ObjectRef  struct{ Resource, Subresource, Namespace, Name string }
	// The times are those of the API server's clock, which nobody sets.
	RequestReceivedTimestamp, StageTimestamp metav1.MicroTime
	ResponseStatus                           struct{ Code int }
	ResponseObject                           json.RawMessage
}

func (r record) accepted() time.Time { return r.StageTimestamp.Time }

// An audit keeps the records of the namespaces that somebody still needs.
type audit struct {
	mu      sync.Mutex
	records map[string][]record
	err     error
}

// followAudit reads the log until ctx ends.
func followAudit(ctx context.Context, path string) *audit {
	a := &audit{records: map[string][]record{}}
	go func() {
		if err := a.follow(ctx, path); err != nil && ctx.Err() == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.err = fmt.Errorf("reading the audit log: %w", err)
		}
	}()
	return a
}

func (a *audit) follow(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	var part []byte
	for {
		line, err := lines.ReadBytes('\n')
		part = append(part, line...)
		if errors.Is(err, io.EOF) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if err != nil {
			return err
		}
		var r record
		if err := json.Unmarshal(part, &r); err != nil {
			// A killed API server may have left half a line, and the next one goes on behind it.
			if at := bytes.LastIndex(part, []byte(`{"kind":"Event"`)); at <= 0 || json.Unmarshal(part[at:], &r) != nil {
				return fmt.Errorf("%w: %s", err, part[:min(len(part), 200)])
			}
		}
		part = part[:0]
		if r.Stage == "ResponseComplete" && r.ResponseStatus.Code < 300 && !strings.Contains(r.RequestURI, "dryRun=") {
			a.mu.Lock()
			a.records[r.ObjectRef.Namespace] = append(a.records[r.ObjectRef.Namespace], r)
			a.mu.Unlock()
		}
	}
}

// of returns what the log says about a namespace, in the order of acceptance.
func (a *audit) of(namespace string) ([]record, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	records := slices.Clone(a.records[namespace])
	slices.SortStableFunc(records, func(a, b record) int { return a.accepted().Compare(b.accepted()) })
	return records, a.err
}

func (a *audit) forget(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.records, namespace)
}

// A podState is a pod as one write has left it.
type podState struct {
	pod     corev1.Pod
	created time.Time
}

// A grant is a write of a status with a new lastEvictionTime: from then on one
// eviction may be sent.
type grant struct {
	record
	policy v1alpha1.HealthCheckPolicy
	used   bool
}

// judge looks for wrong evictions in a namespace with one policy that kills. An
// eviction is wrong if, when the server accepted the status write before it, the
// policy did not kill, or did not select or fail that pod. Each such write allows
// one, and two are never closer than minIntervalSeconds: by the server's clock, or
// by the controller's own one, if early of them may be closer because that clock
// was set forward.
func judge(records []record, early int) (evictions int, errs []error) {
	states := map[types.UID][]podState{}
	incarnations := map[string][]podState{} // by name
	var grants []*grant
	lastTime := map[types.UID]time.Time{}
	var evicted []record

	for _, r := range records {
		switch {
		case r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == "eviction":
			evicted = append(evicted, r)
		case r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource != "binding":
			s := podState{created: r.accepted()}
			if json.Unmarshal(r.ResponseObject, &s.pod) != nil || s.pod.UID == "" || s.pod.ResourceVersion == "" {
				continue // a Status, or what a delete at once has left over
			}
			if len(states[s.pod.UID]) == 0 {
				incarnations[s.pod.Name] = append(incarnations[s.pod.Name], s)
			}
			states[s.pod.UID] = append(states[s.pod.UID], s)
		case r.ObjectRef.Resource == v1alpha1.HealthCheckPolicyResource.Resource:
			g := &grant{record: r}
			if err := json.Unmarshal(r.ResponseObject, &g.policy); err != nil || g.policy.UID == "" {
				continue
			}
			if t := g.policy.Status.LastEvictionTime; t != nil && !t.Time.Equal(lastTime[g.policy.UID]) {
				lastTime[g.policy.UID] = t.Time
				grants = append(grants, g)
			}
		}
	}

	var last *record
	var lastPolicy types.UID
	for _, e := range evicted {
		name := e.ObjectRef.Name
		complain := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("wrong eviction of pod %s at %s: "+format,
				append([]any{name, e.accepted().Format("15:04:05.000")}, args...)...))
		}
		var g *grant
		for _, candidate := range grants {
			if !candidate.accepted().After(e.RequestReceivedTimestamp.Time) {
				g = candidate
			}
		}
		if g == nil {
			complain("no lastEvictionTime was written before it")
			continue
		}
		if g.used {
			complain("the status write of %s has already allowed another one", g.accepted().Format("15:04:05.000"))
		}
		g.used = true
		if err := allowed(g, name, incarnations[name], states, e); err != nil {
			complain("%v", err)
		}
		if last != nil && lastPolicy == g.policy.UID {
			least := time.Duration(g.policy.Spec.Eviction.MinIntervalSeconds) * time.Second
			if gap := e.accepted().Sub(last.accepted()); gap < least {
				if early--; early < 0 {
					complain("only %s after that of pod %s, and the policy wants %s between two", gap, last.ObjectRef.Name, least)
				}
			}
		}
		last, lastPolicy = &e, g.policy.UID
	}
	return len(evicted), errs
}

// allowed checks the policy and the pod as they were when the grant was accepted.
func allowed(g *grant, name string, incarnations []podState, states map[types.UID][]podState, e record) error {
	p := &g.policy
	if p.Spec.Action != v1alpha1.ActionKill || p.DeletionTimestamp != nil {
		return fmt.Errorf("policy %s did not kill: its action was %s", p.Name, p.Spec.Action)
	}
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector)
	if err != nil {
		return fmt.Errorf("the selector of policy %s was not valid: %w", p.Name, err)
	}
	// What was evicted is what had the name when the eviction came.
	var uid types.UID
	for _, s := range incarnations {
		if s.created.Before(e.accepted()) {
			uid = s.pod.UID
		}
	}
	var pod *corev1.Pod
	for i, s := range states[uid] {
		order, err := resourceversion.CompareResourceVersion(s.pod.ResourceVersion, p.ResourceVersion)
		if err != nil {
			return fmt.Errorf("comparing versions: %w", err)
		}
		if order <= 0 { // all resources of this cluster are in one etcd, so their versions are in one order
			pod = &states[uid][i].pod
		}
	}
	switch {
	case pod == nil:
		return errors.New("this pod was not there yet when the status was written")
	case !selector.Matches(labels.Set(pod.Labels)):
		return fmt.Errorf("policy %s did not select it: it had the labels %s", p.Name, labels.Set(pod.Labels))
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return errors.New("it was on its way out already")
	case metav1.GetControllerOf(pod) == nil:
		return errors.New("it has no controller")
	case !lacks(pod, p.Spec.RequiredProbes):
		return fmt.Errorf("it declares every probe that policy %s requires", p.Name)
	}
	return nil
}

func lacks(pod *corev1.Pod, required []v1alpha1.Probe) bool {
	for _, c := range pod.Spec.Containers {
		for _, probe := range required {
			if (map[v1alpha1.Probe]*corev1.Probe{v1alpha1.ProbeLiveness: c.LivenessProbe, v1alpha1.ProbeReadiness: c.ReadinessProbe, v1alpha1.ProbeStartup: c.StartupProbe})[probe] == nil {
				return true
			}
		}
	}
	return false
}

// jumps counts the statuses that were written by a clock that is far off.
func jumps(records []record) int {
	n := 0
	for _, r := range records {
		var policy v1alpha1.HealthCheckPolicy
		if r.ObjectRef.Subresource != "status" || r.ObjectRef.Resource != v1alpha1.HealthCheckPolicyResource.Resource ||
			json.Unmarshal(r.ResponseObject, &policy) != nil || policy.Status.LastChecked == nil {
			continue
		}
		if policy.Status.LastChecked.Sub(r.accepted()).Abs() > 10*time.Minute {
			n++
		}
	}
	return n
}
