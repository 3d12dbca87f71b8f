package judge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/gofrs/flock"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// An Unusable says why nothing could be judged, and what to do next.
type Unusable struct{ error }

func (u Unusable) Unwrap() error { return u.error }

func unusable(format string, args ...any) error { return Unusable{fmt.Errorf(format, args...)} }

// A lab is what all cases share.
type lab struct {
	ws         workspace.Workspace
	asked      Options
	contract   *Contract
	controller string // what bash runs, as a template
	service    string // and for the contract's outside
	cluster    *cluster.Cluster
	own        bool // the cluster is ours alone, and goes at the end
	config     *rest.Config
	core       kubernetes.Interface
	dynamic    dynamic.Interface
	mapper     meta.RESTMapper
	crds       []string // made here
	dir        string   // for what the cases need
	lock       *flock.Flock
	record     bool         // for the X-ray
	window     crash.Window // the faults of a case that strike
}

const label = "workshop.k8s-go.dev/judge"

// run tells the namespaces of this run from those of others on the same cluster.
func (l *lab) run() string { return filepath.Base(l.dir) }

// openLab makes everything ready. close has to follow, also after an error.
func openLab(ctx context.Context, o Options, out io.Writer) (l *lab, err error) {
	l = &lab{ws: o.Workspace, asked: o, contract: o.contract, window: o.window}
	if err := os.MkdirAll(l.ws.Path("judge"), 0o755); err != nil {
		return l, err
	}
	lock := flock.New(l.ws.Path("judge", "lock"))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return l, errors.Join(err, unusable("another make judge of this clone is at work: wait until it has ended"))
	}
	l.lock = lock
	if l.dir, err = os.MkdirTemp("", "judge"); err != nil {
		return l, err
	}
	if l.controller, err = l.build(ctx, "CONTROLLER", o.Controller); err != nil {
		return l, err
	}
	if o.Cluster == "" {
		l.own = true
		l.cluster, err = cluster.NewKwok(l.ws, "judge", cluster.KwokOptions{
			// So many cases at once are more than its clients would allow themselves, and a new
			// process would wait until the lease of a killed one is over.
			ExtraArgs: map[string][]string{"kube-controller-manager": {"kube-api-qps=500", "kube-api-burst=1000", "leader-elect=false"}},
		})
		if err == nil { // of an interrupted run, nothing is used
			err = l.cluster.Down(ctx, io.Discard)
		}
	} else {
		l.cluster, _, err = cluster.Select(ctx, l.ws, o.Cluster)
	}
	if err != nil {
		return l, err
	}
	if err := l.cluster.Up(ctx, out); err != nil {
		return l, err
	}
	if l.config, err = l.cluster.Config(); err != nil {
		return l, err
	}
	if l.core, err = kubernetes.NewForConfig(l.config); err != nil {
		return l, err
	}
	if l.dynamic, err = dynamic.NewForConfig(l.config); err != nil {
		return l, err
	}
	if l.own {
		if err := l.roomForPods(ctx); err != nil {
			return l, err
		}
	}
	return l, l.learn(ctx)
}

// roomForPods lets the simulated nodes take more than the usual 110 pods: what a case leaves
// goes with the cluster, and many cases leave many.
func (l *lab) roomForPods(ctx context.Context) error {
	nodes, err := l.core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		if _, err := l.core.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(`{"status":{"capacity":{"pods":"100k"},"allocatable":{"pods":"100k"}}}`), metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// learn makes the cluster know the kinds of the contract.
func (l *lab) learn(ctx context.Context) error {
	if l.contract.Outside != nil {
		var err error
		if l.service, err = l.build(ctx, "outside.start", l.contract.Outside.Start); err != nil {
			return err
		}
	}
	known := len(l.crds)
	if err := l.define(ctx); err != nil {
		return err
	}
	if l.own && len(l.crds) > known {
		// The one that runs looks for new kinds, and for changed ones, every 30 s.
		if err := crash.NewCollector(ctx, l.cluster); err != nil {
			return err
		}
	}
	l.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(l.core.Discovery()))
	if err := l.checkKinds(); err != nil {
		return err
	}
	return l.checkFields(ctx)
}

// close leaves nothing behind: no cluster that was made here, and on somebody's cluster
// no namespace and no CRD.
func (l *lab) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var errs []error
	switch {
	case l.cluster == nil:
	case l.own:
		errs = append(errs, l.cluster.Down(ctx, io.Discard))
	default:
		if l.core != nil {
			errs = append(errs, l.clear(ctx))
		}
		errs = append(errs, l.cluster.Release(ctx, io.Discard))
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Unlock())
	}
	return errors.Join(errs...)
}

func (l *lab) clear(ctx context.Context) error {
	// What a case that was interrupted has left outside of its namespace.
	ours := metav1.ListOptions{LabelSelector: label + "=" + l.run()}
	err := errors.Join(
		l.core.AdmissionregistrationV1().ValidatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, ours),
		l.core.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, ours),
		l.core.AdmissionregistrationV1().ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, ours))
	err = errors.Join(err, poll.Until(ctx, 200*time.Millisecond, 0, func(ctx context.Context) error {
		list, err := l.core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: label + "=" + l.run()})
		if err != nil {
			return err
		}
		for _, ns := range list.Items {
			l.letGo(ctx, ns.Name)
			if ns.DeletionTimestamp == nil {
				if err := l.core.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d namespaces are left; remove them with kubectl delete namespace -l %s=%s", len(list.Items), label, l.run())
		}
		return nil
	}))
	client, clientErr := clientset.NewForConfig(l.config)
	if clientErr != nil {
		return errors.Join(err, clientErr)
	}
	for _, name := range l.crds {
		err = errors.Join(err, client.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return err
}

// letGo takes the finalizers from what a controller, which has ended, has left in a namespace.
// What cannot be read or written is tried again with the next look at the namespace.
func (l *lab) letGo(ctx context.Context, ns string) {
	seen := map[schema.GroupVersionResource]bool{}
	for _, m := range l.mentions() {
		mapping, err := l.mapping(m.apiVersion, m.kind)
		if err != nil || seen[mapping.Resource] {
			continue
		}
		seen[mapping.Resource] = true
		client := l.dynamic.Resource(mapping.Resource).Namespace(ns)
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, o := range list.Items {
			if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) > 0 {
				_, _ = client.Patch(ctx, o.GetName(), "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			}
		}
	}
}

// define installs the contract's CRDs. What the cluster has already stays as it is.
func (l *lab) define(ctx context.Context) error {
	client, err := clientset.NewForConfig(l.config)
	if err != nil {
		return err
	}
	for _, file := range l.contract.CRDs {
		crds, err := readCRDs(file)
		if err != nil {
			return Unusable{err}
		}
		for _, crd := range crds {
			_, err = client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{})
			switch {
			case err == nil:
				l.crds = append(l.crds, crd.Name)
			case !apierrors.IsAlreadyExists(err):
				return unusable("installing the CRD of %s: %w", file, err)
			}
			if err := crdwait.Established(ctx, l.config, crd.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// readCRDs reads the CRDs of a file, which may have several documents.
func readCRDs(file string) (crds []*apiextensionsv1.CustomResourceDefinition, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return crds, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		var content map[string]any
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := errors.Join(yaml.Unmarshal(document, &content), yaml.UnmarshalStrict(document, crd)); err != nil {
			return nil, fmt.Errorf("%s is no CustomResourceDefinition: %w", file, err)
		}
		if len(content) > 0 { // and not comments alone
			crds = append(crds, crd)
		}
	}
}

func (l *lab) mapping(apiVersion, kind string) (*meta.RESTMapping, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	return l.mapper.RESTMapping(gv.WithKind(kind).GroupKind(), gv.Version)
}

// A mention is a place in the contract that names a kind.
type mention struct{ where, apiVersion, kind string }

// mentions are those of kinds that a cluster has.
func (l *lab) mentions() []mention {
	var all []mention
	steps := slices.Concat(l.contract.Bystanders, l.contract.Hundred)
	for _, t := range l.contract.Scenario {
		steps = append(steps, t.Steps...)
	}
	for _, s := range steps {
		all = append(all, mention{s.where, s.Object.GetAPIVersion(), s.Object.GetKind()})
	}
	for _, r := range l.contract.End {
		all = append(all, mention{r.where, r.APIVersion, r.Kind})
	}
	return slices.DeleteFunc(all, func(m mention) bool { return l.contract.Outside.is(m.apiVersion, m.kind) })
}

// checkKinds complains about kinds that the cluster does not have, before any case is played.
func (l *lab) checkKinds() error {
	var errs []error
	for _, m := range l.mentions() {
		mapping, err := l.mapping(m.apiVersion, m.kind)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: the cluster has no %s %s: name the file of its CRD under crds (%w)", m.where, m.apiVersion, m.kind, err))
		case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
			errs = append(errs, fmt.Errorf("%s: a %s is in no namespace, and a case has nothing but a namespace", m.where, m.kind))
		}
	}
	if len(errs) > 0 {
		return Unusable{errors.Join(errs...)}
	}
	return nil
}

// checkFields complains about fields that people wait for, and that the kind does not have: it would
// be the controller that is blamed. What people apply and patch is checked when they do.
func (l *lab) checkFields(ctx context.Context) error {
	steps := slices.Clone(l.contract.Hundred)
	for _, t := range l.contract.Scenario {
		steps = append(steps, t.Steps...)
	}
	var errs []error
	for _, s := range steps {
		if s.Verb != wait || l.contract.Outside.is(s.Object.GetAPIVersion(), s.Object.GetKind()) {
			continue
		}
		mapping, err := l.mapping(s.Object.GetAPIVersion(), s.Object.GetKind())
		if err != nil {
			return err
		}
		probe := s.Object.DeepCopy()
		probe.SetName("judge-probe")
		// Whatever else is wrong with it, as what is missing, is no matter here.
		_, err = l.dynamic.Resource(mapping.Resource).Namespace(metav1.NamespaceDefault).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: "Strict"})
		if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "unknown field") {
			errs = append(errs, fmt.Errorf("%s: %w", s.where, err))
		}
	}
	if len(errs) > 0 {
		return Unusable{errors.Join(errs...)}
	}
	return nil
}

// Some flags of go run have their value after a space. A value with quotes is left to go run itself.
var goRun = regexp.MustCompile(`^\s*go run (?:-C +(\S+) +)?((?:-(?:tags|mod|modfile|ldflags|gcflags|p|overlay|pgo) +[^\s'"]+ +|-[^\s'"]+ +)*)([^\s'"-][^\s'"]*)(.*)$`)

// What begins with these is not one program that can be built, killed and started again.
var (
	elsewhere = regexp.MustCompile(`^\s*(?:cd|go\s+-C)\s`)
	goFiles   = regexp.MustCompile(`^\s*go run [^'"]*\.go +\S+\.go\b`)
)

// compiling returns what builds the program that a command starts by go run, below the
// folder, and the command that starts the program instead. There is none for any other command.
func compiling(controller, folder string) (args []string, binary, command string) {
	m := goRun.FindStringSubmatch(controller)
	if m == nil {
		return nil, "", controller
	}
	dir, flags, pkg := m[1], strings.Fields(m[2]), m[3]
	// It has the name that go run gives it, in a folder of its own for each program.
	folder = filepath.Join(folder, strings.Trim(strings.NewReplacer("/", "-", ".", "", "@", "-").Replace(path.Join(dir, pkg)), "-"))
	module, _, versioned := strings.Cut(pkg, "@")
	binary = filepath.Join(folder, path.Base(module))
	if args = []string{"build"}; versioned {
		args = []string{"install"} // with GOBIN: go build knows no versions
	}
	if dir != "" {
		args = append(args, "-C", dir) // the first flag
	}
	if !versioned {
		args = append(args, "-buildvcs=false", "-o", binary)
	}
	return append(append(args, flags...), pkg), binary, proc.Quoted(binary) + m[4]
}

// build builds what go run would run: go run itself passes no SIGTERM on, and hides
// exit codes. Any other command stays as it is.
func (l *lab) build(ctx context.Context, what, controller string) (string, error) {
	before := assignments.FindString(controller)
	switch rest := controller[len(before):]; {
	case elsewhere.MatchString(rest):
		return "", unusable("%s=%s: name one command that starts at the root of the workshop; of a module in another folder, go run -C FOLDER PACKAGE", what, controller)
	case goFiles.MatchString(rest):
		return "", unusable("%s=%s: name the package, such as ./mine, and not its files", what, controller)
	}
	args, binary, command := compiling(controller[len(before):], l.ws.Path("judge"))
	command = before + command
	if args == nil {
		return command, nil
	}
	env := workspace.Environ("GOBIN=" + filepath.Dir(binary))
	if err := proc.Go(ctx, proc.Cmd{Args: args, Dir: l.ws.Root, Env: env}); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", unusable("%s=%s does not build: %w", what, controller, err)
	}
	return command, nil
}

// place is what a command may ask for.
type place struct{ Namespace, Kubeconfig, Outside string }

// expand puts the place of a case into the command.
func expand(controller string, p place) (string, error) {
	command, err := fill("CONTROLLER", controller, p)
	if err != nil {
		return "", unusable("%w; CONTROLLER may hold {{.Namespace}}, {{.Kubeconfig}} and {{.Outside}}", err)
	}
	return command, nil
}

// fill puts values into a text that somebody has written, in a place of that name.
func fill(name, text string, values any) (string, error) {
	t, err := template.New(name).Option("missingkey=error").Parse(text)
	var b strings.Builder
	if err == nil {
		err = t.Execute(&b, values)
	}
	return b.String(), err
}

// numbered puts n into the names and values of a step.
func numbered(s Step, n int) (Step, error) {
	data, err := json.Marshal(s.Object)
	if err != nil {
		return s, err
	}
	s.Object = s.Object.DeepCopy()
	return s, s.Object.UnmarshalJSON([]byte(strings.ReplaceAll(string(data), "{{.N}}", fmt.Sprint(n))))
}

// FindContract returns the folder that CONTRACT means: one of the workshop's, or any path.
func FindContract(ws workspace.Workspace, name string) (string, error) {
	known := filepath.Join(ws.Root, filepath.FromSlash(Folder))
	for _, dir := range []string{filepath.Join(known, name), filepath.Join(ws.Root, name), name} {
		if info, err := os.Stat(filepath.Join(dir, "contract.yaml")); err == nil && !info.IsDir() {
			return dir, nil
		}
	}
	return "", fmt.Errorf("CONTRACT=%s: no folder of that name holds a contract.yaml; %s has %s, and describes how to write another in README.md",
		name, Folder, strings.Join(Contracts(ws), ", "))
}

// Contracts names the contracts of the workshop.
func Contracts(ws workspace.Workspace) (all []string) {
	found, _ := filepath.Glob(filepath.Join(ws.Root, filepath.FromSlash(Folder), "*", "contract.yaml")) // the pattern is well-formed
	for _, file := range found {
		all = append(all, filepath.Base(filepath.Dir(file)))
	}
	return all
}
