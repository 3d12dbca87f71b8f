package webhooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A keeperTest is cert-keeper behind a fault proxy.
type keeperTest struct {
	*controllertest.Controller
	t testing.TB
}

func newKeeperTest(t testing.TB, args ...string) *keeperTest {
	t.Helper()
	e := testenv.New(t)
	return &keeperTest{controllertest.New(t, e, e.Program("./08-webhooks/cert-keeper"), append([]string{"-settle", "1s"}, args...)...), t}
}

// asks makes a Service that asks for a certificate.
func (k *keeperTest) asks(name, secret, hosts string) {
	k.t.Helper()
	_, err := k.Client.CoreV1().Services(k.Namespace).Create(k.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"cert-keeper.k8s-go.openshift.org/secret": secret, "cert-keeper.k8s-go.openshift.org/hosts": hosts}},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
	}, metav1.CreateOptions{})
	fatal.If(k.t, err)
}

func (k *keeperTest) secret(name string) *corev1.Secret {
	k.t.Helper()
	var secret *corev1.Secret
	k.Eventually(time.Minute, func(ctx context.Context) (err error) {
		secret, err = k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return secret
}

// event waits for an Event that says something.
func (k *keeperTest) event(reason, text string) {
	k.t.Helper()
	k.Eventually(time.Minute, func(ctx context.Context) error {
		events, err := k.Client.EventsV1().Events(k.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("%d Events, none is %s and says %q", len(events.Items), reason, text)
	})
}

// What somebody else has made stays, and what nobody may have is refused; both are said, and do
// not keep others from their certificates.
func TestKeeperRefuses(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-allow-hosts", "127.0.0.1, example.org,FD00:0::1")
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Data: map[string][]byte{"mine": []byte("yes")}}
	foreign, err := k.Client.CoreV1().Secrets(k.Namespace).Create(k.Context(), foreign, metav1.CreateOptions{})
	fatal.If(k.t, err)
	k.asks("a", "taken", "")
	k.asks("b", "b-tls", "kubernetes.default.svc")
	k.asks("c", "c-tls", " 127.0.0.1, example.org, FD00:0::1") // of an address, there are many spellings
	k.asks("d", "c-tls", "")
	k.asks("e", "cert-keeper-ca", "")
	k.asks("f", "here/f-tls", "")
	k.Start()
	k.event("Refused", "the Secret taken belongs to somebody else")
	k.event("Refused", "the host kubernetes.default.svc is not one that -allow-hosts lists")
	k.event("Refused", "the Secret c-tls is that of the Service c")
	k.event("Refused", "the Secret cert-keeper-ca belongs to somebody else")
	k.event("Refused", `no Secret can have the name "here/f-tls"`)
	if got := k.secret("c-tls"); got.Type != corev1.SecretTypeTLS || len(got.Data["tls.key"]) == 0 {
		t.Errorf("the Secret of c is %v", got)
	}
	fatal.If(k.t, k.Hold(2*time.Second, func() error {
		now := k.secret("taken")
		if now.ResourceVersion != foreign.ResourceVersion {
			return fmt.Errorf("the foreign Secret was written: %v", now.ManagedFields)
		}
		if _, err := k.Client.CoreV1().Secrets(k.Namespace).Get(k.Context(), "b-tls", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("b has a certificate (%v)", err)
		}
		return nil
	}))
	// A rotation goes on all the same, and whoever has a Secret keeps it, although another name comes first.
	k.asks("before-c", "c-tls", "")
	k.Eventually(time.Minute, func(context.Context) error {
		if log := k.Process.Stderr(); !strings.Contains(log, k.Namespace+`/before-c" because="the Secret c-tls is that of the Service c"`) {
			return errors.New("before-c is not refused")
		}
		return nil
	})
	before, leaf := k.secret("cert-keeper-ca"), k.secret("c-tls")
	k.rotate()
	k.rotated(before)
	if now := k.secret("c-tls"); bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) {
		t.Error("c has the certificate of the old CA")
	}
}

// When a Secret of somebody else goes, no event says so.
func TestKeeperLooksForAFreeName(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	_, err := secrets.Create(k.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{})
	fatal.If(k.t, err)
	k.asks("web", "taken", "")
	k.Start()
	k.event("Refused", "the Secret taken belongs to somebody else")
	fatal.If(k.t, secrets.Delete(k.Context(), "taken", metav1.DeleteOptions{}))
	k.Eventually(90*time.Second, func(ctx context.Context) error {
		_, err := secrets.Get(ctx, "taken", metav1.GetOptions{})
		return err
	})
}

// A keeper that comes back when its CA has ended makes another one, like any other.
func TestKeeperComesBackTooLate(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-ca-lifetime", "10s", "-leaf-lifetime", "10s")
	k.asks("web", "web-tls", "")
	k.Start()
	before := k.secret("cert-keeper-ca")
	k.secret("web-tls")
	k.Kill()
	fatal.If(k.t, k.Hold(12*time.Second, func() error { return nil }))
	k.Launch()
	k.rotated(before)
}

// What a Service cannot have is said each time that somebody asks for it anew, however long it is.
func TestKeeperSaysEachRefusal(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("long", "long-tls", strings.Repeat("x", 1200)+".example.org")
	k.asks("web", "web-tls", "")
	k.Start()
	k.event("Refused", "xxx...")
	k.secret("web-tls")
	for said := 1; said <= 3; said++ {
		for i, hosts := range []string{"kubernetes.default.svc", ""} {
			_, err := k.Client.CoreV1().Services(k.Namespace).Patch(k.Context(), "web", types.MergePatchType, []byte(`{"metadata": {"annotations": {"cert-keeper.k8s-go.openshift.org/hosts": "`+hosts+`"}}}`), metav1.PatchOptions{})
			fatal.If(k.t, err)
			later := fmt.Sprintf("later-%d-%d", said, i)
			k.asks(later, later, "")
			k.secret(later) // whoever has seen this one has looked at web after its change
		}
		if n := strings.Count(k.Process.Stderr(), k.Namespace+`/web" because="the host`); n != said {
			t.Errorf("said %d times, want %d", n, said)
		}
	}
}

// Services that were refused leave nothing behind in the process.
func TestKeeperForgetsRefusedServices(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.Start()
	for n := range 200 {
		name := fmt.Sprintf("web-%d", n)
		k.asks(name, name, strings.Repeat("x", 200_000))
		fatal.If(k.t, k.Client.CoreV1().Services(k.Namespace).Delete(k.Context(), name, metav1.DeleteOptions{}))
	}
	k.Eventually(3*time.Minute, func(context.Context) error { // at the latest Go looks for garbage after two minutes
		heap, err := k.Metric("go_memstats_heap_inuse_bytes")
		if err == nil && heap > 25<<20 {
			err = fmt.Errorf("the heap has %.0f MiB", heap/(1<<20))
		}
		return err
	})
}

// A Service that cannot get its first certificate, here because of a quota, does not keep the CA of
// all others from being replaced before its end.
func TestKeeperRotatesWithoutOne(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("a", "a-tls", "")
	// Nor does a configuration that cert-keeper may not change.
	k.configuration(k.Namespace, k.Namespace+"/cert-keeper-ca")
	k.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "validatingwebhookconfigurations"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	k.Start()
	before, leaf := k.secret("cert-keeper-ca"), k.secret("a-tls")
	quotas := k.Client.CoreV1().ResourceQuotas(k.Namespace)
	_, err := quotas.Create(k.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceSecrets: resource.MustParse("2")}}}, metav1.CreateOptions{})
	fatal.If(k.t, err)
	k.Eventually(time.Minute, func(ctx context.Context) error { // until it counts
		quota, err := quotas.Get(ctx, "full", metav1.GetOptions{})
		if used := quota.Status.Used[corev1.ResourceSecrets]; err == nil && used.Value() != 2 {
			err = fmt.Errorf("it counts %s Secrets", used.String())
		}
		return err
	})
	k.asks("b", "b-tls", "")
	k.event("Refused", "exceeded quota")
	unread := k.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "get", Resource: "secrets", Name: "c-tls"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	k.asks("c", "c-tls", "")
	k.Struck(unread, 1)
	k.rotate()
	k.rotated(before)
	if now := k.secret("a-tls"); bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) {
		t.Error("a has the certificate of the old CA")
	}
	fatal.If(k.t, quotas.Delete(k.Context(), "full", metav1.DeleteOptions{}))
	k.secret("b-tls") // with the next try
}

// Nor does somebody who has made a Secret immutable.
func TestKeeperRotatesWithoutAnImmutableOne(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("a", "a-tls", "")
	k.asks("b", "b-tls", "")
	k.Start()
	before := k.secret("cert-keeper-ca")
	k.secret("a-tls")
	leaf := k.secret("b-tls")
	_, err := k.Client.CoreV1().Secrets(k.Namespace).Patch(k.Context(), "a-tls", types.MergePatchType, []byte(`{"immutable": true}`), metav1.PatchOptions{})
	fatal.If(k.t, err)
	k.rotate()
	k.event("Refused", "the Secret a-tls is immutable")
	k.rotated(before)
	if now := k.secret("b-tls"); bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) {
		t.Error("b has the certificate of the old CA")
	}
}

// A Secret that has lost the label gets it back, or a rotation would leave it behind.
func TestKeeperPutsItsLabelBack(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("a", "a-tls", "")
	k.Start()
	before, leaf := k.secret("cert-keeper-ca"), k.secret("a-tls")
	_, err := k.Client.CoreV1().Secrets(k.Namespace).Patch(k.Context(), "a-tls", types.MergePatchType, []byte(`{"metadata": {"labels": null}}`), metav1.PatchOptions{})
	fatal.If(k.t, err)
	k.Eventually(time.Minute, func(context.Context) error {
		if now := k.secret("a-tls"); !maps.Equal(now.Labels, leaf.Labels) {
			return fmt.Errorf("its labels are %v", now.Labels)
		}
		return nil
	})
	if now := k.secret("a-tls"); now.UID != leaf.UID || !bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) {
		t.Error("it has another certificate")
	}
	k.rotate()
	k.rotated(before)
	if now := k.secret("a-tls"); bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) {
		t.Error("it has the certificate of the old CA")
	}
}

// Nor does somebody who has made a Secret for it of a type that wants other keys.
func TestKeeperRotatesWithoutAnotherType(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("a", "a-tls", "")
	k.Start()
	before := k.secret("cert-keeper-ca")
	leaf := k.secret("a-tls")
	service, err := k.Client.CoreV1().Services(k.Namespace).Get(k.Context(), "a", metav1.GetOptions{})
	fatal.If(k.t, err)
	_, err = k.Client.CoreV1().Secrets(k.Namespace).Create(k.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "basic", Labels: leaf.Labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))}},
		Type:       corev1.SecretTypeBasicAuth, StringData: map[string]string{corev1.BasicAuthUsernameKey: "a"}}, metav1.CreateOptions{})
	fatal.If(k.t, err)
	_, err = k.Client.CoreV1().Services(k.Namespace).Patch(k.Context(), "a", types.MergePatchType, []byte(`{"metadata": {"annotations": {"cert-keeper.k8s-go.openshift.org/secret": "basic"}}}`), metav1.PatchOptions{})
	fatal.If(k.t, err)
	k.event("Refused", "the Secret basic is of type kubernetes.io/basic-auth")
	k.rotate()
	k.rotated(before)
}

// Nor do short lives: a certificate that the same CA replaces restarts no wait.
func TestKeeperRotatesWhileItRenews(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-settle", "4s", "-leaf-lifetime", "10s")
	k.Start()
	before := k.secret("cert-keeper-ca")
	for _, name := range []string{"a-tls", "b-tls", "c-tls"} { // each is replaced when two thirds of its life are over
		k.asks(name, name, "")
		k.secret(name)
		time.Sleep(2 * time.Second)
	}
	k.rotate()
	k.rotated(before)
}

// The waits of a rotation are longer than the lives of certificates, which are replaced in time all the same.
func TestKeeperRenewsWhileItRotates(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-settle", "20s", "-leaf-lifetime", "10s")
	k.asks("web", "web-tls", "")
	k.Start()
	before := k.secret("cert-keeper-ca")
	k.secret("web-tls")
	k.rotate()
	k.Eventually(2*time.Minute, func(ctx context.Context) error {
		leaf := k.secret("web-tls")
		pair, err := tls.X509KeyPair(leaf.Data["tls.crt"], leaf.Data["tls.key"])
		// The machine may have stood still, so that nobody could replace it, for a moment.
		if err == nil && time.Since(pair.Leaf.NotAfter) > 3*time.Second {
			k.t.Errorf("the certificate has ended at %s", pair.Leaf.NotAfter)
			return nil
		}
		return errors.Join(err, k.hasRotated(ctx, before))
	})
}

// Nor do those that come for the first time, one after the other: what nobody trusts yet restarts no wait.
func TestKeeperRotatesWhileOthersCome(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-settle", "3s")
	k.asks("web", "web-tls", "")
	k.Start()
	k.secret("web-tls")
	before := k.secret("cert-keeper-ca")
	k.rotate()
	err := errors.New("it has not begun")
	for n := 0; err != nil && n < 30; n++ {
		name := fmt.Sprintf("%s-%d", k.Namespace, n)
		k.asks(name, name, "")
		k.configuration(name, k.Namespace+"/cert-keeper-ca")
		time.Sleep(time.Second)
		err = k.hasRotated(k.Context(), before)
	}
	fatal.If(k.t, err)
}

// A webhook may answer 404 for what is there. Then it does not trust the next CA yet, and so nobody serves that.
func TestKeeperIsToldThatATargetIsGone(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.configuration(k.Namespace, k.Namespace+"/cert-keeper-ca")
	k.Start()
	before := k.secret("cert-keeper-ca")
	k.Eventually(time.Minute, func(context.Context) error {
		if bundles := k.bundles(k.Namespace); len(bundles[0]) == 0 || len(bundles[1]) == 0 {
			return errors.New("the configuration trusts nobody yet")
		}
		return nil
	})
	untrue := k.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "validatingwebhookconfigurations"}, Fault: faultproxy.Answer, Code: http.StatusNotFound, Times: -1})
	k.rotate()
	k.Struck(untrue, 1)
	time.Sleep(5 * time.Second) // -settle is one
	if now := k.secret("cert-keeper-ca"); !bytes.Equal(now.Data["signing.crt"], before.Data["signing.crt"]) {
		t.Error("the next CA signs, and nobody trusts it")
	}
	untrue.Remove()
	k.rotated(before)
}

func (k *keeperTest) rotate() {
	k.t.Helper()
	_, err := k.Client.CoreV1().Secrets(k.Namespace).Patch(k.Context(), "cert-keeper-ca", types.MergePatchType, []byte(`{"metadata": {"annotations": {"cert-keeper.k8s-go.openshift.org/rotate": ""}}}`), metav1.PatchOptions{})
	fatal.If(k.t, err)
}

// rotated waits until another CA than before is trusted, alone.
func (k *keeperTest) rotated(before *corev1.Secret) {
	k.t.Helper()
	k.Eventually(time.Minute, func(ctx context.Context) error { return k.hasRotated(ctx, before) })
}

func (k *keeperTest) hasRotated(ctx context.Context, before *corev1.Secret) error {
	now, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, "cert-keeper-ca", metav1.GetOptions{})
	if err == nil && (bytes.Equal(now.Data["signing.crt"], before.Data["signing.crt"]) || !bytes.Equal(now.Data["signing.crt"], now.Data["trusted.crt"])) {
		err = errors.New("the rotation has not ended")
	}
	return err
}

// configuration makes one that is asked about nothing, because no such resource exists.
func (k *keeperTest) configuration(name, inject string) {
	k.t.Helper()
	configurations := k.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	webhook := func(name string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{Name: name + ".example.org", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{k.Namespace + ".example.org"}, APIVersions: []string{"v1"}, Resources: []string{"nothing"}}}}}
	}
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"cert-keeper.k8s-go.openshift.org/inject-ca": inject}},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{webhook("one"), webhook("two")}}
	k.AtEnd(func(ctx context.Context) error { return configurations.Delete(ctx, name, metav1.DeleteOptions{}) })
	_, err := configurations.Create(k.Context(), c, metav1.CreateOptions{})
	fatal.If(k.t, err)
}

// bundles returns what the webhooks of a configuration trust.
func (k *keeperTest) bundles(name string) (all [][]byte) {
	k.t.Helper()
	c, err := k.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(k.Context(), name, metav1.GetOptions{})
	fatal.If(k.t, err)
	for _, w := range c.Webhooks {
		all = append(all, w.ClientConfig.CABundle)
	}
	return all
}

// Killed in each phase, and even after each write, a rotation goes on where it was, and never
// trusts less than what somebody still serves.
func TestKeeperRestarts(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-settle", "4s")
	k.asks("web", "web-tls", "")
	mine, other := k.Namespace, "other-"+k.Namespace
	k.configuration(mine, k.Namespace+"/cert-keeper-ca")
	k.configuration(other, "elsewhere/cert-keeper-ca")
	crd := crdtest.Read(t, icecreamCRD)
	crdtest.Rename(crd, k.Namespace+".example.org")
	crd.Annotations = map[string]string{"cert-keeper.k8s-go.openshift.org/inject-ca": k.Namespace + "/cert-keeper-ca"}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")}}}
	fatal.If(k.t, crdtest.Create(t, k.Env, crd))
	k.Start()
	injected := func(ctx context.Context) error {
		authority, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, "cert-keeper-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, bundle := range k.bundles(mine) {
			if !bytes.Equal(bundle, authority.Data["trusted.crt"]) {
				return fmt.Errorf("the bundle is %q", bundle)
			}
		}
		now, err := crdtest.Client(t, k.Env).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && !bytes.Equal(now.Spec.Conversion.Webhook.ClientConfig.CABundle, authority.Data["trusted.crt"]) {
			err = fmt.Errorf("the bundle of the CRD is %q", now.Spec.Conversion.Webhook.ClientConfig.CABundle)
		}
		return err
	}
	k.Eventually(time.Minute, injected)
	before, leaf := k.secret("cert-keeper-ca"), k.secret("web-tls")
	k.rotate()

	restart := func() { k.Kill(); k.Launch() }
	k.Eventually(time.Minute, func(ctx context.Context) error { // introduce: the old one signs, both are trusted
		now := k.secret("cert-keeper-ca")
		if len(now.Data["next.crt"]) == 0 {
			return errors.New("there is no next CA")
		}
		return injected(ctx)
	})
	restart()
	if now := k.secret("cert-keeper-ca"); !bytes.Contains(now.Data["trusted.crt"], before.Data["signing.crt"]) {
		t.Error("the old CA is not trusted any more, and it still signs")
	}
	k.Eventually(time.Minute, func(ctx context.Context) error { // replace: the new one signs, both are trusted
		now := k.secret("cert-keeper-ca")
		if bytes.Equal(now.Data["signing.crt"], before.Data["signing.crt"]) {
			return errors.New("the old CA signs")
		}
		return nil
	})
	for _, bundle := range k.bundles(mine) {
		if !bytes.Contains(bundle, before.Data["signing.crt"]) {
			t.Error("the old CA is not trusted any more, and a server may still have its certificate")
		}
	}
	restart()
	k.rotated(before)
	k.Eventually(time.Minute, injected)
	if now := k.secret("web-tls"); bytes.Equal(now.Data["tls.crt"], leaf.Data["tls.crt"]) || now.UID != leaf.UID {
		t.Error("the certificate is the old one, or the Secret was made again")
	}
	for _, bundle := range k.bundles(other) {
		if len(bundle) > 0 {
			t.Errorf("a configuration that asks for another CA got %q", bundle)
		}
	}

	// At rest nothing is written, after a restart as well.
	restart()
	k.WaitReady()
	writes := len(k.Writes())
	fatal.If(k.t, k.Hold(3*time.Second, func() error {
		if now := k.Writes(); len(now) > writes {
			return fmt.Errorf("written at rest: %v", now[writes:])
		}
		return nil
	}))

	// What is lost is made again; what people remove is filled in again.
	fatal.If(k.t, k.Client.CoreV1().Secrets(k.Namespace).Delete(k.Context(), "web-tls", metav1.DeleteOptions{}))
	k.secret("web-tls")
	_, err := k.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(k.Context(), mine, types.JSONPatchType, []byte(`[{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]`), metav1.PatchOptions{})
	fatal.If(k.t, err)
	k.Eventually(time.Minute, injected)
	service, err := k.Client.CoreV1().Services(k.Namespace).Get(k.Context(), "web", metav1.GetOptions{})
	fatal.If(k.t, err)
	if !metav1.IsControlledBy(k.secret("web-tls"), service) { // or it would not go with its Service
		t.Errorf("the Secret belongs to %v", k.secret("web-tls").OwnerReferences)
	}
	k.Stop()
}

// Somebody asks for another rotation when the new CA signs already, as when that one has leaked.
func TestKeeperRotatesAgain(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t, "-settle", "3s")
	k.asks("web", "web-tls", "")
	k.Start()
	before := k.secret("cert-keeper-ca")
	k.secret("web-tls")
	k.rotate()
	var second *corev1.Secret
	k.Eventually(time.Minute, func(context.Context) error {
		if second = k.secret("cert-keeper-ca"); bytes.Equal(second.Data["signing.crt"], before.Data["signing.crt"]) {
			return errors.New("the old CA signs")
		}
		return nil
	})
	k.rotate()
	k.rotated(second)
}

// A CA that cannot be read is not replaced: nobody would trust what the new one signs.
func TestKeeperKeepsADamagedCA(t *testing.T) {
	t.Parallel()
	k := newKeeperTest(t)
	k.asks("web", "web-tls", "")
	k.Start()
	leaf := k.secret("web-tls")
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	damaged, err := secrets.Patch(k.Context(), "cert-keeper-ca", types.MergePatchType, []byte(`{"data": {"signing.key": "bm8ga2V5"}}`), metav1.PatchOptions{})
	fatal.If(k.t, err)
	k.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(k.Process.Stderr(), "is no CA: signing.crt and signing.key: tls: failed to find any PEM data in key input; restore it, or delete it") {
			return errors.New("the log does not say so")
		}
		return nil
	})
	fatal.If(k.t, k.Hold(2*time.Second, func() error {
		if now := k.secret("cert-keeper-ca"); now.ResourceVersion != damaged.ResourceVersion || k.secret("web-tls").ResourceVersion != leaf.ResourceVersion {
			return errors.New("it was written")
		}
		return nil
	}))
	fatal.If(k.t, secrets.Delete(k.Context(), "cert-keeper-ca", metav1.DeleteOptions{}))
	k.Eventually(time.Minute, func(context.Context) error {
		if bytes.Equal(k.secret("web-tls").Data["tls.crt"], leaf.Data["tls.crt"]) {
			return errors.New("the certificate is that of the old CA")
		}
		return nil
	})
}

// Options that cannot work are refused, with the reason.
func TestKeeperOptions(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	program := e.Program("./08-webhooks/cert-keeper")
	for want, args := range map[string][]string{
		"-ca nowhere: want NAMESPACE/NAME":       {"-ca", "nowhere"},
		"has to be in the namespace here":        {"-namespace", "here", "-ca", "there/ca"},
		"-leaf-lifetime has to be at least 10s":  {"-leaf-lifetime", "1s"},
		"-resync 1ms: it has to be a second":     {"-resync", "1ms"},
		"-namespace No: a lowercase RFC 1123":    {"-namespace", "No"},
		"-ca-lifetime at least as long as that":  {"-leaf-lifetime", "2h", "-ca-lifetime", "1h"},
		"-settle 10s: want at least 0, and less": {"-settle", "10s", "-leaf-lifetime", "10s", "-ca-lifetime", "30s"},
		"-settle -1h0m0s: want at least 0":       {"-settle", "-1h"},
		`-allow-hosts "bücher.example": want`:    {"-allow-hosts", "example.org, bücher.example"},
		"listening for health and metrics (-lis": {"-namespace", e.Namespace, "-listen", "256.0.0.1:0"},
	} {
		if r := e.Run(testenv.Command{Path: program, Args: args}); r.ExitCode != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, want 1 and %q:\n%s", args, r.ExitCode, want, r.Stderr)
		}
	}
	if r := e.Run(testenv.Command{Path: e.Program("./08-webhooks/webhook")}); r.ExitCode != 1 || !slices.Contains(strings.Fields(r.Stderr), "-cert-dir") {
		t.Errorf("webhook without -cert-dir: exit code %d\n%s", r.ExitCode, r.Stderr)
	}
}
