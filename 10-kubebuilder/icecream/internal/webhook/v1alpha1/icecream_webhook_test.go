package v1alpha1

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// The API server calls the webhooks by TLS, as in a cluster.
var _ = Describe("Icecream Webhook", func() {
	var namespace string

	BeforeEach(func() {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "icecream-"}}
		Expect(k8sClient.Create(ctx, ns)).To(Succeed())
		namespace = ns.Name
	})

	icecream := func(name, deployment string) *controllerv1alpha1.Icecream {
		return &controllerv1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: controllerv1alpha1.IcecreamSpec{DeploymentName: deployment}}
	}
	beRefused := func(err error) {
		GinkgoHelper()
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("spec.deploymentName: Invalid value: \"cone\": is the Deployment of the Icecream first")))
	}

	It("names the Deployment after the Icecream", func() {
		ice := icecream("vanilla", "")
		Expect(k8sClient.Create(ctx, ice)).To(Succeed())
		Expect(ice.Spec.DeploymentName).To(Equal("vanilla"))
		named := icecream("mint", "cup")
		Expect(k8sClient.Create(ctx, named)).To(Succeed())
		Expect(named.Spec.DeploymentName).To(Equal("cup"))
	})

	It("refuses the Deployment of another Icecream", func() {
		Expect(k8sClient.Create(ctx, icecream("first", "cone"))).To(Succeed())
		beRefused(k8sClient.Create(ctx, icecream("second", "cone")))
		second := icecream("second", "cup")
		Expect(k8sClient.Create(ctx, second)).To(Succeed())
		second.Spec.DeploymentName = "cone"
		beRefused(k8sClient.Update(ctx, second))
	})

	It("serves a new certificate without a restart", func() {
		old := served()
		certificate, key := newCertificate()

		By("trusting the new one beside the old one")
		Expect(trust(certificate)).To(Succeed())

		By("replacing the files")
		dir := testEnv.WebhookInstallOptions.LocalServingCertDir
		Expect(os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600)).To(Succeed())
		block, _ := pem.Decode(certificate)
		wanted, err := x509.ParseCertificate(block.Bytes)
		Expect(err).NotTo(HaveOccurred())
		Expect(old.SerialNumber).NotTo(Equal(wanted.SerialNumber))
		Eventually(func() *big.Int { return served().SerialNumber }, 30*time.Second, 100*time.Millisecond).Should(Equal(wanted.SerialNumber))

		By("calling the webhooks")
		ice := icecream("vanilla", "")
		Expect(k8sClient.Create(ctx, ice)).To(Succeed())
		Expect(ice.Spec.DeploymentName).To(Equal("vanilla"))
	})
})

// served returns the certificate that the webhook server shows.
func served() *x509.Certificate {
	GinkgoHelper()
	options := testEnv.WebhookInstallOptions
	conn, err := tls.Dial("tcp", net.JoinHostPort(options.LocalServingHost, fmt.Sprint(options.LocalServingPort)), &tls.Config{InsecureSkipVerify: true})
	Expect(err).NotTo(HaveOccurred())
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// newCertificate returns a certificate that signs itself, and its key.
func newCertificate() (certificate, key []byte) {
	GinkgoHelper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "new"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(testEnv.WebhookInstallOptions.LocalServingHost)},
		IsCA:        true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	Expect(err).NotTo(HaveOccurred())
	keyDER, err := x509.MarshalECPrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// trust adds a certificate to those by which the API server knows the webhooks.
func trust(certificate []byte) error {
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	if err := k8sClient.List(ctx, &mutating); err != nil {
		return err
	}
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	if err := k8sClient.List(ctx, &validating); err != nil {
		return err
	}
	var changed []client.Object
	for i := range mutating.Items {
		for j := range mutating.Items[i].Webhooks {
			with := &mutating.Items[i].Webhooks[j].ClientConfig
			with.CABundle = append(with.CABundle, certificate...)
		}
		changed = append(changed, &mutating.Items[i])
	}
	for i := range validating.Items {
		for j := range validating.Items[i].Webhooks {
			with := &validating.Items[i].Webhooks[j].ClientConfig
			with.CABundle = append(with.CABundle, certificate...)
		}
		changed = append(changed, &validating.Items[i])
	}
	for _, o := range changed {
		if err := k8sClient.Update(ctx, o); err != nil {
			return err
		}
	}
	return nil
}
