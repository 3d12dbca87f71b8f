package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
)

const (
	resync = 2 * time.Second
	// patience is how long a case may take to converge. The longest wait that
	// a server asks for in a case is a few seconds.
	patience = 3 * time.Minute
)

// A subject is a controller with the scenario that is played to it.
type subject struct {
	name    string
	watches int // how many it has open once it works
	// setup makes what is there before the controller starts.
	setup func(ctx context.Context, s *scene) error
	// people create, change and delete objects while the controller works.
	people func(ctx context.Context, s *scene) error
	// state describes what is in the namespace, and fails until that is what the
	// controller promises for the end of the scenario. It leaves out times, UIDs,
	// resourceVersions and the names of pods that were replaced.
	state func(ctx context.Context, s *scene) (string, error)
	// clear deletes the controller's objects and returns how many are left.
	clear func(ctx context.Context, s *scene) (int, error)
}

// A scene is one case: a subject, a fault and a namespace.
type scene struct {
	*lab
	*crash.Faults
	subject *subject
	fault   *fault
	seed    uint64
	small   bool
	want    string // the state of the undisturbed run; empty in that run itself
	blow    *blow  // for a fault that strikes several scenes at once

	script *rand.Rand // decides what people do, the same for all faults of a seed

	ctx        context.Context // ends with the scene, and so does the controller
	ns         string
	dir        string
	kubeconfig string
	early      int // so many evictions may come early, see judge
	checks     []func() error

	replacing sync.Mutex // people and a fault may replace the same Icecream
	mu        sync.Mutex
	process   *proc.Process
	crashes   int
	logs      strings.Builder // of the processes before
}

// A result is what has become of a scene.
type result struct {
	*scene
	title     string
	namespace string
	state     string
	struck    int
	missed    bool // the scene made fewer writes than the undisturbed one, so the fault had nothing to strike
	took      time.Duration
	written   []faultproxy.Request
	evictions int
	err       error
	log       string
}

func newScene(l *lab, s *subject, f *fault, seed uint64, small bool) *scene {
	h := fnv.New64()
	fmt.Fprint(h, s.name, f.title())
	return &scene{lab: l, subject: s, fault: f, seed: seed, small: small,
		script: rand.New(rand.NewPCG(seed, 1)), Faults: &crash.Faults{Chance: rand.New(rand.NewPCG(seed, h.Sum64()))}}
}

// writes are the requests that are to change something, without Events.
var writes = faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Resource != "events" }}

func (s *scene) play(ctx context.Context) (r result) {
	r = result{scene: s, title: s.fault.title()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	r.err = s.act(ctx, &r)
	r.namespace = s.ns
	if r.err != nil {
		r.log = s.report()
	}
	cancel()
	if s.Proxy != nil {
		s.Proxy.Close()
	}
	s.audit.forget(s.ns)
	return r
}

func (s *scene) act(ctx context.Context, r *result) (err error) {
	if s.blow != nil {
		defer s.blow.left() // nobody waits for a scene that has failed
	}
	ns, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "chaos-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a namespace: %w", err)
	}
	s.ns = ns.Name
	s.dir = filepath.Join(s.lab.dir, s.ns)
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = s.end(ctx)
		}
	}()
	// Pods are refused until kube-controller-manager has made it, which takes longer on a loaded machine or after a restart.
	if err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("waiting for the namespace's service account: %w", err)
	}
	if err := s.subject.setup(ctx, s); err != nil {
		return fmt.Errorf("preparing the namespace: %w", err)
	}
	if s.Proxy, err = faultproxy.Start(s.config); err != nil {
		return err
	}
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	if err := s.Proxy.WriteKubeconfig(s.kubeconfig, s.ns, ""); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.working(ctx); err != nil {
		return err
	}

	inject := s.fault.inject[s.subject.name]
	ended := make(chan error, 1)
	ended <- nil
	if inject != nil {
		during, err := inject(s)
		if err != nil {
			return fmt.Errorf("injecting the fault: %w", err)
		}
		if during != nil {
			<-ended
			go func() { ended <- during(ctx) }()
		}
	}
	if s.blow != nil {
		s.blow.ready(s.Proxy)
	}
	if err := s.subject.people(ctx, s); err != nil {
		return fmt.Errorf("playing the people: %w", err)
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("during the fault: %w", err)
	}
	if s.blow != nil {
		n, err := s.blow.wait(ctx)
		if err != nil {
			return err
		}
		s.Strikes.Add(int64(n))
	}

	if err := s.converges(ctx, r); err != nil {
		return err
	}
	if s.want == "" {
		s.want = r.state
	}
	if err := s.stays(ctx, r); err != nil {
		return err
	}

	r.written = s.requests(writes)
	r.struck = s.Struck()
	records, err := s.audit.of(s.ns)
	if err != nil {
		return err
	}
	if s.fault == clockJump {
		r.struck = jumps(records)
	}
	var wrong []error
	r.evictions, wrong = judge(records, s.early)
	for _, check := range s.checks {
		wrong = append(wrong, check())
	}
	for _, w := range r.written {
		// Its finalizer keeps a policy until the controller removes it, once.
		if s.fault == undisturbedRun && w.Code == http.StatusNotFound && w.Group == v1alpha1.GroupName {
			wrong = append(wrong, fmt.Errorf("undisturbed, the controller wrote to a policy that it had let go: %s", w))
		}
	}
	switch {
	case r.struck > 0, s.fault == undisturbedRun:
	case s.fault.write > len(r.written):
		r.missed = true
	default:
		wrong = append(wrong, errors.New("the fault never struck"))
	}
	return errors.Join(wrong...)
}

// working waits until the controller has its watches open.
func (s *scene) working(ctx context.Context) error {
	return poll.Until(ctx, 50*time.Millisecond, time.Minute, func(context.Context) error {
		if err := s.alive(); err != nil {
			return poll.Stop(err)
		}
		if n := s.Proxy.Open(faultproxy.Watches); n < s.subject.watches {
			return fmt.Errorf("the controller has opened %d of %d watches", n, s.subject.watches)
		}
		return nil
	})
}

// compare reads the state, and fails if it is not that of the undisturbed run.
func (s *scene) compare(ctx context.Context, r *result) (err error) {
	if err := s.alive(); err != nil {
		return poll.Stop(err)
	}
	if r.state, err = s.subject.state(ctx, s); err != nil {
		return fmt.Errorf("not as promised: %w\n%s", err, r.state)
	}
	if s.want != "" && r.state != s.want {
		return fmt.Errorf("not as in the undisturbed run (-undisturbed +now):\n%s", cmp.Diff(strings.Split(s.want, "\n"), strings.Split(r.state, "\n")))
	}
	return nil
}

// converges waits until everything is as promised, and the controller has come to
// rest. The time begins when everything is there again. Before that rest, the state
// may look right although a late event or a write that a fault holds up is still to
// come, with what was true a moment ago.
func (s *scene) converges(ctx context.Context, r *result) error {
	const rest = 2 * time.Second // as a rule, a fault holds nothing up for longer
	start := time.Now()
	since, written := start, 0
	return poll.Until(ctx, 100*time.Millisecond, patience, func(ctx context.Context) error {
		err := s.compare(ctx, r)
		if n := len(s.requests(writes)); err != nil || n > written {
			since, written = time.Now(), n
		}
		r.took = since.Sub(start)
		if err == nil && time.Since(since) < rest {
			err = errors.New("everything is as promised, but the controller goes on to write")
		}
		return err
	})
}

// stays checks that the controller leaves everything as it is for two resyncs.
func (s *scene) stays(ctx context.Context, r *result) error {
	// A fault may still hold up a last write that changes nothing any more.
	before := len(s.requests(writes))
	until := time.Now().Add(2*resync + resync/4)
	for time.Now().Before(until) {
		if err := s.compare(ctx, r); err != nil {
			return fmt.Errorf("it had converged, but did not stay: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	if all := s.requests(writes); len(all) > before {
		return fmt.Errorf("it had converged, but went on to write: %v", all[before:])
	}
	return nil
}

// end deletes the objects, which the controller has to let go, and stops it.
func (s *scene) end(ctx context.Context) error {
	s.Proxy.Clear()
	if err := poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		n, err := s.subject.clear(ctx, s)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are left", n)
		}
		return err
	}); err != nil {
		return fmt.Errorf("deleting the controller's objects: %w", err)
	}
	if err := s.working(ctx); err != nil { // one that has just been started again does not know SIGTERM yet
		return err
	}
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ending the controller: %w", err)
	}
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		return errors.New("the controller did not end within 20 s of a SIGTERM")
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("the controller ended with exit code %d after a SIGTERM", code)
	}
	// Nobody waits until the namespace is gone: the cluster goes at the end.
	return s.client.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{})
}

// requests are those that have come through the proxy.
func (s *scene) requests(m faultproxy.Match) []faultproxy.Request {
	found, _ := s.Proxy.Requests(m)
	return found
}

// start starts the controller.
func (s *scene) start(ctx context.Context) error {
	program := s.subject.name
	if s.fault == clockJump {
		program = jumping
	}
	p, err := proc.Start(ctx, proc.Cmd{
		Path: s.binary(program), Dir: s.dir, Env: append(os.Environ(), crash.JumpingClockEnv+"="+s.clock()),
		Args: []string{"-kubeconfig", s.kubeconfig, "-namespace", s.ns, "-resync", resync.String()},
	})
	if err != nil {
		return fmt.Errorf("starting the controller: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
	return nil
}

// clock is the file that sets the controller's clock.
func (s *scene) clock() string { return filepath.Join(s.dir, "clock") }

// crash kills the controller, as a node does that loses power, and starts it again.
func (s *scene) crash(ctx context.Context) error {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	p.Kill()
	<-p.Done()
	s.mu.Lock()
	s.crashes++
	fmt.Fprintf(&s.logs, "%s\n--- killed\n", p.Stderr())
	s.mu.Unlock()
	return s.start(ctx)
}

// alive fails if the controller has ended by itself.
func (s *scene) alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process.Ended() && s.process.ExitCode() >= 0 { // -1 after a kill, and the next one is about to start
		return fmt.Errorf("the controller has ended by itself with exit code %d", s.process.ExitCode())
	}
	return nil
}

// report is what a person needs to find out why a scene has failed.
func (s *scene) report() string {
	var b strings.Builder
	if s.Proxy != nil {
		b.WriteString("its last requests:\n")
		all := s.requests(faultproxy.Match{})
		for _, r := range all[max(0, len(all)-60):] {
			fmt.Fprintf(&b, "  %s +%dms %s %s\n", r.Started.Format("05.000"), r.Took.Milliseconds(), r, r.Query)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		log := s.logs.String() + s.process.Stderr()
		fmt.Fprintf(&b, "the end of its log:\n%s", log[max(0, len(log)-4000):])
	}
	return b.String()
}

// do carries out what a person does, who tries again while the server cannot be
// reached.
func (s *scene) do(ctx context.Context, f func(ctx context.Context) error) error {
	return poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		err := f(ctx)
		switch {
		case err == nil, apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), apierrors.IsConflict(err),
			apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
			return err
		case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
			return poll.Stop(err)
		}
		return err
	})
}

// create and remove are for do: what was carried out before its answer was lost is done.
func create(_ any, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func remove(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pause waits for a moment of at most that length, so that not all steps of a
// scenario fall into the same pass of the controller.
func (s *scene) pause(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(s.script.Int64N(int64(most)))):
	}
}

// expectations are those that a state does not meet.
type expectations []error

func (e *expectations) that(ok bool, format string, args ...any) {
	if !ok {
		*e = append(*e, fmt.Errorf(format, args...))
	}
}
