package webhooks

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most tests wait for the server, not for a core
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }

const (
	icecreamCRD = "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml"
	policyCRD   = "../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml"

	ca     = "cert-keeper-ca"
	secret = "webhook-tls"
)

// A setup is a webhook with its certificate, in the namespace of a test.
type setup struct {
	*testenv.Env
	t       testing.TB
	own     versioned.Interface
	address string   // of this machine, as the API server reaches it
	listens string   // address and port of the webhook
	dir     string   // of the certificate
	environ []string // of cert-keeper
	keeper  *testenv.Process
	webhook *testenv.Process
}

// newSetup prepares a namespace. Nothing runs yet.
func newSetup(t testing.TB) *setup {
	t.Helper()
	e := testenv.New(t)
	crdtest.Share(t, e, icecreamCRD, policyCRD)
	own, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	s := &setup{Env: e, t: t, own: own, dir: filepath.Join(t.TempDir(), "certificate")}
	r := e.Run(testenv.Command{Path: e.Program("./08-webhooks/address")})
	if s.address = strings.TrimSpace(r.Stdout); r.ExitCode != 0 || s.address == "" {
		t.Fatalf("no address: %s", r.Stderr)
	}
	return s
}

// service asks for a certificate.
func (s *setup) service() {
	s.t.Helper()
	if _, err := s.Client.CoreV1().Services(s.Namespace).Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook", Annotations: map[string]string{
			"cert-keeper.k8s-go.openshift.org/secret": secret, "cert-keeper.k8s-go.openshift.org/hosts": s.address}},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
	}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// keep starts cert-keeper.
func (s *setup) keep(settle time.Duration, args []string, options ...testenv.ProgramOption) {
	s.t.Helper()
	s.keeper = s.Start(testenv.Command{Path: s.Program("./08-webhooks/cert-keeper", options...), Env: s.environ, Timeout: 5 * time.Minute,
		Args: append([]string{"-namespace", s.Namespace, "-allow-hosts", s.address, "-settle", settle.String()}, args...)})
}

// mount brings the certificate into the folder, as late as a kubelet might.
func (s *setup) mount(delay time.Duration) {
	s.t.Helper()
	s.Start(testenv.Command{Path: s.Program("./08-webhooks/secret-volume"), Timeout: 5 * time.Minute,
		Args: []string{"-namespace", s.Namespace, "-secret", secret, "-dir", s.dir, "-delay", delay.String()}})
}

var listening = regexp.MustCompile(`"Listening" address="([^"]+)"`)

// serve starts the webhook, on the port that it had before if it has run before, and waits until it listens.
func (s *setup) serve(args ...string) {
	s.t.Helper()
	if s.listens == "" {
		var err error
		s.listens, err = freeport.Address(s.address)
		fatal.If(s.t, err)
	}
	s.webhook = s.Start(testenv.Command{Path: s.Program("./08-webhooks/webhook"), Timeout: 5 * time.Minute,
		Args: append([]string{"-listen", s.listens, "-cert-dir", s.dir}, args...)})
	s.Eventually(time.Minute, func(context.Context) error {
		found := listening.FindStringSubmatch(s.webhook.Stderr())
		if found == nil {
			return fmt.Errorf("the webhook does not listen:\n%s", s.webhook.Stderr())
		}
		s.listens = found[1]
		return nil
	})
}

// register tells the API server about the webhook, as webhooks.yaml does, with changes.
func (s *setup) register(change func(*admissionregistrationv1.ValidatingWebhookConfiguration)) {
	s.t.Helper()
	data, err := os.ReadFile("webhooks.yaml")
	fatal.If(s.t, err)
	for old, new := range map[string]string{"ADDRESS": s.listens, "inject-ca: workshop-08/": "inject-ca: " + s.Namespace + "/", "metadata.name: workshop-08": "metadata.name: " + s.Namespace, "name: workshop-08": "name: " + s.Namespace} {
		data = bytes.ReplaceAll(data, []byte(old), []byte(new))
	}
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	documents := bytes.Split(data, []byte("\n---\n"))
	for i, o := range []any{mutating, validating} {
		fatal.If(s.t, yaml.UnmarshalStrict(documents[i], o))
	}
	change(validating)
	client := s.Client.AdmissionregistrationV1()
	s.AtEnd(
		func(ctx context.Context) error {
			return client.MutatingWebhookConfigurations().Delete(ctx, s.Namespace, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return client.ValidatingWebhookConfigurations().Delete(ctx, s.Namespace, metav1.DeleteOptions{})
		})
	if _, err := client.MutatingWebhookConfigurations().Create(s.Context(), mutating, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := client.ValidatingWebhookConfigurations().Create(s.Context(), validating, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func unchanged(*admissionregistrationv1.ValidatingWebhookConfiguration) {}

// inForce waits until the API server asks the mutating webhooks, and gets an answer.
//
// An API server that decides a request just while it hears of a new caBundle may keep the old one until the next
// change: mutatingWebhookConfigurationManager (k8s.io/apiserver v0.36.3) forgets what it had made of a configuration,
// and an evaluation that is under way then stores it again (seen in one of 600 attempts). So what stays unknown is
// changed once more.
func (s *setup) inForce() {
	s.t.Helper()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	unknown := 0
	s.Eventually(time.Minute, func(ctx context.Context) error {
		made, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("probe", ""), dry)
		if err == nil && made.Spec.DeploymentName != "probe" {
			err = fmt.Errorf("the Deployment is called %q", made.Spec.DeploymentName)
		}
		if err != nil && strings.Contains(err.Error(), "signed by unknown authority") {
			if unknown++; unknown == 100 {
				change, client := []byte(`{"metadata":{"annotations":{"again":""}}}`), s.Client.AdmissionregistrationV1()
				_, err1 := client.MutatingWebhookConfigurations().Patch(ctx, s.Namespace, types.MergePatchType, change, metav1.PatchOptions{})
				_, err2 := client.ValidatingWebhookConfigurations().Patch(ctx, s.Namespace, types.MergePatchType, change, metav1.PatchOptions{})
				err = errors.Join(err, err1, err2)
			}
		}
		return err
	})
	s.Eventually(time.Minute, func(ctx context.Context) error {
		policy, err := s.own.PolicyV1alpha1().HealthCheckPolicies(s.Namespace).Create(ctx, policy("probe", policyv1alpha1.ActionLabel), dry)
		if err == nil && policy.Spec.PodLabel == "" {
			err = fmt.Errorf("the policy has no label")
		}
		return err
	})
}

// all starts everything.
func (s *setup) all(args ...string) {
	s.t.Helper()
	s.service()
	s.keep(3*time.Second, nil)
	s.mount(0)
	s.serve(args...)
	s.register(unchanged)
	s.inForce()
}

func icecream(name, deployment string) *icecreamv1alpha1.Icecream {
	return &icecreamv1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: icecreamv1alpha1.IcecreamSpec{DeploymentName: deployment}}
}

func policy(name string, action policyv1alpha1.Action) *policyv1alpha1.HealthCheckPolicy {
	return &policyv1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1alpha1.HealthCheckPolicySpec{Action: action}}
}

// rotate asks for a new CA, and waits until the old one is not trusted any more.
func (s *setup) rotate() {
	s.t.Helper()
	secrets := s.Client.CoreV1().Secrets(s.Namespace)
	before, err := secrets.Get(s.Context(), ca, metav1.GetOptions{})
	fatal.If(s.t, err)
	if _, err := secrets.Patch(s.Context(), ca, types.MergePatchType, []byte(`{"metadata": {"annotations": {"cert-keeper.k8s-go.openshift.org/rotate": "now"}}}`), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually(2*time.Minute, func(ctx context.Context) error {
		now, err := secrets.Get(ctx, ca, metav1.GetOptions{})
		if err == nil && (bytes.Equal(now.Data["signing.crt"], before.Data["signing.crt"]) || !bytes.Equal(now.Data["signing.crt"], now.Data["trusted.crt"])) {
			err = errors.New("the rotation has not ended")
			if s.keeper != nil { // in a pod it is none of our processes
				err = fmt.Errorf("%w:\n%s", err, s.keeper.Stderr())
			}
		}
		return err
	})
}

// rate is how many changes load makes in a second, where that takes long: fewer where other packages are tested beside it.
func rate() string {
	if testenv.ClusterName() == "kind" {
		return "200" // if the machine can
	}
	return "25"
}

// What is being deleted loses its finalizers also while the webhook is away; everything else waits for it.
func TestOnItsWayOut(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.all()
	policies := s.own.PolicyV1alpha1().HealthCheckPolicies(s.Namespace)
	for _, name := range []string{"going", "staying"} {
		p := policy(name, policyv1alpha1.ActionLabel)
		p.Finalizers = []string{"test.k8s-go.dev/kept"}
		_, err := policies.Create(s.Context(), p, metav1.CreateOptions{})
		fatal.If(t, err)
	}
	fatal.If(t, s.webhook.Signal(os.Interrupt))
	s.webhook.Wait()
	fatal.If(t, policies.Delete(s.Context(), "going", metav1.DeleteOptions{}))
	let := []byte(`{"metadata": {"finalizers": null}}`)
	if _, err := policies.Patch(s.Context(), "staying", types.MergePatchType, let, metav1.PatchOptions{}); err == nil {
		t.Error("a policy that stays was changed without its webhook")
	}
	if _, err := policies.Patch(s.Context(), "going", types.MergePatchType, let, metav1.PatchOptions{}); err != nil {
		t.Errorf("taking away the finalizer of a policy that is being deleted: %v", err)
	}
	s.serve()
	s.inForce()
	_, err := policies.Patch(s.Context(), "staying", types.MergePatchType, let, metav1.PatchOptions{})
	fatal.If(t, err)
}

// Three times the CA is replaced while people write. In the safe order nobody notices; if the new
// CA takes the place of the old one at once, everybody does.
func TestRotation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate      string
		rotations int
		options   []testenv.ProgramOption
	}{
		"safe":  {rate(), 3, nil},
		"naive": {"200", 2, []testenv.ProgramOption{testenv.Replace("keeper.go", "further, err = a.introduce(k.caLifetime)", "further, err = newAuthority(k.caLifetime)")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			const delay = 500 * time.Millisecond // until a Secret is in the volume
			s.service()
			s.keep(delay+4*time.Second, nil, tc.options...) // and a second until the server looks
			s.mount(delay)
			s.serve("-keep-alive=false") // the hardest case: a handshake for each request
			s.register(unchanged)
			s.inForce()
			var objects []string // many, because two changes of the same object would wait for each other
			for n := range 10 {
				name := fmt.Sprintf("load-%d", n)
				if _, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(s.Context(), icecream(name, ""), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.own.PolicyV1alpha1().HealthCheckPolicies(s.Namespace).Create(s.Context(), policy(name, policyv1alpha1.ActionLabel), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				objects = append(objects, "icecreams.v1alpha1.controller.nicoleh.io/"+name, "healthcheckpolicies.v1alpha1.policy.k8s-go.openshift.org/"+name)
			}
			load := s.Start(testenv.Command{Path: s.Program("./08-webhooks/load"), Timeout: 5 * time.Minute,
				Args: []string{"-namespace", s.Namespace, "-rate", tc.rate, "-objects", strings.Join(objects, ",")}})
			for range tc.rotations {
				s.rotate()
			}
			s.inForce() // until the volume has the last certificate
			fatal.If(t, load.Signal(os.Interrupt))
			r := load.Wait()
			var changes, refused int
			if i := strings.Index(r.Stdout, "working\n"); i < 0 {
				t.Fatalf("load says:\n%s%s", r.Stdout, r.Stderr)
			} else if _, err := fmt.Sscanf(strings.ReplaceAll(r.Stdout[i+len("working\n"):], ",", ""), "%d changes in %s %d refused", &changes, new(string), &refused); err != nil {
				t.Fatalf("load says: %v\n%s%s", err, r.Stdout, r.Stderr)
			}
			t.Logf("%d rotations: %s", tc.rotations, r.Stdout)
			if changes < 20*tc.rotations { // a few hundred here; fewer would prove nothing
				t.Errorf("only %d changes", changes)
			}
			if (refused > 0) != (name == "naive") {
				t.Errorf("%d of %d changes were refused:\n%s", refused, changes, r.Stdout)
			}
		})
	}
}
