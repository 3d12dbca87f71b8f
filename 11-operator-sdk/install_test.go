package operatorsdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// objects reads what manifests prints.
func objects(t *testing.T, manifests string) (all []unstructured.Unstructured) {
	t.Helper()
	for _, document := range strings.Split(manifests, "---\n")[1:] {
		var o unstructured.Unstructured
		fatal.If(t, yaml.Unmarshal([]byte(document), &o.Object))
		all = append(all, o)
	}
	return all
}

// The rights are those that OLM grants for each install mode.
func TestManifests(t *testing.T) {
	t.Parallel()
	p := newPackager(t)
	dir := p.bundle("0.1.0")
	for target, want := range map[string][]string{
		"":  {"CustomResourceDefinition /", "ServiceAccount ops/", "Role ops/", "RoleBinding ops/", "Deployment ops/"},
		"a": {"CustomResourceDefinition /", "ServiceAccount ops/", "Role a/", "RoleBinding a/", "Deployment ops/"},
		"*": {"CustomResourceDefinition /", "ServiceAccount ops/", "ClusterRole /", "ClusterRoleBinding /", "Deployment ops/"},
	} {
		var got []string
		watched := "no Deployment"
		mayReadNamespaces := false
		for _, o := range objects(t, p.ok("manifests", "-namespace", "ops", "-target", target, dir)) {
			got = append(got, o.GetKind()+" "+o.GetNamespace()+"/")
			if o.GetKind() == "Deployment" {
				annotations, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "annotations")
				watched = annotations["olm.targetNamespaces"]
			}
			rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
			mayReadNamespaces = mayReadNamespaces || slices.ContainsFunc(rules, func(r any) bool {
				resources, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "resources")
				return slices.Contains(resources, "namespaces")
			})
		}
		if !slices.Equal(got, want) {
			t.Errorf("-target %q: %v, want %v", target, got, want)
		}
		if want := map[string]string{"": "ops", "a": "a", "*": ""}[target]; watched != want {
			t.Errorf("-target %q: the operator watches %q, want %q", target, watched, want)
		}
		if mayReadNamespaces != (target == "*") {
			t.Errorf("-target %q: may read namespaces: %v", target, mayReadNamespaces)
		}
	}
}

// An installation is a bundle in the namespace of a test.
type installation struct {
	packager
	f *icecreamtest.Test // its process is the operator, where nodes run no containers
}

// apply applies the manifests of a version, except for the CRD, which other tests use as well,
// and runs the operator: in its pod, or, where nodes only pretend, as a process with the
// account and the arguments of the pod.
func (i *installation) apply(version string) {
	i.t.Helper()
	file := filepath.Join(i.t.TempDir(), version+".yaml")
	var data []byte
	var args []string
	for _, o := range objects(i.t, i.ok("manifests", "-namespace", i.Namespace, i.bundle(version))) {
		if o.GetKind() == "CustomResourceDefinition" {
			continue
		}
		document, err := yaml.Marshal(o.Object)
		fatal.If(i.t, err)
		data = append(append(data, "---\n"...), document...)
		if o.GetKind() == "Deployment" {
			args = argsOf(i.t, o)
		}
	}
	fatal.If(i.t, os.WriteFile(file, data, 0o644))
	i.kubectl("apply", "--server-side", "-f", file)
	if i.Cluster().Name() == "kind" {
		i.kubectl("rollout", "status", "deployment/icecream-controller-manager", "-n", i.Namespace, "--timeout=3m")
	} else {
		i.stop()
		i.f.Process = i.Start(testenv.Command{Path: "/bin/bash", Timeout: 5 * time.Minute, Env: []string{"KUBECONFIG=" + i.kubeconfig()},
			Args: slices.Concat([]string{"-c", restarted, i.Program("./10-kubebuilder/icecream/cmd")}, args,
				[]string{"--namespace=" + i.Namespace, "--leader-elect-namespace=" + i.Namespace, "--health-probe-bind-address=127.0.0.1:0"})})
	}
}

// restarted runs a program again when it ends, as a kubelet does: an operator whose lease nobody
// renewed for ten seconds ends, and a slow machine can stand still for that long.
const restarted = `trap 'kill "$p"; wait "$p"; exit "$?"' TERM; while :; do "$0" "$@" & p=$!; wait "$p"; sleep 1; done`

// stop ends the operator's process, if there is one.
func (i *installation) stop() {
	i.t.Helper()
	if i.f.Process != nil {
		i.f.Stop()
	}
}

// argsOf returns the arguments of the operator's container that do not depend on its pod.
func argsOf(t *testing.T, o unstructured.Unstructured) []string {
	t.Helper()
	data, err := yaml.Marshal(o.Object)
	fatal.If(t, err)
	var d appsv1.Deployment
	fatal.If(t, yaml.UnmarshalStrict(data, &d))
	return slices.DeleteFunc(d.Spec.Template.Spec.Containers[0].Args, func(arg string) bool {
		return strings.Contains(arg, "$(WATCH_NAMESPACE)") || strings.HasPrefix(arg, "--health")
	})
}

// kubeconfig is that of the operator's account.
func (i *installation) kubeconfig() string {
	i.t.Helper()
	request, err := i.Client.CoreV1().ServiceAccounts(i.Namespace).CreateToken(i.Context(), "icecream-controller-manager", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	fatal.If(i.t, err)
	file := filepath.Join(i.t.TempDir(), "kubeconfig")
	fatal.If(i.t, i.f.Proxy.WriteKubeconfig(file, i.Namespace, request.Status.Token))
	return file
}

func (i *installation) kubectl(args ...string) string {
	i.t.Helper()
	output, err := i.Kubectl(i.Context(), args...)
	fatal.If(i.t, err)
	return output
}

// The bundle is installed, scored, upgraded while people change their Icecreams, and removed.
func TestInstalled(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := packager{e, t, e.Program("./11-operator-sdk/packager")}
	if e.Cluster().Name() == "kind" {
		e.MakeImage("10-kubebuilder/icecream/cmd")
	}
	i := &installation{packager: p, f: icecreamtest.Of(t, e, "")}
	score := []string{"scorecard", "-namespace", e.Namespace, "-selector", "suite=icecream", "-wait-time", "2m"}
	t.Run("without an operator", func(t *testing.T) {
		p := p.in(t)
		r := p.run(append(slices.Clone(score), p.bundle("0.1.0"))...)
		for _, want := range []string{"fail   examples: the example icecream-sample: it has no condition Available", "fail   rights: icecream-controller-manager may not", "fail   drift: the Icecream was not available within"} {
			if r.ExitCode != 1 || !strings.Contains(r.Stdout, want) {
				t.Errorf("exit code %d, want 1 and %q:\n%s%s", r.ExitCode, want, r.Stdout, r.Stderr)
			}
		}
	})
	i.apply("0.1.0")
	const n = 6
	name := func(k int) string { return fmt.Sprintf("flavour-%d", k) }
	uids := map[string]string{}
	for k := range n {
		i.f.Create(name(k), name(k), 2)
	}
	for k := range n {
		i.f.Until(name(k), icecreamtest.IsAvailable)
		uids[name(k)] = string(i.f.Deployment(name(k)).UID)
	}
	passes := func(version string) {
		t.Helper()
		args := append(slices.Clone(score), p.bundle(version))
		e.Eventually(2*time.Minute, func(context.Context) error { // its tests wait for 10 s, and pods of a busy machine may need more
			if r := p.run(args...); r.ExitCode != 0 || strings.Count(r.Stdout, "pass ") != 3 {
				return fmt.Errorf("exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
			}
			return nil
		})
	}
	passes("0.1.0")

	// People go on during the upgrade.
	ctx, stop := context.WithCancel(e.Context())
	defer stop()
	changes, done := 0, make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, 1+changes%3)
			_, err = i.f.Icecreams.Patch(e.Context(), name(changes%n), types.MergePatchType, patch, metav1.PatchOptions{})
			changes++
			time.Sleep(50 * time.Millisecond)
		}
		done <- err
	}()
	i.apply("0.2.0")
	for k := range n {
		e.Eventually(icecreamtest.Collected, func(ctx context.Context) error {
			if image := i.f.Deployment(name(k)).Spec.Template.Spec.Containers[0].Image; image != lime {
				return fmt.Errorf("%s has %s", name(k), image)
			}
			return nil
		})
	}
	stop()
	fatal.If(t, <-done)
	i.kubectl("delete", "roles,rolebindings", "-n", e.Namespace, "-l", "olm.owner=icecream.v0.1.0")
	for k := range n {
		i.f.Until(name(k), icecreamtest.IsAvailable)
		i.f.Until(name(k), upgraded)
		d := i.f.Deployment(name(k))
		if string(d.UID) != uids[name(k)] || d.Spec.Template.Spec.Containers[0].Image != lime {
			t.Errorf("%s was made again, or has %s", d.Name, d.Spec.Template.Spec.Containers[0].Image)
		}
		cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), name(k)+"-flavour", metav1.GetOptions{})
		if err == nil && cm.Data["flavour"] != mint {
			err = fmt.Errorf("%s has saved %v", name(k), cm.Data)
		}
		if err != nil {
			t.Errorf("after %d changes: %v", changes, err)
		}
	}
	e.Eventually(icecreamtest.Collected, func(ctx context.Context) error { // of the example that was tried before
		if _, err := i.f.Deployments.Get(ctx, "cone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Deployment cone is still there (%v)", err)
		}
		return nil
	})
	passes("0.2.0")

	// The operator goes, and what it has made for people stays.
	const all = "deployments,serviceaccounts,roles,rolebindings"
	i.stop()
	i.kubectl("delete", all, "-n", e.Namespace, "-l", "olm.owner=icecream.v0.2.0")
	if left := i.kubectl("get", all, "-n", e.Namespace, "-l", "olm.owner", "-o", "name"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	for k := range n {
		if d := i.f.Deployment(name(k)); !d.DeletionTimestamp.IsZero() {
			t.Errorf("%s is being deleted", d.Name)
		}
	}
}

// A test that prints no results, or never ends, has not passed.
func TestScorecardRunner(t *testing.T) {
	t.Parallel()
	p := newPackager(t)
	for name, tc := range map[string]struct{ script, says string }{
		"passes":      {`echo '{"results": [{"name": "mine", "state": "pass"}]}'; exit 3`, "pass   mine"}, // only what it prints counts
		"fails":       {`echo '{"results": [{"name": "mine", "state": "fail", "errors": ["too sweet"]}]}'`, "fail   mine: too sweet"},
		"prints":      {`echo all is well`, "error  mine: the test has printed no TestStatus"},
		"says little": {`echo '{}'`, "error  mine: the test has printed no results"},
		"ends badly":  {`exit 3`, "error  mine: exit status 3"},
		"never ends":  {`sleep 600 & wait`, "error  mine: no result within 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := p.in(t)
			dir := p.bundle("0.1.0")
			script := filepath.Join(t.TempDir(), "mine.sh")
			config := fmt.Sprintf("{apiVersion: scorecard.operatorframework.io/v1alpha3, kind: Configuration, stages: [{tests: [{image: none, entrypoint: [%q], labels: {test: mine}}]}]}", script)
			if err := errors.Join(os.WriteFile(script, []byte("#!/usr/bin/env bash\necho $$ >$SCORECARD_BUNDLE/pid\n"+tc.script+"\n"), 0o755),
				os.WriteFile(filepath.Join(dir, "tests", "scorecard", "config.yaml"), []byte(config), 0o644)); err != nil {
				t.Fatal(err)
			}
			wait := map[bool]string{true: "5s", false: "1m"}[name == "never ends"]
			r := p.run("scorecard", "-wait-time", wait, dir)
			if want := map[bool]int{true: 0, false: 1}[name == "passes"]; r.ExitCode != want || !strings.Contains(r.Stdout, tc.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", r.ExitCode, want, tc.says, r.Stdout, r.Stderr)
			}
			pid, err := os.ReadFile(filepath.Join(dir, "pid"))
			if name == "never ends" && errors.Is(err, fs.ErrNotExist) {
				return // a busy machine has not begun with it in that time
			}
			fatal.If(t, err)
			p.Eventually(10*time.Second, func(ctx context.Context) error { // until the system has noticed
				if said, err := proc.Output(ctx, proc.Cmd{Path: "pgrep", Args: []string{"-l", "-g", strings.TrimSpace(string(pid))}}); err == nil {
					return fmt.Errorf("these of the test still run: %s", said)
				}
				return nil
			})
		})
	}
}
