package webhooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Each rule decides by objects that are not in the request.
func TestRules(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.all()
	ctx := s.Context()
	icecreams, policies := s.own.IcecreamV1alpha1().Icecreams(s.Namespace), s.own.PolicyV1alpha1().HealthCheckPolicies(s.Namespace)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	refused := func(err error, want string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want 403 and %q", err, want)
		}
	}
	made, err := icecreams.Create(ctx, icecream("vanilla", ""), metav1.CreateOptions{})
	fatal.If(t, err)
	if made.Spec.DeploymentName != "vanilla" {
		t.Errorf("the Deployment is called %q", made.Spec.DeploymentName)
	}
	// JSON leaves out what Go writes as an empty string: then there is no spec to add a field to.
	for name, object := range map[string]string{
		"an Icecream with a name only": `{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": "bare"}}`,
		"an Icecream without a spec":   `{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": "bare"}, "spec": null}`,
		"with an empty one":            `{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": "bare"}, "spec": {}}`,
	} {
		var o unstructured.Unstructured
		fatal.If(t, o.UnmarshalJSON([]byte(object)))
		made, err := s.Dynamic.Resource(icecreamv1alpha1.IcecreamResource).Namespace(s.Namespace).Create(ctx, &o, dry)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got, _, _ := unstructured.NestedString(made.Object, "spec", "deploymentName"); got != "bare" {
			t.Errorf("%s: the Deployment is called %q", name, got)
		}
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "mint"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mint"}}
	d.Spec.Template.Labels, d.Spec.Template.Spec.Containers = d.Spec.Selector.MatchLabels, []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}
	d.Spec.Replicas = new(int32)
	_, err = s.Client.AppsV1().Deployments(s.Namespace).Create(ctx, d, metav1.CreateOptions{})
	fatal.If(t, err)
	if made, err = icecreams.Create(ctx, icecream("mint", ""), dry); err != nil || made.Spec.DeploymentName != "mint-2" {
		t.Errorf("the Deployment is called %q (%v), want mint-2, because there is a Deployment mint", made.Spec.DeploymentName, err)
	}
	_, err = icecreams.Create(ctx, icecream("mint", "mint"), metav1.CreateOptions{})
	refused(err, "spec.deploymentName: mint belongs to a Deployment that exists")
	_, err = icecreams.Create(ctx, icecream("chocolate", "vanilla"), dry)
	refused(err, "spec.deploymentName: vanilla belongs to the Icecream vanilla")

	// What was accepted once can always be changed in other ways.
	_, err = icecreams.Create(ctx, icecream("lime", "lime"), metav1.CreateOptions{})
	fatal.If(t, err)
	d.Name, d.ResourceVersion = "lime", ""
	_, err = s.Client.AppsV1().Deployments(s.Namespace).Create(ctx, d, metav1.CreateOptions{})
	fatal.If(t, err)
	_, err = icecreams.Patch(ctx, "lime", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}, "spec": {"replicas": 2}}`), metav1.PatchOptions{})
	fatal.If(t, err)
	_, err = icecreams.Patch(ctx, "lime", types.MergePatchType, []byte(`{"spec": {"deploymentName": "mint"}}`), metav1.PatchOptions{})
	refused(err, "mint belongs to a Deployment that exists")

	// Policies: a free label, a warning, and too many pods.
	for _, want := range []string{"health-check-missing", "health-check-missing-2"} {
		made, err := policies.Create(ctx, policy(want, policyv1alpha1.ActionLabel), metav1.CreateOptions{})
		fatal.If(t, err)
		if made.Spec.PodLabel != want {
			t.Errorf("the policy has the label %q, want %q", made.Spec.PodLabel, want)
		}
	}
	warnings := &warned{}
	config := rest.CopyConfig(s.Config)
	config.WarningHandlerWithContext = warnings
	warning, err := versioned.NewForConfig(config)
	fatal.If(t, err)
	for name, probes := range map[string][]policyv1alpha1.Probe{"live": {policyv1alpha1.ProbeLiveness}, "ready": {policyv1alpha1.ProbeReadiness}} {
		p := policy(name, policyv1alpha1.ActionAnnotate)
		p.Spec.PodLabel, p.Spec.RequiredProbes = "missing", probes
		_, err := warning.PolicyV1alpha1().HealthCheckPolicies(s.Namespace).Create(ctx, p, metav1.CreateOptions{})
		fatal.If(t, err)
	}
	if len(warnings.texts) != 1 || !strings.Contains(warnings.texts[0], "writes the annotation missing, too") {
		t.Errorf("warnings: %q", warnings.texts)
	}
	for n := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", n), Labels: map[string]string{"few": fmt.Sprint(n == 0)}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}}}
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		fatal.If(t, err)
	}
	_, err = policies.Create(ctx, policy("kill", policyv1alpha1.ActionKill), metav1.CreateOptions{})
	refused(err, "it would kill 3 of 3 pods; to confirm that, annotate it with policy.k8s-go.openshift.org/confirmed-kills=3")
	confirmed := policy("confirmed", policyv1alpha1.ActionKill)
	confirmed.Annotations = map[string]string{"policy.k8s-go.openshift.org/confirmed-kills": "2"}
	_, err = policies.Create(ctx, confirmed, dry)
	refused(err, "it would kill 3 of 3 pods")
	confirmed.Annotations["policy.k8s-go.openshift.org/confirmed-kills"] = "3"
	_, err = policies.Create(ctx, confirmed, dry)
	fatal.If(t, err)
	few := policy("few", policyv1alpha1.ActionKill)
	few.Spec.Selector.MatchLabels = map[string]string{"few": "true"}
	_, err = policies.Create(ctx, few, metav1.CreateOptions{})
	fatal.If(t, err)
	_, err = policies.Patch(ctx, "few", types.MergePatchType, []byte(`{"spec": {"selector": {"matchLabels": null}}}`), metav1.PatchOptions{})
	refused(err, "it would kill 3 of 3 pods")
}

// warned collects the warnings of the API server.
type warned struct{ texts []string }

func (w *warned) HandleWarningHeaderWithContext(_ context.Context, _ int, _ string, text string) {
	w.texts = append(w.texts, text)
}

// client trusts the CA of the keeper, and asks with TLS.
func (s *setup) client() *http.Client {
	s.t.Helper()
	authority, err := s.Client.CoreV1().Secrets(s.Namespace).Get(s.Context(), ca, metav1.GetOptions{})
	fatal.If(s.t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.Data["trusted.crt"])
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true, Proxy: nil}
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// The server answers what the API server sends, and refuses everything else with a reason.
func TestProtocol(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.service()
	s.keep(time.Second, nil)
	s.mount(0)
	s.serve()
	client := s.client()
	review := func(change func(*admissionv1.AdmissionReview)) []byte {
		raw, err := json.Marshal(icecream("probe", ""))
		fatal.If(t, err)
		r := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{UID: "42", Namespace: s.Namespace, Object: runtime.RawExtension{Raw: raw}}}
		change(&r)
		data, err := json.Marshal(r)
		fatal.If(t, err)
		return data
	}
	same := func(*admissionv1.AdmissionReview) {}
	for name, tc := range map[string]struct {
		method, path, media string
		body                []byte
		code                int
		says                string
	}{
		"a question":         {"POST", "/mutate-icecream?timeout=5s", "application/json", review(same), 200, `"uid":"42","allowed":true,"patch":`},
		"with a charset":     {"POST", "/mutate-icecream", "application/json; charset=utf-8", review(same), 200, `"allowed":true`},
		"another path":       {"POST", "/", "application/json", review(same), 404, ""},
		"another method":     {"GET", "/mutate-icecream", "", nil, 405, ""},
		"no media type":      {"POST", "/mutate-icecream", "", review(same), 415, "has to be application/json"},
		"another media type": {"POST", "/mutate-icecream", "application/yaml", review(same), 415, "has to be application/json"},
		"no JSON":            {"POST", "/mutate-icecream", "application/json", []byte("{"), 400, "unexpected end"},
		"another version":    {"POST", "/mutate-icecream", "application/json", review(func(r *admissionv1.AdmissionReview) { r.APIVersion = "admission.k8s.io/v1beta1" }), 400, "admission.k8s.io/v1beta1 AdmissionReview is not understood"},
		"another kind":       {"POST", "/mutate-icecream", "application/json", []byte(`{"apiVersion": "v1", "kind": "Pod"}`), 400, "v1 Pod is not understood"},
		"no request":         {"POST", "/mutate-icecream", "application/json", review(func(r *admissionv1.AdmissionReview) { r.Request = nil }), 400, "no request with a UID"},
		"no UID":             {"POST", "/mutate-icecream", "application/json", review(func(r *admissionv1.AdmissionReview) { r.Request.UID = "" }), 400, "no request with a UID"},
		"no object":          {"POST", "/mutate-icecream", "application/json", review(func(r *admissionv1.AdmissionReview) { r.Request.Object = runtime.RawExtension{} }), 500, "reading the object"},
		"a conversion": {"POST", "/convert-icecream", "application/json",
			[]byte(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "42", "desiredAPIVersion": "controller.nicoleh.io/v1", "objects": [{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": "a"}, "spec": {"deploymentName": "b", "replicas": 2}}]}}`),
			200, `"spec":{"deployment":{"name":"b","portions":200}}`},
		"a conversion to nowhere": {"POST", "/convert-icecream", "application/json",
			[]byte(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "42", "desiredAPIVersion": "controller.nicoleh.io/v2", "objects": [{"apiVersion": "controller.nicoleh.io/v1", "kind": "Icecream", "metadata": {"name": "a"}}]}}`),
			200, `"status":"Failure","message":"object 0, /a: nothing converts controller.nicoleh.io/v1 Icecream to controller.nicoleh.io/v2"`},
		"a conversion of nothing": {"POST", "/convert-icecream", "application/json", review(same), 400, "only apiextensions.k8s.io/v1 ConversionReview with one"},
		"too large":               {"POST", "/mutate-icecream", "application/json", append(review(same), bytes.Repeat([]byte(" "), 7<<20)...), 413, "larger than 7340032 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), tc.method, "https://"+s.listens+tc.path, bytes.NewReader(tc.body))
			fatal.If(t, err)
			request.Header.Set("Content-Type", tc.media)
			response, err := client.Do(request)
			fatal.If(t, err)
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != tc.code || !strings.Contains(string(body), tc.says) {
				t.Errorf("%d %s (%v), want %d and %q", response.StatusCode, body, err, tc.code, tc.says)
			}
		})
	}
}

// What the API server says when it cannot trust the webhook; and the cure of each.
func TestCertificates(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.all("-keep-alive=false")
	ctx := s.Context()
	create := func(ctx context.Context) error {
		_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("probe", ""), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	says := func(want string) {
		t.Helper()
		s.Eventually(time.Minute, func(ctx context.Context) error {
			if err := create(ctx); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %v, want %q", err, want)
			}
			return nil
		})
	}
	works := func() { t.Helper(); s.Eventually(time.Minute, create) }
	if err := s.keeper.Signal(syscall.SIGTERM); err != nil { // or it would mend what we break
		t.Fatal(err)
	}
	if r := s.keeper.Wait(); r.ExitCode != 0 {
		t.Fatalf("cert-keeper: exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	configurations := s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	change := func(patch string) {
		t.Helper()
		if _, err := configurations.Patch(ctx, s.Namespace, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	original, err := configurations.Get(ctx, s.Namespace, metav1.GetOptions{})
	fatal.If(t, err)
	bundle, err := json.Marshal(original.Webhooks[0].ClientConfig.CABundle)
	fatal.If(t, err)
	url := *original.Webhooks[0].ClientConfig.URL

	// The wrong host: the certificate does not name the address that the API server was given.
	_, port, _ := strings.Cut(s.listens, ":")
	change(`[{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://localhost:` + port + `/mutate-icecream"}]`)
	if s.address == "127.0.0.1" { // elsewhere localhost is the node
		says("x509: certificate is valid for webhook." + s.Namespace + ".svc")
	}
	change(`[{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "` + url + `"}]`)
	works()

	// The wrong CA, and none: then the certificates of the API server's machine count.
	foreign, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	fatal.If(t, err)
	other, err := json.Marshal([]byte(foreign.Data["ca.crt"]))
	fatal.If(t, err)
	change(`[{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ` + string(other) + `}]`)
	says("x509: certificate signed by unknown authority")
	change(`[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`)
	says("x509: certificate signed by unknown authority")
	change(`[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ` + string(bundle) + `}]`)
	works()

	// A file that is half-written, or whose other half is old: the server stays with what it has.
	data := filepath.Join(s.dir, "..data")
	good, err := os.ReadFile(filepath.Join(data, "tls.crt"))
	fatal.If(t, err)
	for _, half := range [][]byte{good[:len(good)/2], nil} {
		fatal.If(t, os.WriteFile(filepath.Join(data, "tls.crt"), half, 0o600))
		s.Eventually(time.Minute, func(ctx context.Context) error {
			if err := create(ctx); err != nil {
				return err
			}
			if log := s.webhook.Stderr(); !strings.Contains(log, `"The certificate is not (re)loaded" because="tls: failed to find any PEM data`) || !strings.Contains(log, "inUse=true") {
				return fmt.Errorf("the log has nothing about it:\n%s", log)
			}
			return nil
		})
	}
	fatal.If(t, os.WriteFile(filepath.Join(data, "tls.crt"), good, 0o600))
	works()

	// Nobody listens.
	fatal.If(t, s.webhook.Signal(syscall.SIGTERM))
	if r := s.webhook.Wait(); r.ExitCode != 0 {
		t.Errorf("webhook: exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	says("connect: connection refused")
}

// A certificate that has ended, because nobody was there to replace it.
func TestExpired(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.service()
	s.keep(time.Second, []string{"-leaf-lifetime", "10s"})
	s.mount(0)
	s.serve("-keep-alive=false")
	s.register(unchanged)
	s.inForce()
	serial := func() string {
		certificate, err := tls.LoadX509KeyPair(filepath.Join(s.dir, "tls.crt"), filepath.Join(s.dir, "tls.key"))
		if err != nil {
			return ""
		}
		return certificate.Leaf.SerialNumber.String()
	}
	first := serial()
	s.Eventually(time.Minute, func(context.Context) error { // replaced before its end
		if now := serial(); now == "" || now == first {
			return fmt.Errorf("it is still the first one")
		}
		return nil
	})
	s.inForce()
	fatal.If(t, s.keeper.Signal(syscall.SIGKILL))
	s.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("probe", ""), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "x509: certificate has expired or is not yet valid") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	s.keep(time.Second, nil) // and a keeper that comes back mends it
	s.inForce()
}

// What happens when the server is away, too slow, or fails, under both failure policies.
func TestFailurePolicy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy admissionregistrationv1.FailurePolicyType
		slow   string
		says   string // of the error; "" if the request is admitted
	}{
		"away, Fail":   {admissionregistrationv1.Fail, "", "connect: connection refused"},
		"away, Ignore": {admissionregistrationv1.Ignore, "", ""},
		"slow, Fail":   {admissionregistrationv1.Fail, "30s", "context deadline exceeded"},
		"slow, Ignore": {admissionregistrationv1.Ignore, "30s", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			s.service()
			s.keep(time.Second, nil)
			s.mount(0)
			s.serve()
			s.register(func(v *admissionregistrationv1.ValidatingWebhookConfiguration) {
				for i := range v.Webhooks {
					v.Webhooks[i].FailurePolicy, v.Webhooks[i].TimeoutSeconds = &tc.policy, new(int32)
					*v.Webhooks[i].TimeoutSeconds = 3
				}
			})
			s.inForce()
			s.Eventually(time.Minute, func(ctx context.Context) error { // a busy machine can be too slow once
				_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("vanilla", "vanilla"), metav1.CreateOptions{})
				return err
			})
			s.Eventually(time.Minute, func(ctx context.Context) error { // the validating one may be in force later than the mutating one
				_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("mint", "vanilla"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err == nil || !strings.Contains(err.Error(), "denied the request") {
					return fmt.Errorf("a second Icecream with the same Deployment: %v, want a refusal", err)
				}
				return nil
			})
			fatal.If(t, s.webhook.Signal(syscall.SIGTERM))
			s.webhook.Wait()
			if tc.slow != "" {
				s.serve("-slow", tc.slow)
			}
			// Only the validating webhooks are asked for an update.
			begin := time.Now()
			_, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Patch(s.Context(), "vanilla", types.MergePatchType, []byte(`{"spec": {"deploymentName": "other"}}`), metav1.PatchOptions{})
			took := time.Since(begin)
			if tc.says == "" && err != nil || tc.says != "" && (!apierrors.IsInternalError(err) || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			if tc.slow != "" && took < 3*time.Second {
				t.Errorf("it took %s, want the 3s of timeoutSeconds", took)
			}
		})
	}
}

// The server is ready only while somebody can ask it.
func TestReady(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.webhook = s.Start(testenv.Command{Path: s.Program("./08-webhooks/webhook"), Args: []string{"-listen", s.address + ":0", "-cert-dir", s.dir, "-drain", "15s"}})
	var health string
	s.Eventually(time.Minute, func(context.Context) error {
		_, rest, ok := strings.Cut(s.webhook.Stderr(), `"Listening for health and metrics" address="`)
		if health, _, _ = strings.Cut(rest, `"`); !ok {
			return fmt.Errorf("no address:\n%s", s.webhook.Stderr())
		}
		return nil
	})
	is := func(path string, want int, text string) func(context.Context) error {
		return func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+path, nil)
			if err != nil {
				return err
			}
			response, err := (&http.Client{Transport: &http.Transport{Proxy: nil}}).Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != want || !strings.Contains(string(body), text) {
				return fmt.Errorf("%s: %d %s (%v), want %d and %q", path, response.StatusCode, body, err, want, text)
			}
			return nil
		}
	}
	s.Eventually(10*time.Second, is("/healthz", 200, "ok"))
	s.Eventually(10*time.Second, is("/readyz", 503, "no certificate yet"))
	s.service()
	s.keep(time.Second, nil)
	s.mount(0)
	s.Eventually(time.Minute, is("/readyz", 200, "ok"))
	s.Eventually(10*time.Second, is("/metrics", 200, "webhook_certificate_not_after_seconds"))
	client := s.client()
	client.Transport.(*http.Transport).DisableKeepAlives = false
	ask := func() (last bool) {
		t.Helper()
		response, err := client.Get("https://" + listening.FindStringSubmatch(s.webhook.Stderr())[1] + "/")
		fatal.If(t, err)
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return response.Close
	}
	if ask() {
		t.Error("while it is ready, it ends the connection")
	}
	fatal.If(t, s.webhook.Signal(syscall.SIGTERM))
	s.Eventually(10*time.Second, is("/readyz", 503, "stopping")) // and it still answers, once on each connection:
	if !ask() {
		t.Error("while it drains, a connection stays open")
	}
	if r := s.webhook.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
}

// A mutating webhook is asked a second time if one after it has changed the object, and it wants that. So its
// answer to what it has answered before must be nothing.
func TestReinvocation(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.service()
	s.keep(time.Second, nil)
	s.mount(0)
	s.serve("-health", "127.0.0.1:0")
	ctx := s.Context()
	authority, err := s.Client.CoreV1().Secrets(s.Namespace).Get(ctx, ca, metav1.GetOptions{})
	fatal.If(t, err)
	_, rest, _ := strings.Cut(s.webhook.Stderr(), `"Listening for health and metrics" address="`)
	health, _, _ := strings.Cut(rest, `"`)
	asked := func() (n int) {
		t.Helper()
		response, err := (&http.Client{Transport: &http.Transport{Proxy: nil}}).Get("http://" + health + "/metrics")
		fatal.If(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		fatal.If(t, err)
		_, rest, _ := strings.Cut(string(body), `webhook_requests_total{code="200"} `)
		_, _ = fmt.Sscan(rest, &n) // none is 0
		return n
	}
	configurations := s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	s.AtEnd(func(ctx context.Context) error {
		return configurations.Delete(ctx, s.Namespace, metav1.DeleteOptions{})
	})
	for policy, want := range map[admissionregistrationv1.ReinvocationPolicyType]int{admissionregistrationv1.NeverReinvocationPolicy: 2, admissionregistrationv1.IfNeededReinvocationPolicy: 3} {
		webhook := func(name, path string) admissionregistrationv1.MutatingWebhook {
			return admissionregistrationv1.MutatingWebhook{Name: name, ReinvocationPolicy: &policy,
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://" + s.listens + path), CABundle: authority.Data["trusted.crt"]},
				Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{"controller.nicoleh.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"icecreams"}}}},
				NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace}},
				SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
			}
		}
		// The first one looks, and changes nothing; the second one fills in the name.
		c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
			Webhooks: []admissionregistrationv1.MutatingWebhook{webhook("first.k8s-go.openshift.org", "/validate-icecream"), webhook("second.k8s-go.openshift.org", "/mutate-icecream")}}
		if _, err := configurations.Create(ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Eventually(time.Minute, func(ctx context.Context) error {
			made, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("probe", ""), dry)
			if err == nil && made.Spec.DeploymentName == "" {
				err = fmt.Errorf("nobody has filled in the name")
			}
			return err
		})
		before := asked()
		made, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("vanilla", ""), dry)
		if err != nil || made.Spec.DeploymentName != "vanilla" {
			t.Errorf("%s: %v (%v)", policy, made, err)
		}
		if got := asked() - before; got != want {
			t.Errorf("%s: %d questions, want %d", policy, got, want)
		}
		fatal.If(t, configurations.Delete(ctx, s.Namespace, metav1.DeleteOptions{}))
		s.Eventually(time.Minute, func(ctx context.Context) error { // until nobody is asked
			if _, err := s.own.IcecreamV1alpha1().Icecreams(s.Namespace).Create(ctx, icecream("probe", ""), dry); err == nil {
				return fmt.Errorf("an Icecream without a deploymentName is allowed")
			}
			return nil
		})
	}
}
