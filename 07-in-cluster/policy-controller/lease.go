package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

var errLeaseLost = errors.New("the lease is lost: another process may be the leader now, so this one ends at once")

// A lease says who works. Its three durations answer three questions.
type lease struct {
	namespace, name string

	duration time.Duration // how long do the others wait after the last renewal that they have seen?
	deadline time.Duration // how long does the leader try to renew before it gives up?
	retry    time.Duration // how often does each of them try?
}

func (l *lease) addFlags(flags *flag.FlagSet, name string) {
	flags.StringVar(&l.namespace, "lease-namespace", podNamespace(), "the `namespace` of the lease")
	flags.StringVar(&l.name, "lease-name", name, "the `name` of the lease; processes with the same one never work at the same time")
	flags.DurationVar(&l.duration, "lease-duration", 15*time.Second, "how long the others wait after the leader's last renewal")
	flags.DurationVar(&l.deadline, "renew-deadline", 10*time.Second, "how long the leader tries to renew before it gives up")
	flags.DurationVar(&l.retry, "retry-period", 2*time.Second, "how often the leader renews, and the others try")
}

// validate is stricter than client-go, see timeout.
func (l *lease) validate() error {
	for _, d := range []struct {
		flag string
		time.Duration
	}{{"lease-duration", l.duration}, {"renew-deadline", l.deadline}, {"retry-period", l.retry}} {
		if d.Duration%time.Second != 0 { // a Lease holds whole seconds: the others would not wait for the rest
			return fmt.Errorf("-%s %s: want whole seconds", d.flag, d.Duration)
		}
	}
	if l.retry <= 0 || float64(l.deadline) <= leaderelection.JitterFactor*float64(l.retry) || l.timeout() <= 0 {
		return fmt.Errorf("-lease-duration %s, -renew-deadline %s, -retry-period %s: want the first above the sum of the others, and the second above %g times the third",
			l.duration, l.deadline, l.retry, leaderelection.JitterFactor)
	}
	return nil
}

// timeout is how long one request for the lease may take. A leader that has lost
// touch must end before its lease does. It notices a retry period and the deadline
// after its last renewal. But then client-go still tries to release the lease, which is
// a read here (lock keeps the write back), before it says that the lease is lost.
func (l *lease) timeout() time.Duration { return (l.duration - l.deadline - l.retry) / 2 }

// An election is the way of one process to the lease and back.
type election struct {
	elector  *leaderelection.LeaderElector
	watchdog *leaderelection.HealthzAdaptor
	won      chan struct{} // closed when this process leads
	over     chan struct{} // closed when it leads no more, or no longer tries to
	lock     *lock
}

func (l *lease) election(config *rest.Config) (*election, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	config.Timeout = l.timeout()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the lease: %w", err)
	}
	e := &election{won: make(chan struct{}), over: make(chan struct{}), watchdog: leaderelection.NewLeaderHealthzAdaptor(l.duration)}
	settings, err := l.settings(client.CoordinationV1(), e.won)
	if err != nil {
		return nil, err
	}
	settings.WatchDog = e.watchdog
	e.lock, _ = settings.Lock.(*lock)
	if e.elector, err = leaderelection.NewLeaderElector(settings); err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	e.watchdog.SetLeaderElection(e.elector)
	return e, nil
}

// settings are what client-go has to know for an election. It closes won when this
// process leads.
func (l *lease) settings(client coordinationv1.LeasesGetter, won chan<- struct{}) (leaderelection.LeaderElectionConfig, error) {
	// In a pod the host's name is the pod's. A container that restarts in the same
	// pod must not take itself for its predecessor, so a random part follows.
	host, err := os.Hostname()
	if err != nil {
		return leaderelection.LeaderElectionConfig{}, fmt.Errorf("making an identity for the lease: %w", err)
	}
	identity := host + "_" + rand.String(8)
	return leaderelection.LeaderElectionConfig{
		Lock: &lock{LeaseLock: resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.namespace, Name: l.name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}},
		Name:            l.name,
		LeaseDuration:   l.duration,
		RenewDeadline:   l.deadline,
		RetryPeriod:     l.retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				klog.Background().Info("Leader", "identity", leader, "me", leader == identity)
			},
		},
	}, nil
}

// A lock releases a lease only while its own process holds it. client-go v0.36 asks
// what it has last seen of the lease. A leader that was paused during a renewal has
// not seen the next leader yet, and would release that one's lease.
//
// Nor does it before the work has ended. client-go also tries to release a lease that it
// could not renew. If the server takes that, the next leader begins at once, while this
// process has yet to learn that it has to end.
//
// And it shows a standby each renewal. client-go compares the bytes that Get returns,
// and in its own the times have whole seconds. A leader renews as soon as it has taken
// the lease. A standby that misses that may take the lease up to a second early.
//
// And it stops a leader that reads that another one holds the lease. client-go goes on to try until
// the deadline, and the work goes on with it.
type lock struct {
	resourcelock.LeaseLock
	holder string          // in the lease that Get has read last, which Update writes
	ended  <-chan struct{} // closed when the work has
	lost   func()          // ends the election
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil {
		if l.holder == l.Identity() && record.HolderIdentity != "" && record.HolderIdentity != l.holder {
			l.lost()
		}
		l.holder = record.HolderIdentity
		raw = record.RenewTime.AppendFormat(raw, time.RFC3339Nano)
	}
	return record, raw, err
}

func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("%q holds it now", l.holder)
	}
	if record.HolderIdentity == "" {
		select {
		case <-l.ended:
		default:
			return errors.New("the workers are not told yet")
		}
	}
	if err := l.LeaseLock.Update(ctx, record); err != nil {
		return err
	}
	l.holder = record.HolderIdentity
	return nil
}

// run tries to lead, and leads, until ctx ends or the lease is lost. ctx ends after the work.
func (e *election) run(ctx context.Context) {
	defer close(e.over)
	trying, lost := context.WithCancel(ctx)
	defer lost()
	if e.lock != nil {
		e.lock.ended, e.lock.lost = ctx.Done(), lost
	}
	e.elector.Run(trying)
}
