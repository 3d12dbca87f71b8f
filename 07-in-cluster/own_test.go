package incluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/testfile"
)

// The image that make image builds of a learner's own program, here simple, runs in a pod
// with the rights of the lesson's manifest, as nobody, and does its work.
func TestOwnProgramAsPod(t *testing.T) {
	e := testenv.New(t)
	e.NeedsImages()
	ws, c := e.Workspace(), e.Cluster()
	crdtest.Share(t, e, icecreams, policies)
	client, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	said := e.MakeImage("06-controller/simple")
	if !strings.Contains(said, "workshop/simple:1") || !strings.Contains(said, "It is on the nodes of the kind cluster") {
		t.Fatalf("make image has said:\n%s", said)
	}
	manifest, err := os.ReadFile("own/icecream.yaml")
	fatal.If(t, err)
	file := filepath.Join(t.TempDir(), "icecream.yaml")
	testfile.Write(t, file, strings.ReplaceAll(string(manifest), "workshop-07", e.Namespace))
	run(t, e, ws.Root, c.Environ(), ws.Bin("kubectl"), "apply", "--filename", file)
	replicas := int32(1)
	if _, err := client.IcecreamV1alpha1().Icecreams(e.Namespace).Create(e.Context(), &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: &replicas}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(2*time.Minute, func(ctx context.Context) error {
		ice, err := client.IcecreamV1alpha1().Icecreams(e.Namespace).Get(ctx, "vanilla", metav1.GetOptions{})
		if err == nil && (ice.Status.AvailableReplicas == nil || *ice.Status.AvailableReplicas != 1) {
			err = errors.New("no replica is available")
		}
		return err
	})
}
