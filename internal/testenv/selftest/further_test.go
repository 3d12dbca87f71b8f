package selftest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  resources: [{group: "", resources: [configmaps]}]
- level: None
`

// A further kwok cluster has its own flags, is told apart from the first one
// when parts of it die, and leaves nothing behind.
func TestFurtherKwokCluster(t *testing.T) {
	e := testenv.New(t)
	ws, first := e.Workspace(), e.Cluster()
	if first.Components() == nil {
		t.Skipf("needs the control plane's binaries, which a run on %s does not build; run it with CLUSTER=kwok", first.Name())
	}
	ctx := e.Context()
	options := cluster.KwokOptions{
		AuditPolicy:  auditPolicy,
		FeatureGates: map[string]bool{"CBORServingAndStorage": true},
		ExtraArgs: map[string][]string{
			"etcd":           {"snapshot-count=5000", "max-wals=2"},
			"kube-apiserver": {"service-cluster-ip-range=10.77.0.0/24", "max-requests-inflight=200"},
		},
	}
	further, err := cluster.NewKwok(ws, "selftest", options)
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := further.Down(context.WithoutCancel(ctx), io.Discard); err != nil {
			t.Error(err)
		}
	})
	var out strings.Builder
	if err := further.Up(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !further.Created() {
		t.Error("Up does not say that it has made the cluster")
	}
	config, err := further.Config()
	fatal.If(t, err)
	client, err := further.Client()
	fatal.If(t, err)
	if service, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil || service.Spec.ClusterIP != "10.77.0.1" {
		t.Errorf("service kubernetes: %v, %v; the flag of the API server has no effect", service.Spec.ClusterIP, err)
	}
	metrics, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil || !strings.Contains(string(metrics), `kubernetes_feature_enabled{name="CBORServingAndStorage",stage="ALPHA"} 1`) {
		t.Errorf("the feature gate is not on (%v)", err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen-by-audit"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(10*time.Second, func(context.Context) error {
		log, err := os.ReadFile(further.AuditLog())
		if err == nil && !strings.Contains(string(log), `"name":"seen-by-audit"`) {
			err = errors.New("the audit log does not hold the request")
		}
		return err
	})

	// The same name with other options is not what is up.
	other, err := cluster.NewKwok(ws, "selftest", cluster.KwokOptions{})
	fatal.If(t, err)
	if state, detail := other.State(ctx); state != cluster.Broken {
		t.Errorf("with other options the cluster is %s (%s)", state, detail)
	}

	state := func(c *cluster.Cluster, want cluster.State, mention string) {
		t.Helper()
		if got, detail := c.State(ctx); got != want || !strings.Contains(detail, mention) {
			t.Errorf("%s is %s (%s), want %s (%s)", c.Name(), got, detail, want, mention)
		}
	}
	for _, component := range []string{"kube-apiserver", "etcd"} {
		fatal.If(t, further.Kill(ctx, component))
		if component == "kube-apiserver" { // whose port must be free at once
			listener, err := net.Listen("tcp", strings.TrimPrefix(config.Host, "https://"))
			fatal.If(t, err)
			fatal.If(t, listener.Close())
		}
		state(further, cluster.Broken, component)
		state(first, cluster.Ready, "")
	}
	for _, component := range []string{"etcd", "kube-apiserver"} {
		fatal.If(t, further.Start(ctx, component))
	}
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps("default").Get(ctx, cm.Name, metav1.GetOptions{})
		return err
	})

	// What another command of this clone finds, it repairs, with the same options.
	fatal.If(t, further.Kill(ctx, "kube-scheduler"))
	found, _, err := cluster.Select(ctx, ws, "kwok-selftest")
	fatal.If(t, err)
	out.Reset()
	if err := found.Up(ctx, &out); err != nil || found.Created() || !strings.Contains(out.String(), "its objects are still there") {
		t.Errorf("repair: %v, created %v\n%s", err, found.Created(), out.String())
	}
	state(further, cluster.Ready, "")

	fatal.If(t, further.Down(ctx, io.Discard))
	state(further, cluster.Absent, "")
	state(first, cluster.Ready, "")
	if _, err := os.Stat(ws.Path("kwok-selftest")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Down has left files behind (%v)", err)
	}
}

// Somebody's cluster whose nodes are simulated runs no containers, and says so.
func TestExistingClusterIsAsked(t *testing.T) {
	e := testenv.New(t)
	first := e.Cluster()
	if first.Name() == "existing" {
		t.Skip("compares what an existing cluster says with what one of ours is; run it with CLUSTER=kwok or kind")
	}
	want, err := first.Containers(e.Context())
	fatal.If(t, err)
	if got, err := e.Existing().Containers(e.Context()); err != nil || got != want {
		t.Errorf("as an existing cluster it says %v (%v), as %s %v", got, err, first.Name(), want)
	}
}
