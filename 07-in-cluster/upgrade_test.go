package incluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/image"
)

const nextImage = "workshop/policy-controller:2"

// upgrade rolls out a new image. The API server goes away in the middle of that.
func (d *deployment) upgrade() {
	d.t.Helper()
	d.loadNext()
	d.change(fmt.Sprintf(`{"op":"replace","path":"/spec/template/spec/containers/0/image","value":%q}`, nextImage))
	d.Eventually(time.Minute, func(ctx context.Context) error {
		pods, err := d.client.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Image == nextImage {
				return nil
			}
		}
		return errors.New("no pod has the new image")
	})
	d.serverAway()
	d.rolledOut()
	d.Eventually(time.Minute, func(ctx context.Context) error {
		pods, err := d.client.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Image != nextImage {
				return fmt.Errorf("pod %s has the image %s", pod.Name, pod.Spec.Containers[0].Image)
			}
		}
		return nil
	})
	d.pod("upgraded")
	d.marked("upgraded")
}

// loadNext loads an image with another digest.
func (d *deployment) loadNext() {
	d.t.Helper()
	config, err := d.image.ConfigFile()
	fatal.If(d.t, err)
	config = config.DeepCopy()
	config.Config.Labels["org.opencontainers.image.version"] = "2"
	next, err := mutate.ConfigFile(d.image, config)
	fatal.If(d.t, err)
	d.loadAs(nextImage, next)
}

func (d *deployment) loadAs(tag string, img v1.Image) {
	d.t.Helper()
	file := filepath.Join(d.t.TempDir(), "image.tar")
	fatal.If(d.t, image.Write(file, tag, img))
	d.LoadImages(file)
}

// moveStorage gives policies a second version, and stores them in it, while a
// controller works with the first one: what step 04 does by hand.
func (d *deployment) moveStorage() {
	d.t.Helper()
	ctx := d.Context()
	client := crdtest.Client(d.t, d.Env).ApiextensionsV1().CustomResourceDefinitions()
	crd := definitions[0]
	fatal.If(d.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := client.Get(ctx, crd, metav1.GetOptions{})
		if err != nil {
			return err
		}
		next := *definition.Spec.Versions[0].DeepCopy()
		next.Name = "v1beta1"
		definition.Spec.Versions[0].Storage = false
		definition.Spec.Versions = append(definition.Spec.Versions, next)
		_, err = client.Update(ctx, definition, metav1.UpdateOptions{})
		return err
	}))
	stored := func(want ...string) {
		d.t.Helper()
		d.Eventually(time.Minute, func(ctx context.Context) error {
			definition, err := client.Get(ctx, crd, metav1.GetOptions{})
			if err == nil && !slices.Equal(definition.Status.StoredVersions, want) {
				err = fmt.Errorf("status.storedVersions is %v, want %v", definition.Status.StoredVersions, want)
			}
			return err
		})
	}
	stored("v1alpha1", "v1beta1")
	fatal.If(d.t, crdwait.Established(ctx, d.Config, crd))
	policies := d.Dynamic.Resource(v1alpha1.HealthCheckPolicyResource)
	list, err := policies.List(ctx, metav1.ListOptions{})
	fatal.If(d.t, err)
	for _, old := range list.Items {
		// The API server switches a moment later. Then the first write, which may be the
		// controller's, moves the object, even one that changes nothing.
		d.Eventually(time.Minute, func(ctx context.Context) error {
			object, err := policies.Namespace(old.GetNamespace()).Get(ctx, old.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			object, err = policies.Namespace(old.GetNamespace()).Update(ctx, object, metav1.UpdateOptions{})
			if err == nil && object.GetResourceVersion() == old.GetResourceVersion() {
				err = fmt.Errorf("%s has not been written again", old.GetName())
			}
			return err
		})
	}
	fatal.If(d.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := client.Get(ctx, crd, metav1.GetOptions{})
		if err != nil {
			return err
		}
		definition.Status.StoredVersions = []string{"v1beta1"}
		_, err = client.UpdateStatus(ctx, definition, metav1.UpdateOptions{})
		return err
	}))
	stored("v1beta1")
	d.pod("moved")
	d.marked("moved")
}
