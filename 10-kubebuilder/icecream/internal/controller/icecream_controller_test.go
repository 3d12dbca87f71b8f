package controller

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// envtest has no controllers but ours: nobody makes pods, and nobody collects garbage. What
// needs those is tested with a cluster, by ../../../e2e_test.go.
var _ = Describe("Icecream Controller", func() {
	var namespace string

	BeforeEach(func() {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "icecream-"}}
		Expect(k8sClient.Create(ctx, ns)).To(Succeed())
		namespace = ns.Name
	})

	icecream := func(name, deployment string) *controllerv1alpha1.Icecream {
		GinkgoHelper()
		ice := &controllerv1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: controllerv1alpha1.IcecreamSpec{DeploymentName: deployment, Replicas: ptr.To(int32(2))}}
		Expect(k8sClient.Create(ctx, ice)).To(Succeed())
		return ice
	}
	owned := func(ice *controllerv1alpha1.Icecream, want metav1.ConditionStatus, reason string) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(ice), ice)).To(Succeed())
			c := meta.FindStatusCondition(ice.Status.Conditions, controllerv1alpha1.ConditionOwned)
			g.Expect(c).NotTo(BeNil())
			g.Expect(c.Status).To(Equal(want))
			g.Expect(c.Reason).To(Equal(reason))
		}, 20*time.Second).Should(Succeed())
	}

	It("gives an Icecream a Deployment, and corrects it", func() {
		ice := icecream("vanilla", "cone")
		owned(ice, metav1.ConditionTrue, controllerv1alpha1.ReasonCreated)
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cone"}}
		Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
		Expect(metav1.IsControlledBy(d, ice)).To(BeTrue())
		Expect(d.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))

		Expect(k8sClient.Patch(ctx, d, client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"replicas":7}}`)))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
			g.Expect(d.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
		}, 20*time.Second).Should(Succeed())
	})

	It("waits for a name that somebody else has", func() {
		first := icecream("first", "cone")
		owned(first, metav1.ConditionTrue, controllerv1alpha1.ReasonCreated)
		second := icecream("second", "cone")
		owned(second, metav1.ConditionFalse, controllerv1alpha1.ReasonErrResourceExists)
		// Nothing but the event of the Deployment says that the name is free.
		Expect(k8sClient.Delete(ctx, first)).To(Succeed())
		Expect(k8sClient.Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cone"}})).To(Succeed())
		owned(second, metav1.ConditionTrue, controllerv1alpha1.ReasonCreated)
	})
})
