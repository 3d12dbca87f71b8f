package incluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The manifests of a new repository are accepted, by a namespace that enforces Pod
// Security "restricted", too, and its replicas stand on both nodes. Their containers
// run in TestNewAsPods.
func TestNewDeploys(t *testing.T) {
	e := testenv.New(t)
	ws, c := e.Workspace(), e.Cluster()
	if c.Components() == nil {
		t.Skip("the image is in no registry, so only simulated containers start; run it with CLUSTER=kwok")
	}
	dir, bin := filepath.Join(ws.Root, "internal", "newrepo", "repository"), t.TempDir()
	fatal.If(t, os.Symlink(ws.Bin("kubectl"), filepath.Join(bin, "kubectl")))
	env := environ(ws, bin, "KUBECONFIG="+c.Kubeconfig())
	t.Cleanup(func() { run(t, e, dir, env, "make", "undeploy") })
	run(t, e, dir, env, "make", "deploy")

	const name = "widget-controller"
	pods, err := e.Client.CoreV1().Pods(name).List(e.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	fatal.If(t, err)
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		nodes[pod.Spec.NodeName] = true
	}
	if len(pods.Items) != 2 || len(nodes) != 2 {
		t.Errorf("%d pods on %v, want two on two nodes", len(pods.Items), nodes)
	}
	_, service := e.Client.CoreV1().Services(name).Get(e.Context(), name+"-metrics", metav1.GetOptions{})
	_, policy := e.Client.NetworkingV1().NetworkPolicies(name).Get(e.Context(), name, metav1.GetOptions{})
	_, reader := e.Client.RbacV1().ClusterRoles().Get(e.Context(), name+"-metrics", metav1.GetOptions{})
	if err := errors.Join(service, policy, reader); err != nil {
		t.Error(err)
	}
}
