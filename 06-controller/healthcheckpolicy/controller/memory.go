package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// A memory is what a process knows about a policy beyond the caches. It is never
// needed to do the right thing after a restart: the next process asks the API server
// again, or waits longer. Only the worker that has the policy's key uses it. Its times
// are those of the process's own clock, which never jumps.
type memory struct {
	uid        types.UID
	generation int64
	earlier    []*memory // of policies of this name that have gone before their marks

	obstacles map[requestKey]obstacle
	finalizer obstacle           // what keeps the policy from getting its finalizer, or from losing it
	evicted   map[types.UID]bool // pods that the API server has agreed to evict, though the cache still shows them alive
	brake     brake
	pace      pace
	events    flowcontrol.PassiveRateLimiter
	unsaid    map[string]int // Events that the limit has left out, by reason
}

func newMemory(uid types.UID) *memory {
	return &memory{
		uid: uid, obstacles: map[requestKey]obstacle{}, evicted: map[types.UID]bool{}, brake: brake{asked: map[types.UID]bool{}},
		events: flowcontrol.NewTokenBucketPassiveRateLimiter(1./300, eventBurst), unsaid: map[string]int{},
	}
}

// A request is one about a pod: to write its mark, or to evict it.
type request struct {
	key   requestKey
	pod   *pod
	state string // of all that the answer depends on
}

// A requestKey tells requests apart, so that a mark that cannot be taken back holds up no eviction.
type requestKey struct {
	pod      types.UID
	eviction bool
}

// marking is the request to write a pod's mark.
func marking(p *pod) request { return request{requestKey{p.UID, false}, p, p.ResourceVersion} }

// An obstacle is a refusal of a request. The request is not repeated until the wait
// is over, or what its answer depends on has changed.
type obstacle struct {
	reason  string // as in the condition
	message string
	state   string        // the request's; empty if not even a change ends the wait
	wait    time.Duration // doubled each time
	until   time.Time
}

const (
	firstWait = time.Second
	maxWait   = time.Minute
)

// obstacleOf returns the last refusal of a request, unless what its answer depends on has changed.
func (m *memory) obstacleOf(r request) (obstacle, bool) {
	o, ok := m.obstacles[r.key]
	return o, ok && (o.state == "" || o.state == r.state)
}

// remember notes a refusal. If the server has asked for a wait, it is kept whatever changes.
func (m *memory) remember(r request, reason, message string, now time.Time, retryAfter time.Duration) obstacle {
	o := m.obstacles[r.key].again(reason, message, now, retryAfter)
	if retryAfter == 0 {
		o.state = r.state
	}
	m.obstacles[r.key] = o
	return o
}

// again returns the obstacle after a further refusal.
func (o obstacle) again(reason, message string, now time.Time, retryAfter time.Duration) obstacle {
	wait := firstWait
	if o.reason == reason {
		wait = min(2*o.wait, maxWait)
		if loop.SameWords(o.message, message) {
			message = o.message // without the time, or the number of the request, that this answer has
		}
	}
	return obstacle{reason: reason, message: message, wait: wait, until: now.Add(max(wait, retryAfter))}
}

// keepOnly forgets pods that the policy no longer has to do with.
func (m *memory) keepOnly(groups ...[]*pod) {
	if len(m.obstacles) == 0 && len(m.evicted) == 0 {
		return
	}
	counts := map[types.UID]bool{}
	for _, p := range slices.Concat(groups...) {
		counts[p.UID] = p.counts()
	}
	maps.DeleteFunc(m.obstacles, func(k requestKey, _ obstacle) bool { _, known := counts[k.pod]; return !known })
	maps.DeleteFunc(m.evicted, func(pod types.UID, _ bool) bool { return !counts[pod] })
}

// A pace puts off statuses of which a better one is likely to follow soon.
type pace struct {
	counts  v1alpha1.Statistics // as last counted ...
	changed time.Time           // ... when that last was a change ...
	written time.Time           // ... and when a status last held them
}

// calm is how long the counts have to stay the same before another status with
// new counts is written, and busy is how long that may be put off.
const (
	calm = time.Second
	busy = 10 * time.Second
)

// settles returns how much longer new counts are kept back. The first change is
// written at once. Further ones that follow closely, as when a Deployment is
// scaled, share one status.
func (r *pace) settles(counts v1alpha1.Statistics, now time.Time) time.Duration {
	left := calm - now.Sub(r.changed)
	if counts != r.counts {
		r.counts, r.changed = counts, now
		if left > 0 {
			left = calm
		}
	}
	left = min(left, busy-now.Sub(r.written))
	if left <= 0 {
		r.written = now
	}
	return left
}

// memoryOf returns the memory of a policy. One that was made again under the same
// name has nothing to do with the policy before, but that its marks may still be there.
func (c *Controller) memoryOf(key cache.ObjectName, policy *v1alpha1.HealthCheckPolicy) *memory {
	known, _ := c.memories.Load(key)
	m, ok := known.(*memory)
	if !ok || m.uid != policy.UID {
		now := newMemory(policy.UID)
		if ok {
			now.earlier = append(m.earlier, m)
		}
		m = now
		c.memories.Store(key, m)
	}
	if state := m.finalizer.state; state != "" && state != judged(policy) {
		m.finalizer = obstacle{}
	}
	if m.generation != policy.Generation {
		m.generation = policy.Generation
		maps.DeleteFunc(m.obstacles, func(_ requestKey, o obstacle) bool { return o.state != "" }) // what the server has asked for outlives the change
	}
	return m
}

// judged is what the API server may judge of a policy when it gets its finalizer.
func judged(policy *v1alpha1.HealthCheckPolicy) string {
	return fmt.Sprint(policy.Generation, policy.Labels, policy.Annotations)
}

// finalizerRefused notes that the API server does not take the finalizer, or does not let it go.
func (p *pass) finalizerRefused(answer answer, err error) obstacle {
	o := p.memory.finalizer.again(answer.reason(), serverMessage(err), time.Now(), loop.RetryAfter(err))
	o.state = judged(p.policy)
	p.memory.finalizer = o
	return o
}
