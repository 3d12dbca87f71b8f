package incluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/image"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

const largest = 60 << 20

// From an empty cluster to pods that enforce policies, through deaths of the leader,
// an upgrade and a restart of the API server, to an empty cluster. The parts follow one
// another.
func TestInCluster(t *testing.T) {
	e := testenv.New(t)
	e.NeedsImages()
	ws, c := e.Workspace(), e.Cluster()
	log, err := openAuditLog(c)
	fatal.If(t, err)
	e.OwnDefinitions()
	o := &controllerTest{Env: e, t: t, runner: e, namespace: e.Namespace, client: e.Client}
	if o.objects, err = versioned.NewForConfig(e.Config); err != nil {
		t.Fatal(err)
	}
	d := &deployment{controllerTest: o, ws: ws, c: c, cache: t.TempDir()}
	t.Cleanup(d.remove)

	d.phase(t, "image", (*deployment).loadImage)
	d.phase(t, "deploy", (*deployment).deploy)
	d.phase(t, "marks", (*deployment).marks)
	d.phase(t, "metrics", (*deployment).metrics)
	d.phase(t, "short lease", (*deployment).shorten)
	d.phase(t, "X-ray", (*deployment).inside) // before the load: a program leaves out steps when there are many
	load := o.startLoad()
	deaths := failovers(t)
	for i := range deaths {
		d.phase(t, "failover, "+strikes[i%len(strikes)].what, func(d *deployment) { d.failover(log, i) })
	}
	d.phase(t, "upgrade", (*deployment).upgrade)
	d.phase(t, "another version is stored", (*deployment).moveStorage)
	load.end()
	d.phase(t, "one leader at a time", func(d *deployment) { d.leadsAlone(log, deaths+1) })
	d.phase(t, "Pod Security", (*deployment).podSecurity)
	d.phase(t, "the controller goes first", (*deployment).wrongOrder)
	d.phase(t, "uninstall", (*deployment).uninstall)
}

// phase runs a part as a subtest. The parts that follow need it, so its failure ends the test.
func (d *deployment) phase(t *testing.T, name string, run func(*deployment)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) {
		o, part := *d.controllerTest, *d
		o.t, o.Env = t, d.Env.For(t)
		o.runner, part.controllerTest = o.Env, &o
		run(&part)
		d.image, d.xray = part.image, part.xray
	}) {
		t.FailNow()
	}
}

// marks has the leader mark a pod.
func (d *deployment) marks() {
	d.t.Helper()
	leader := d.leader("")
	if log := d.kubectl("logs", "-n", name, podOf(leader)); !strings.Contains(log, `"from":"the service account of the pod"`) || !strings.Contains(log, `"identity":"`+leader+`","me":true`) {
		d.t.Errorf("the leader's log:\n%s", log)
	}
	d.policy()
	d.pod("a")
	d.marked("a")
}

// A deployment is what the manifests make in a kind cluster.
type deployment struct {
	*controllerTest
	ws    workspace.Workspace
	c     *cluster.Cluster
	image v1.Image
	cache string // of kubectl
	xray  string // the port where the pods listen for the X-ray
}

func (d *deployment) kubectl(args ...string) string {
	d.t.Helper()
	output, err := d.runKubectl(d.t.Context(), args...)
	fatal.If(d.t, err)
	return output
}

// runKubectl runs kubectl with a cache of its own. In the shared one, the second
// version of policies would outlive the test.
func (d *deployment) runKubectl(ctx context.Context, args ...string) (string, error) {
	return proc.Output(ctx, proc.Cmd{Path: d.ws.Bin("kubectl"), Args: args, Dir: d.ws.Root, Env: append(d.c.Environ(), "KUBECACHEDIR="+d.cache)})
}

// loadImage builds the image at two paths, and loads it.
func (d *deployment) loadImage() {
	d.t.Helper()
	here, err := image.BuildController(d.Context(), d.ws.Root, runtime.GOARCH)
	fatal.If(d.t, err)
	there, err := image.BuildController(d.Context(), d.sources(), runtime.GOARCH)
	fatal.If(d.t, err)
	first, err := here.Digest()
	fatal.If(d.t, err)
	second, err := there.Digest()
	fatal.If(d.t, err)
	if first != second {
		d.t.Errorf("%s at one path, %s at another", first, second)
	}
	layers, err := here.Layers()
	fatal.If(d.t, err)
	var size int64
	for _, layer := range layers {
		files, err := layer.Uncompressed()
		fatal.If(d.t, err)
		n, err := io.Copy(io.Discard, files)
		fatal.If(d.t, errors.Join(err, files.Close()))
		size += n
	}
	if size > largest {
		d.t.Errorf("the image has %d bytes, more than %d", size, largest)
	}
	d.t.Logf("the image has %.1f MB", float64(size)/1e6)
	d.image = here
	d.loadAs(image.Controller, here)
}

// sources copies what the image is built from to another path.
func (d *deployment) sources() string {
	d.t.Helper()
	root := filepath.Join(d.t.TempDir(), "another path")
	for _, part := range []string{"go.mod", "go.sum", "05-crd-go/pkg", "06-controller", "07-in-cluster/policy-controller", "internal/xray/report", "06-controller/loop/loopreport"} {
		fatal.If(d.t, filepath.WalkDir(filepath.Join(d.ws.Root, part), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			copied := filepath.Join(root, strings.TrimPrefix(path, d.ws.Root))
			return errors.Join(os.MkdirAll(filepath.Dir(copied), 0o755), os.WriteFile(copied, data, 0o644))
		}))
	}
	return root
}

func (d *deployment) deploy() {
	d.t.Helper()
	d.kubectl("apply", "--server-side", "-k", "07-in-cluster/config/crds")
	fatal.If(d.t, crdwait.Established(d.Context(), d.Config, definitions...))
	d.apply()
}

var definitions = []string{"healthcheckpolicies.policy.k8s-go.openshift.org", "icecreams.controller.nicoleh.io"}

func (d *deployment) apply() {
	d.t.Helper()
	d.kubectl("apply", "-k", "07-in-cluster/config/overlays/ha")
	d.rolledOut()
}

// leader waits until somebody else than before leads, and returns its identity.
func (d *deployment) leader(before string) string {
	d.t.Helper()
	var holder string
	d.Eventually(time.Minute, func(ctx context.Context) error {
		lease, err := d.client.CoordinationV1().Leases(name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder = *lease.Spec.HolderIdentity; holder == "" || holder == before {
			return fmt.Errorf("the holder is %q", holder)
		}
		return nil
	})
	return holder
}

func podOf(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// metrics asks both pods, with the role of the manifests for those who may read them.
func (d *deployment) metrics() {
	d.t.Helper()
	stranger, scraper := d.token("stranger"), d.token("scraper")
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: d.namespace + "-metrics"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name + "-metrics"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "scraper", Namespace: d.namespace}}}
	if _, err := d.client.RbacV1().ClusterRoleBindings().Create(d.Context(), binding, metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := d.client.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(d.Context()), binding.Name, metav1.DeleteOptions{}); err != nil {
			d.t.Error(err)
		}
	})
	pods, err := d.client.CoreV1().Pods(name).List(d.Context(), metav1.ListOptions{})
	fatal.If(d.t, err)
	leader := podOf(d.leader(""))
	for _, pod := range pods.Items {
		var body string
		d.Eventually(time.Minute, func(context.Context) (err error) { // the API server learns of the role a moment later
			var code int
			if code, body, err = d.scrape(&pod, scraper); err == nil && code != http.StatusOK {
				err = fmt.Errorf("with the right: %d %s", code, body)
			}
			return err
		})
		leads := 0
		if pod.Name == leader {
			leads = 1
		}
		if series := fmt.Sprintf("\nleader_election_master_status{name=%q} %d\n", name, leads); !strings.Contains(body, series) {
			d.t.Errorf("pod %s: no %s in\n%s", pod.Name, series, body)
		}
		for who, tc := range map[string]struct {
			token string
			code  int
		}{"no token": {"", 401}, "a wrong token": {"wrong", 401}, "no right": {stranger, 403}} {
			if code, body, err := d.scrape(&pod, tc.token); err != nil || code != tc.code || strings.Contains(body, "workqueue") {
				d.t.Errorf("pod %s, %s: %d %v, want %d\n%s", pod.Name, who, code, err, tc.code, body)
			}
		}
	}
}

// scrape asks a pod for its metrics, from its node.
func (d *deployment) scrape(pod *corev1.Pod, token string) (code int, body string, err error) {
	command := []string{"curl", "--silent", "--show-error", "--insecure", "--max-time", "10", "--write-out", "\n%{http_code}"}
	if token != "" {
		command = append(command, "--header", "Authorization: Bearer "+token)
	}
	output, err := runOnNode(d.Context(), pod, append(command, "https://"+net.JoinHostPort(pod.Status.PodIP, "8443")+"/metrics")...)
	if err != nil {
		return 0, "", err
	}
	end := strings.LastIndex(output, "\n")
	code, err = strconv.Atoi(output[end+1:])
	return code, output[:end+1], err
}

func (d *deployment) podSecurity() {
	d.t.Helper()
	_, err := d.client.CoreV1().Pods(name).Create(d.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "root"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "root", Image: cluster.PauseImage}}}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest"`) {
		d.t.Errorf("a pod that may become root: %v", err)
	}
}

// wrongOrder removes the controller before a policy. The policy waits for somebody
// who takes its marks back. The cure is to start the controller again.
func (d *deployment) wrongOrder() {
	d.t.Helper()
	ctx := d.Context()
	policies := d.objects.PolicyV1alpha1().HealthCheckPolicies(d.namespace)
	d.kubectl("delete", "-n", name, "deployment", name, "--wait", "--cascade=foreground")
	fatal.If(d.t, policies.Delete(ctx, "example", metav1.DeleteOptions{}))
	policy, err := policies.Get(ctx, "example", metav1.GetOptions{})
	if err != nil || policy.DeletionTimestamp == nil || len(policy.Finalizers) != 1 {
		d.t.Fatalf("without a controller the policy is %+v, %v", policy, err)
	}
	d.marked("a")
	d.apply()
	d.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.Get(ctx, "example", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the policy is still there"))
	})
	pods, err := d.client.CoreV1().Pods(d.namespace).List(ctx, metav1.ListOptions{LabelSelector: "lacks"})
	if err != nil || len(pods.Items) > 0 {
		d.t.Errorf("%d pods are still marked, %v", len(pods.Items), err)
	}
}

// uninstall follows the README: the objects, the controller, the definitions.
func (d *deployment) uninstall() {
	d.t.Helper()
	ctx := d.Context()
	d.policy() // with something to take back
	d.marked("a")
	d.kubectl("delete", "healthcheckpolicies,icecreams", "--all", "--all-namespaces")
	d.kubectl("delete", "-k", "07-in-cluster/config/overlays/ha")
	d.kubectl("delete", "-k", "07-in-cluster/config/crds")
	if err := crdwait.Gone(ctx, d.Config, definitions...); err != nil {
		d.t.Error(err)
	}
	const ours = "app.kubernetes.io/part-of=" + name
	if left := d.kubectl("get", "namespaces,clusterroles,clusterrolebindings", "-l", ours, "-o", "name"); left != "" {
		d.t.Errorf("left behind:\n%s", left)
	}
	if _, err := d.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		d.t.Errorf("the namespace: %v", err)
	}
	pods, err := d.client.CoreV1().Pods(d.namespace).List(ctx, metav1.ListOptions{LabelSelector: "lacks"})
	if err != nil || len(pods.Items) > 0 {
		d.t.Errorf("%d pods are still marked, %v", len(pods.Items), err)
	}
}

// remove leaves nothing behind, wherever the test has ended.
func (d *deployment) remove() {
	ctx := context.WithoutCancel(d.Context())
	remove := func(dir string) {
		if _, err := d.runKubectl(ctx, "delete", "--ignore-not-found", "-k", "07-in-cluster/config/"+dir); err != nil {
			d.t.Error(err)
		}
	}
	remove("overlays/ha") // the controller goes first, because it would hold the policies again
	// The definition may be gone.
	if err := d.Free(ctx, v1alpha1.HealthCheckPolicyResource); err != nil && !apierrors.IsNotFound(err) {
		d.t.Error(err)
	}
	remove("crds")
}
