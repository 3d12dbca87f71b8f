package judge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray"
)

const (
	startWithin = 30 * time.Second // until a command has opened a watch, or longer if that took long in the undisturbed run
	endWithin   = 30 * time.Second // after SIGTERM: what a pod gets before it is killed
	people      = "people"         // the field manager of what they do
	prefix      = "judge-"         // of every namespace
)

// A scene is one case at work: a namespace with a proxy and a controller of its own.
type scene struct {
	*lab
	*crash.Faults
	*Case
	seed        uint64
	want        state         // of the undisturbed run; nil in that run itself
	awaited     int           // how many watches the undisturbed run opened before people began
	watches     int           // as many as it had open at its end: some are opened on demand
	patience    time.Duration // of people
	busy        []string      // the resources of which watches have brought news
	undisturbed *scene        // that run; nil in itself

	script *rand.Rand // decides what people do: the same for all cases of a seed

	begun      time.Time
	ctx        context.Context // ends with the scene, and so does the controller
	stop       context.CancelCauseFunc
	ns         string
	kubeconfig string
	bystanders map[string]*unstructured.Unstructured // by UID
	next       []int                                 // of each track, the step that comes next
	peopleDone chan struct{}
	opened     atomic.Bool // whether it has opened a watch
	away       atomic.Bool // whether nobody answers, because the API server is being restarted

	people   sync.Mutex // for what people do to an object, one after the other
	mu       sync.Mutex
	programs []*program    // the running ones, one for each copy
	launches int           // how often one was started
	startup  time.Duration // what the first ones needed to open their watches
	rivals   map[types.UID]rivalry
	hub      *xray.Hub // what is recorded
	outside  *outside  // nil if the contract has none
	removed  []removal // what people have deleted
}

// A removal is that people have deleted an object of a name.
type removal struct {
	name string
	at   time.Time
}

// A program is one process of the controller.
type program struct {
	*proc.Process
	started time.Time
	ours    atomic.Bool // we have ended it
}

// writes are the requests that are to change something, without Events and leases.
var writes = faultproxy.Match{If: isWrite}

func isWrite(r faultproxy.Request) bool {
	return r.Write() && r.Resource != "events" && !elects(r) && r.Group != authenticationv1.GroupName && r.Group != authorizationv1.GroupName
}

// elects says whether a request is about who is the leader: by a Lease, or by an annotation, as older clients do.
func elects(r faultproxy.Request) bool {
	return r.Resource == "leases" || bytes.Contains(r.Body, []byte(resourcelock.LeaderElectionRecordAnnotationKey))
}

// requests are those that have come through the proxy.
func (s *scene) requests(m faultproxy.Match) []faultproxy.Request {
	if s.Proxy == nil {
		return nil
	}
	found, _ := s.Proxy.Requests(m)
	return found
}

// events counts what watches have brought, by resource.
func (s *scene) events() map[string]int {
	sums := map[string]int{}
	for _, r := range s.requests(faultproxy.Watches) {
		sums[r.Resource] += r.Events
	}
	return sums
}

// act plays the scene. A *failure is the controller's, any other error is not.
func (s *scene) act(parent context.Context) (result state, err error) {
	ctx, stop := context.WithCancelCause(parent)
	s.ctx, s.stop = ctx, stop
	defer stop(nil)
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("preparing the namespace: %w", err)
	}
	defer func() {
		if ctx.Err() == nil {
			return
		}
		// What ended the scene says more than what was cut off by that.
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			err = cause
		}
	}()
	defer func() {
		var f *failure
		if errors.As(err, &f) && ctx.Err() == nil {
			if seen := s.seenOutside(ctx, f); seen != nil {
				err = seen
				return
			}
			f.requests = s.evidence(f) // before the questions bring further ones
			s.investigate(ctx, f)
		}
	}()
	if s.Before {
		if err := s.play(ctx, s.first); err != nil {
			return nil, err
		}
	}
	for copy := range s.programs {
		if err := s.launch(copy); err != nil {
			return nil, err
		}
	}
	if err := s.working(ctx); err != nil {
		return nil, err
	}
	atFirst := s.events()
	during := make(chan error, 1)
	during <- nil
	if s.inject != nil {
		f, err := s.inject(s)
		if err != nil {
			return nil, fmt.Errorf("injecting the fault: %w", err)
		}
		if f != nil {
			<-during
			go func() { during <- f(ctx) }()
		}
	}
	if s.Case.play != nil {
		err = s.Case.play(ctx, s)
	} else {
		err = s.play(ctx, s.anyTrack)
	}
	close(s.peopleDone)
	faultErr := <-during // which may have a component to start again
	if err != nil {
		return nil, err
	}
	if faultErr != nil {
		return nil, fmt.Errorf("during the fault: %w", faultErr)
	}
	if result, err = s.settle(ctx); err != nil {
		return nil, err
	}
	if s.finally != nil {
		if err := s.finally(ctx, s); err != nil {
			return nil, err
		}
	}
	s.watches = s.Proxy.Open(faultproxy.Watches)
	for resource, n := range s.events() {
		if n > atFirst[resource] {
			s.busy = append(s.busy, resource)
		}
	}
	slices.Sort(s.busy)
	if err := errors.Join(s.untouched(ctx), s.books(ctx)); err != nil {
		return nil, err
	}
	for copy := range s.programs {
		if err := s.end(copy); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// prepare makes the namespace with its bystanders, and the proxy.
func (s *scene) prepare(ctx context.Context) error {
	ns, err := s.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix, Labels: map[string]string{label: s.run()}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s.ns = ns.Name
	dir := filepath.Join(s.dir, s.ns)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// Without it, pods are refused.
	if err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		_, err := s.core.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	if s.contract.Outside != nil {
		if err := s.openOutside(ctx); err != nil {
			return err
		}
	}
	for _, b := range s.contract.Bystanders {
		if s.contract.Outside.is(b.Object.GetAPIVersion(), b.Object.GetKind()) {
			if err := s.outside.byHand(ctx, b); err != nil {
				return err
			}
			continue
		}
		made, err := s.apply(ctx, b)
		if err != nil {
			return err
		}
		s.bystanders[string(made.GetUID())] = made
	}
	if s.outside != nil {
		if err := s.outside.meet(ctx); err != nil {
			return err
		}
	}
	if s.Proxy, err = faultproxy.Start(s.config); err != nil {
		return err
	}
	s.Proxy.KeepBodies()
	if s.record {
		if s.hub, err = xray.NewHub(s.Proxy, filepath.Join(dir, "x")); err != nil {
			return err
		}
	}
	s.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := s.Proxy.WriteKubeconfig(s.kubeconfig, s.ns, ""); err != nil {
		return err
	}
	// What is meant for another namespace is refused, and ends the scene.
	_, err = s.Proxy.Inject(faultproxy.Rule{Match: faultproxy.Match{If: s.elsewhere}, Fault: faultproxy.Call, Times: -1, Call: func(_ context.Context, r faultproxy.Request) error {
		where := "in the namespace " + r.Namespace
		if r.Namespace == "" {
			where = "outside of any namespace"
		}
		cure := "pass {{.Namespace}} to it in CONTROLLER"
		switch {
		case r.Namespace == "":
			cure = "let it leave such objects to whoever installs it"
		case s.sideBySide():
			cure = "it works in others, too. If it cannot be kept to one, leave {{.Namespace}} out of CONTROLLER, also for its lease, and the cases run one after another"
		}
		err := unusable("the command sent %s %s %s, but it may write only in the namespace of its case: %s", r.Verb, r.Resource, where, cure)
		s.stop(err)
		return err
	}})
	return err
}

// elsewhere says whether a request would write where the scene is not. A command that is not
// told its namespace may meet what the cases before have left.
func (s *scene) elsewhere(r faultproxy.Request) bool {
	if s.sideBySide() { // cases would wait for each other's lease
		return r.Namespace != s.ns && (isWrite(r) || r.Write() && elects(r))
	}
	return r.Namespace != s.ns && isWrite(r) && !strings.HasPrefix(r.Namespace, prefix)
}

// sideBySide says whether the controller can be kept to one namespace.
func (l *lab) sideBySide() bool { return strings.Contains(l.controller, ".Namespace") }

// assignments are what a command may begin with: NAME=value, for its environment.
var assignments = regexp.MustCompile(`^\s*(?:[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|[^\s'"])*\s+)*`)

// replacing has bash put a command in its own place, so that signals reach the command.
func replacing(command string) string {
	before := assignments.FindString(command)
	return before + "exec " + command[len(before):]
}

// portTaken is how programs say that they cannot listen: Go, Node.js, Python, Java, Rust, Spring.
var portTaken = regexp.MustCompile(`(?i)address already in use|EADDRINUSE|port \d+ was already in use`)

// launch starts a copy of the controller.
func (s *scene) launch(copy int) error {
	s.mu.Lock()
	s.launches++
	own := filepath.Join(filepath.Dir(s.kubeconfig), fmt.Sprintf("tmp-%d", s.launches))
	s.mu.Unlock()
	// A container that is started again has nothing of what the one before has left in a folder.
	if err := os.Mkdir(own, 0o755); err != nil {
		return err
	}
	where := place{Namespace: s.ns, Kubeconfig: s.kubeconfig}
	if s.outside != nil {
		where.Outside = s.outside.wire.URL
	}
	command, err := expand(s.controller, where)
	if err != nil {
		return err
	}
	p, err := proc.Start(s.ctx, proc.Cmd{Path: "bash", Args: []string{"-c", replacing(command)}, Dir: s.ws.Root,
		Env: append(workspace.Without(workspace.Environ(), "KUBECONFIG", "KUBECACHEDIR"), "KUBECONFIG="+s.kubeconfig,
			"TMPDIR="+own, // one that is killed leaves its files
			"KUBECACHEDIR="+filepath.Join(filepath.Dir(s.kubeconfig), "kubectl-cache"))}) // kubectl's, by the port of the proxy
	if err != nil {
		return err
	}
	now := &program{Process: p, started: time.Now()}
	s.mu.Lock()
	s.programs[copy] = now
	s.mu.Unlock()
	go func() {
		<-p.Done()
		switch {
		case now.ours.Load() || s.ctx.Err() != nil:
		case portTaken.MatchString(p.Stderr()) || portTaken.MatchString(p.Stdout()):
			s.stop(unusable("the command listens on a port that is in use: let it take any free one, as port 0 does, or let the contract say bounds: {copies: 1}, so that only one runs at a time:\n%s", now.log()))
		case s.lostLease():
			// It had to end, and a kubelet would start its pod again.
			if err := s.launch(copy); err != nil {
				s.stop(err)
			}
		case !s.opened.Load() && s.undisturbed == nil:
			s.stop(unusable("the command ended with exit code %d before it had opened a watch:\n%s", p.ExitCode(), now.log()))
		default:
			s.stop(&failure{kind: died, code: p.ExitCode(), detail: now.log()})
		}
	}()
	return nil
}

// lostLease says whether the controller elects a leader, and could not renew its lease.
func (s *scene) lostLease() bool {
	leases := s.requests(faultproxy.Match{If: elects})
	return len(leases) > 0 && (leases[len(leases)-1].Code/100 != 2 || s.away.Load())
}

// log is the end of what the program has said, or its panic.
func (p *program) log() string {
	lines := strings.Split(strings.TrimSpace(p.Stdout()+p.Stderr()), "\n")
	from := max(0, len(lines)-5)
	if at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "panic: ") }); at >= 0 {
		from = at
	}
	return "  " + strings.Join(lines[from:min(len(lines), from+5)], "\n  ")
}

func (s *scene) program(copy int) *program {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programs[copy]
}

// working waits until the controller has its watches open: as many as in the undisturbed
// run, which for its part waits until no further one comes.
func (s *scene) working(ctx context.Context) error {
	began := time.Now()
	open, since := 0, began
	err := poll.Until(ctx, 50*time.Millisecond, s.startWithin(), func(context.Context) error {
		if n := s.Proxy.Open(faultproxy.Watches); n != open {
			open, since = n, time.Now()
		}
		s.opened.Store(open > 0)
		if open < max(1, s.awaited) || s.awaited == 0 && time.Since(since) < 2*time.Second {
			return fmt.Errorf("%d watches are open", open)
		}
		return nil
	})
	watched := s.requests(faultproxy.Watches)
	here := slices.ContainsFunc(watched, func(r faultproxy.Request) bool { return r.Namespace == s.ns || r.Namespace == "" && r.Resource != "" })
	switch all := s.requests(faultproxy.Match{}); {
	case len(watched) > 0 && !here:
		return unusable("the command watches the namespace %s, and not that of its case: pass {{.Namespace}} to it in CONTROLLER", watched[0].Namespace)
	case err == nil:
		s.startup = time.Since(began)
		if s.undisturbed == nil && s.awaited == 0 {
			s.awaited = open
		}
		return nil
	case ctx.Err() != nil:
		return err
	case open > 0 || s.undisturbed != nil:
		return &failure{kind: unwatched, detail: fmt.Sprintf("  %d of %d watches after %s", open, s.awaited, s.startWithin())}
	case len(all) == 0:
		return unusable("within %s the command has sent no request to the server that KUBECONFIG names: let it read that variable, or pass {{.Kubeconfig}} to it", startWithin)
	default:
		return unusable("within %s the command has opened no watch, its last request was %s: what polls cannot be judged", startWithin, all[len(all)-1])
	}
}

// kill ends a copy as a node does that loses power.
func (s *scene) kill(copy int) {
	p := s.program(copy)
	p.ours.Store(true)
	p.Kill()
	<-p.Done()
}

// end ends a copy as a kubelet does, which expects a good end. Afterwards nobody writes.
func (s *scene) end(copy int) error {
	p := s.program(copy)
	// One that has just been started does not listen to signals yet.
	_ = poll.Until(s.ctx, 20*time.Millisecond, max(5*time.Second, 3*s.usualStartup()), func(context.Context) error {
		if len(s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Started.After(p.started) }})) == 0 {
			return errors.New("it has sent nothing yet")
		}
		return nil
	})
	p.ours.Store(true)
	if p.Ended() { // by itself, just before
		return &failure{kind: died, code: p.ExitCode(), detail: p.log()}
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ending the command: %w", err)
	}
	select {
	case <-p.Done():
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-time.After(endWithin):
		return &failure{kind: endless, detail: p.log()}
	}
	if code := p.ShellCode(); code != 0 && code != s.contract.Exit {
		allowed := "0"
		if s.contract.Exit != 0 {
			allowed = fmt.Sprintf("0 or %d", s.contract.Exit)
		}
		return &failure{kind: badEnd, code: code, allowed: allowed, detail: p.log()}
	}
	return nil
}

// patiently polls until the end of a patience, and for as much longer as the programs that were
// started meanwhile need for that: an interpreter may take seconds, in which nothing is late.
func (s *scene) patiently(ctx context.Context, patience time.Duration, f func(context.Context) error) error {
	startup := s.usualStartup()
	for before := s.started(); ; {
		err := poll.Until(ctx, 100*time.Millisecond, patience, f)
		now := s.started()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || now == before || startup == 0 {
			return err
		}
		patience, before = time.Duration(now-before)*startup, now
	}
}

// usualStartup is what the programs of the undisturbed run needed to open their watches; 0 in that run itself.
func (s *scene) usualStartup() time.Duration {
	if s.undisturbed == nil {
		return 0
	}
	return s.undisturbed.startup
}

// startWithin is how long a command may take until it has opened its watches.
func (s *scene) startWithin() time.Duration { return max(startWithin, 3*s.usualStartup()) }

// started is how often a program was started so far.
func (s *scene) started() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.launches
}

// hundred plays the contract's steps for a hundred objects.
func hundred(ctx context.Context, s *scene) error {
	for i := range s.contract.Hundred {
		for n := 1; n <= 100; n++ {
			steps := make([]Step, i+1)
			for j := range steps {
				var err error
				if steps[j], err = numbered(s.contract.Hundred[j], n); err != nil {
					return err
				}
			}
			if err := s.do(ctx, steps[i], lastChange(steps[:i])); err != nil {
				return err
			}
		}
		s.Strikes.Add(1)
	}
	return nil
}

// lastChange is the last of the steps that has changed something.
func lastChange(steps []Step) *Step {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].changes() {
			return &steps[i]
		}
	}
	return nil
}

// play plays the steps of the tracks in the order in which choose names tracks, until it returns -1.
func (s *scene) play(ctx context.Context, choose func() int) error {
	var first *failure
	for t := choose(); t >= 0; t = choose() {
		steps := s.contract.Scenario[t].Steps
		step := steps[s.next[t]]
		cause := lastChange(steps[:s.next[t]])
		s.next[t]++
		do := func() error { return s.do(ctx, step, cause) }
		var err error
		if s.around != nil {
			err = s.around(ctx, s, step, do)
		} else {
			err = do()
		}
		var f *failure
		switch {
		case errors.As(err, &f) && f.kind == waited && s.want == nil && ctx.Err() == nil:
			// In the undisturbed run, all that does not work says what is wrong. The others have had their time, too.
			if s.next[t], s.patience = len(steps), (s.contract.Settle / 3).Round(time.Second); first == nil {
				first = f
			} else {
				first.others = append(first.others, f)
			}
			continue
		case err != nil:
			return err
		}
		if step.changes() { // so that not all falls into one pass of the controller
			crash.Sleep(ctx, time.Duration(s.script.Int64N(int64(100*time.Millisecond))))
		}
	}
	if first != nil {
		return first
	}
	return ctx.Err()
}

// anyTrack chooses a track, of which the longer ones come more often.
func (s *scene) anyTrack() int {
	var left []int
	for t, track := range s.contract.Scenario {
		for range len(track.Steps) - s.next[t] {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return -1
	}
	return left[s.script.IntN(len(left))]
}

// first chooses a track that has not gone beyond making objects.
func (s *scene) first() int {
	for t, track := range s.contract.Scenario {
		if at := s.next[t]; at < len(track.Steps) && track.Steps[at].Verb == apply {
			return t
		}
	}
	return -1
}

func (s *scene) client(apiVersion, kind string) (dynamic.ResourceInterface, error) {
	mapping, err := s.mapping(apiVersion, kind)
	if err != nil {
		return nil, err
	}
	return s.dynamic.Resource(mapping.Resource).Namespace(s.ns), nil
}

// do carries out a step. People try again while the server cannot be reached, and where
// something is not there yet.
func (s *scene) do(ctx context.Context, step Step, cause *Step) error {
	if !step.changes() {
		return s.wait(ctx, step, cause)
	}
	if s.contract.Outside.is(step.Object.GetAPIVersion(), step.Object.GetKind()) {
		err := s.patiently(ctx, s.patience, func(ctx context.Context) error { return s.outside.byHand(ctx, step) })
		if errors.Is(err, errNoThing) && ctx.Err() == nil {
			return &failure{kind: waited, step: &step, cause: cause, detail: "  " + err.Error()}
		}
		return err
	}
	client, err := s.client(step.Object.GetAPIVersion(), step.Object.GetKind())
	if err != nil {
		return err
	}
	name := step.Object.GetName()
	missing := false
	err = s.patiently(ctx, s.patience, func(ctx context.Context) (err error) {
		s.people.Lock()
		defer s.people.Unlock()
		switch step.Verb {
		case apply:
			_, err = s.applyOnce(ctx, client, step)
		case patch:
			changes := step.Object.DeepCopy()
			changes.SetName("")
			data, marshalErr := changes.MarshalJSON()
			if marshalErr != nil {
				return poll.Stop(marshalErr)
			}
			_, err = client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: people, FieldValidation: "Strict"})
		case remove:
			err = s.removeLike(ctx, client, step)
		}
		missing = apierrors.IsNotFound(err)
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return poll.Stop(unusable("%s: %w", step.where, err))
		}
		return err
	})
	if errors.Is(err, errLingers) && ctx.Err() == nil { // whoever keeps it has a finalizer there
		deleted, ended := step, step
		deleted.Verb, ended.Verb = remove, gone
		return &failure{kind: waited, step: &ended, cause: &deleted, theirs: true, detail: "  " + err.Error()}
	}
	if missing && err != nil && ctx.Err() == nil {
		return &failure{kind: waited, step: &step, cause: cause, theirs: s.contract.theirs(step), detail: "  " + step.where + ": there is no " + step.what()}
	}
	return err
}

// removeLike deletes the object of a step, or if that has no name, whatever holds what it says. In the
// undisturbed run, it is an error if there is none: a contract that deletes nothing would prove nothing.
func (s *scene) removeLike(ctx context.Context, client dynamic.ResourceInterface, step Step) error {
	names := []string{step.Object.GetName()}
	if names[0] == "" {
		list, err := s.list(ctx, step.Object.GetAPIVersion(), step.Object.GetKind(), "")
		if err != nil {
			return err
		}
		names = nil
		for _, o := range list {
			if holds(o.Object, step.Object.Object) && s.bystanders[string(o.GetUID())] == nil {
				names = append(names, o.GetName())
			}
		}
	}
	deleted := s.undisturbed != nil // there, an attempt whose answer was lost may have done it
	for _, name := range names {
		err := client.Delete(ctx, name, metav1.DeleteOptions{})
		s.removedNow(name) // whatever has become of the answer
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		deleted = deleted || err == nil
	}
	if !deleted {
		return apierrors.NewNotFound(schema.GroupResource{Resource: step.Object.GetKind()}, step.Object.GetName())
	}
	return nil
}

// removedNow remembers that somebody has deleted an object.
func (s *scene) removedNow(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, removal{name, time.Now()})
}

func (s *scene) apply(ctx context.Context, step Step) (*unstructured.Unstructured, error) {
	client, err := s.client(step.Object.GetAPIVersion(), step.Object.GetKind())
	if err != nil {
		return nil, err
	}
	made, err := s.applyOnce(ctx, client, step)
	if err != nil {
		return nil, unusable("%s: %w", step.where, err)
	}
	return made, nil
}

var errLingers = errors.New("is still being deleted")

// applyOnce makes an object, or changes the one that is there to what the step says. One
// that is on its way out is waited for.
func (s *scene) applyOnce(ctx context.Context, client dynamic.ResourceInterface, step Step) (*unstructured.Unstructured, error) {
	made, err := client.Create(ctx, step.Object, metav1.CreateOptions{FieldManager: people, FieldValidation: "Strict"})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	there, err := client.Get(ctx, step.Object.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if there.GetDeletionTimestamp() != nil {
		return nil, fmt.Errorf("%s %w", step, errLingers)
	}
	return client.Apply(ctx, step.Object.GetName(), step.Object, metav1.ApplyOptions{FieldManager: people, Force: true})
}

// wait waits for an object, or for its end.
func (s *scene) wait(ctx context.Context, step Step, cause *Step) error {
	wanted := step.Object.Object
	var last, unread error // unread is why nobody knows
	look := func(ctx context.Context) (err error) {
		defer func() {
			if ctx.Err() == nil {
				last = err
			}
		}()
		list, err := s.list(ctx, step.Object.GetAPIVersion(), step.Object.GetKind(), step.Object.GetName())
		if ctx.Err() == nil {
			unread = err
		}
		if err != nil {
			return err
		}
		err = fmt.Errorf("there is no %s", step)
		for _, o := range list {
			lack := lacks("", wanted, o.Object)
			switch {
			case len(lack) > 0:
				err = errors.New(strings.Join(lack, "; "))
			case step.Verb == gone:
				return fmt.Errorf("%s %s is still there", o.GetKind(), o.GetName())
			default:
				return nil
			}
		}
		if step.Verb == gone {
			return nil
		}
		return err
	}
	err := s.patiently(ctx, s.patience, look)
	if err != nil && ctx.Err() == nil && (unread != nil || step.Verb == gone && s.collected(ctx, step)) {
		err = s.patiently(ctx, notTheirs, look)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if unread != nil {
		return fmt.Errorf("%s: %w", step.where, unread)
	}
	return &failure{kind: waited, step: &step, cause: cause, theirs: s.contract.theirs(step), detail: fmt.Sprintf("  %s: after %s, %v", step.where, s.patience, last)}
}

// notTheirs is how much longer may take what is not the controller's. After a change of CRDs the
// garbage collector stops until it has listed everything anew, for which it looks every 30
// seconds (GarbageCollector.Sync in k8s.io/kubernetes), and the API server answers requests for
// these objects by 429 until its cache is filled ("storage is (re)initializing"). What the status
// of a workload says is the controller manager's to say.
const notTheirs = 2 * time.Minute

// unreported reports whether the controller manager has not yet said what became of a workload
// as it is now.
func (s *scene) unreported(ctx context.Context) bool {
	return slices.ContainsFunc(s.contract.End, func(r Resource) bool {
		if r.APIVersion != "apps/v1" {
			return false
		}
		list, err := s.list(ctx, r.APIVersion, r.Kind, "")
		return err == nil && slices.ContainsFunc(list, behind)
	})
}

// behind reports whether the status of a workload is of an older generation, or of none.
func behind(workload unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(workload.Object, "status", "observedGeneration")
	return observed != workload.GetGeneration()
}

// collected reports whether what a step waits for is not left behind by the controller: the
// garbage collector has to remove it, because all of its owners are gone.
func (s *scene) collected(ctx context.Context, step Step) bool {
	list, err := s.list(ctx, step.Object.GetAPIVersion(), step.Object.GetKind(), step.Object.GetName())
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(o unstructured.Unstructured) bool {
		return ownersGone(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
			owners, err := s.list(ctx, r.APIVersion, r.Kind, r.Name)
			return err == nil && !slices.ContainsFunc(owners, func(o unstructured.Unstructured) bool { return o.GetUID() == r.UID })
		})
	})
}

// ownersGone reports whether there were owners, and all of them are gone.
func ownersGone(owners []metav1.OwnerReference, gone func(metav1.OwnerReference) bool) bool {
	return len(owners) > 0 && !slices.ContainsFunc(owners, func(r metav1.OwnerReference) bool { return !gone(r) })
}

// settle waits until the state is that of the undisturbed run and nobody has written for a
// while. In the undisturbed run, any state that lasts will do.
func (s *scene) settle(ctx context.Context) (last state, err error) {
	quietFor := max(s.contract.Calm, 2*time.Second)
	written, since := -1, time.Now()
	var different difference
	var unread error // why nobody knows the state
	look := func(ctx context.Context) error {
		now, err := s.state(ctx)
		if ctx.Err() == nil { // or the deadline has cut it off
			unread = err
		}
		if err != nil {
			since = time.Now()
			return err
		}
		wanted := s.want
		if wanted == nil {
			wanted = last
		}
		n := len(s.outside.made())
		if all := s.requests(writes); len(all) > 0 {
			n += all[len(all)-1].ID // not their number: the proxy forgets the oldest of very many
		}
		if different = compare(wanted, now); s.free {
			different = difference{} // its objects are its own
		}
		if last = now; !different.empty() || n != written {
			written, since = n, time.Now()
		}
		// What the undisturbed run ends in is what all others are compared with.
		if time.Since(since) < quietFor || s.want == nil && s.unreported(ctx) {
			return errors.New("it is not calm")
		}
		return nil
	}
	err = s.patiently(ctx, s.contract.Settle+s.more+quietFor, look)
	if err != nil && ctx.Err() == nil && (unread != nil || s.unreported(ctx)) {
		err = s.patiently(ctx, notTheirs, look)
	}
	switch {
	case err == nil:
		return last, nil
	case ctx.Err() != nil:
		return last, err
	case unread != nil:
		return nil, err
	}
	all := s.requests(writes)
	// Copies that fight never come to a state.
	fight := s.Copies > 1 && len(all) > 0 && time.Since(all[len(all)-1].Started) < time.Second
	if !different.empty() && s.want != nil && !fight {
		return nil, &failure{kind: differs, diff: different}
	}
	if calls := s.outside.made(); len(calls) > 0 && (len(all) == 0 || calls[len(calls)-1].at.After(all[len(all)-1].Started)) {
		return nil, &failure{kind: restless, outside: true, calls: calls[max(0, len(calls)-3):], detail: fmt.Sprintf("  %d calls in all", len(calls))}
	}
	last3 := all[max(0, len(all)-3):]
	if newWork(all) {
		return nil, &failure{kind: unfinished, requests: last3, detail: (s.contract.Settle + s.more + quietFor).String()}
	}
	return nil, &failure{kind: restless, requests: last3, detail: fmt.Sprintf("  %d writes in all", len(all))}
}

// newWork reports whether the last writes are the first ones of their kind to their objects: then
// nobody writes in vain.
func newWork(all []faultproxy.Request) bool {
	type write struct{ verb, resource, name string }
	const few = 5
	times := map[write]int{}
	for _, r := range all {
		times[write{r.Verb, r.Resource, r.Name}]++
	}
	return len(all) >= few && !slices.ContainsFunc(all[len(all)-few:], func(r faultproxy.Request) bool {
		return r.Name == "" || times[write{r.Verb, r.Resource, r.Name}] > 1
	})
}

// quiet fails if anything is written within the time that has to be calm.
func (s *scene) quiet(ctx context.Context, before int) error {
	since := func() []faultproxy.Request {
		all := s.requests(writes)
		return all[min(before, len(all)):] // the proxy forgets old ones
	}
	for end := time.Now().Add(s.contract.Calm); time.Now().Before(end) && ctx.Err() == nil; {
		if !moreThanRefused(since()) {
			crash.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		crash.Sleep(ctx, time.Second) // for what more there is to see
		all := since()
		return &failure{kind: restless, restarted: true, requests: all[:min(len(all), 3)], detail: fmt.Sprintf("  %d writes after the restart", len(all))}
	}
	return ctx.Err()
}

// moreThanRefused reports whether there is more than creates refused with 409 Conflict, which is how a
// controller may find out, once, that a name is taken. A create under way may still be refused.
func moreThanRefused(written []faultproxy.Request) bool {
	return repeated(written, 2) != nil || slices.ContainsFunc(written, func(r faultproxy.Request) bool {
		return r.Verb != "create" || r.Code != http.StatusConflict && r.Took > 0
	})
}

// untouched fails if the controller has written to a bystander.
func (s *scene) untouched(ctx context.Context) error {
	named := func(a, b *unstructured.Unstructured) int { // or another one would be named each time
		return strings.Compare(Step{Object: a}.String(), Step{Object: b}.String())
	}
	for _, b := range slices.SortedFunc(maps.Values(s.bystanders), named) {
		mapping, err := s.mapping(b.GetAPIVersion(), b.GetKind())
		if err != nil {
			return err
		}
		name := Step{Object: b}.String()
		touched := s.requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
			return isWrite(r) && r.Code/100 == 2 && concerns(r, mapping) && r.Namespace == s.ns && r.Name == b.GetName()
		}})
		if len(touched) > 0 {
			return &failure{kind: trespassed, detail: name, requests: touched}
		}
		now, err := s.dynamic.Resource(mapping.Resource).Namespace(s.ns).Get(ctx, b.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (now.GetUID() != b.GetUID() || now.GetDeletionTimestamp() != nil) {
			return &failure{kind: trespassed, detail: name}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leave deletes the namespace, unless the whole cluster goes. Where the next case would meet
// what is left, that is waited for.
func (s *scene) leave(ctx context.Context) error {
	if s.Proxy != nil {
		s.Proxy.Close()
	}
	if s.outside != nil {
		s.outside.close()
	}
	if s.ns == "" || s.own && s.sideBySide() || ctx.Err() != nil {
		return nil
	}
	err := s.core.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) { // the case has deleted it
		return nil
	}
	if err != nil || s.sideBySide() {
		return err
	}
	return poll.Until(ctx, 200*time.Millisecond, 2*time.Minute, func(ctx context.Context) error {
		s.letGo(ctx, s.ns)
		_, err := s.core.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("the namespace %s of the case before is still there", s.ns))
	})
}
