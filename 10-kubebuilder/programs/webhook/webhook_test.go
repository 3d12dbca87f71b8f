package webhook

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("The webhook of Deployments", func() {
	create := func(replicas int32, keep string) *appsv1.Deployment {
		GinkgoHelper()
		app := map[string]string{"app": "web"}
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "web-", Labels: map[string]string{"keep": keep}},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas,
				Selector: &metav1.LabelSelector{MatchLabels: app},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: app},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "workshop/pause:1"}}},
				},
			},
		}
		Expect(k8sClient.Create(ctx, d)).To(Succeed())
		return d
	}
	scale := func(d *appsv1.Deployment, replicas int32) error {
		now := d.DeepCopy()
		now.Spec.Replicas = &replicas
		return k8sClient.Patch(ctx, now, client.MergeFrom(d))
	}
	remove := func(d *appsv1.Deployment) error {
		return k8sClient.Delete(ctx, d, client.Preconditions{UID: ptr.To(d.UID)})
	}

	It("lets replicas double", func() {
		Expect(scale(create(3, "false"), 6)).To(Succeed())
		Expect(scale(create(0, "false"), 2)).To(Succeed())
	})
	It("lets no more than that", func() {
		Expect(scale(create(3, "false"), 7)).To(MatchError(ContainSubstring("more than twice")))
		Expect(scale(create(0, "false"), 3)).To(MatchError(ContainSubstring("more than twice")))
	})
	It("lets there be fewer", func() {
		Expect(scale(create(3, "false"), 1)).To(Succeed())
	})
	It("keeps what is to be kept", func() {
		Expect(remove(create(1, "true"))).To(MatchError(ContainSubstring("keep=true")))
	})
	It("lets anything else go", func() {
		Expect(remove(create(1, "false"))).To(Succeed())
	})
})
