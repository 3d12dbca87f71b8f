package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// A memory is what a process knows about a policy beyond the caches. Nothing
// depends on it but the number of requests: a process that has just been
// restarted asks again, or waits longer. Only the worker that has the policy's
// key uses it.
type memory struct {
	uid        types.UID
	generation int64

	policyWrite string // resourceVersion of the last write to the policy
	podWrite    string // the highest resourceVersion of the writes to pods
	unsure      bool   // a write to a pod got no answer, so it may have happened after podWrite; from then on only a live list is certain

	released bool // the finalizer was removed, so the policy is gone or about to go

	obstacles map[types.UID]obstacle // by pod
	evicted   map[types.UID]bool     // pods that the API server has agreed to evict, though the cache still shows them alive

	agreed     time.Time // when the API server has last agreed to an eviction, or may have
	future     time.Time // a lastEvictionTime that lies in the future ...
	futureSeen time.Time // ... and when this process first saw it
	unused     time.Time // a lastEvictionTime whose eviction the API server has refused

	counts  v1alpha1.Statistics // as last counted ...
	changed time.Time           // ... when that last was a change ...
	written time.Time           // ... and when a status last held them
}

// An obstacle is what the API server has answered to a request about a pod. It
// spares asking again until the time is over, or the pod or policy has changed.
type obstacle struct {
	reason  string // as in the condition; empty: the dry run says that the pod can be evicted
	message string
	version string // the pod's resourceVersion
	until   time.Time
	wait    time.Duration // doubled each time
	strict  bool          // the server has asked for this wait, so a change of the pod does not end it
}

const (
	firstWait = time.Second
	maxWait   = time.Minute
)

// obstacleOf returns what still stands in the way of a request about a pod.
func (m *memory) obstacleOf(p *pod, now time.Time) (obstacle, bool) {
	o, ok := m.obstacles[p.UID]
	return o, ok && now.Before(o.until) && (o.strict || o.version == p.ResourceVersion)
}

// remember notes an answer of the API server, and returns when to ask again.
func (m *memory) remember(p *pod, now time.Time, reason, message string, retryAfter time.Duration) time.Time {
	wait := firstWait
	if last, ok := m.obstacles[p.UID]; ok && last.reason == reason {
		wait = min(2*last.wait, maxWait)
	}
	o := obstacle{reason: reason, message: message, version: p.ResourceVersion, until: now.Add(max(wait, retryAfter)), wait: wait, strict: retryAfter > 0}
	m.obstacles[p.UID] = o
	return o.until
}

// keepOnly forgets pods that the policy no longer has to do with.
func (m *memory) keepOnly(groups ...[]*pod) {
	if len(m.obstacles) == 0 && len(m.evicted) == 0 {
		return
	}
	obstacles, evicted := map[types.UID]obstacle{}, map[types.UID]bool{}
	for _, pods := range groups {
		for _, p := range pods {
			if o, ok := m.obstacles[p.UID]; ok {
				obstacles[p.UID] = o
			}
			if m.evicted[p.UID] && p.counts() {
				evicted[p.UID] = true
			}
		}
	}
	m.obstacles, m.evicted = obstacles, evicted
}

// wrotePod notes the resourceVersion that a write to a pod has led to.
func (m *memory) wrotePod(version string) {
	if m.podWrite == "" || reached(version, m.podWrite) {
		m.podWrite = version
	}
}

// calm is how long the counts have to stay the same before another status with
// new counts is written, and busy is how long that may be put off.
const (
	calm = 500 * time.Millisecond
	busy = 3 * time.Second
)

// settles returns how much longer new counts are kept back. The first change is
// written at once. Further ones that follow closely, as when a Deployment is
// scaled, share one status.
func (m *memory) settles(counts v1alpha1.Statistics, now time.Time) time.Duration {
	left := calm - now.Sub(m.changed)
	if counts != m.counts {
		m.counts, m.changed = counts, now
		if left > 0 {
			left = calm
		}
	}
	left = min(left, busy-now.Sub(m.written))
	if left <= 0 {
		m.written = now
	}
	return left
}

// memories are those of all policies.
type memories struct {
	mu sync.Mutex
	m  map[cache.ObjectName]*memory
}

// of returns the memory of a policy. One that was made again under the same name
// has nothing to do with the policy before.
func (s *memories) of(key cache.ObjectName, policy *v1alpha1.HealthCheckPolicy) *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.m[key]
	if m == nil || m.uid != policy.UID {
		m = &memory{uid: policy.UID, evicted: map[types.UID]bool{}}
		if s.m == nil {
			s.m = map[cache.ObjectName]*memory{}
		}
		s.m[key] = m
	}
	if m.generation != policy.Generation {
		m.generation, m.obstacles = policy.Generation, map[types.UID]obstacle{}
	}
	return m
}

func (s *memories) get(key cache.ObjectName) *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[key]
}

func (s *memories) forget(key cache.ObjectName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
}
