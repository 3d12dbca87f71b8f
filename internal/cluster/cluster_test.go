package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	return workspace.Workspace{Root: root}
}

func TestSelectUnknown(t *testing.T) {
	_, _, err := Select(context.Background(), clone(t), "minikube")
	if err == nil || !strings.Contains(err.Error(), "kwok, ") || !strings.Contains(err.Error(), "existing") {
		t.Errorf("error %v does not list what there is", err)
	}
}

func TestSelectNeverTakesSomebodysCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "kubeconfig"))
	c, _, err := Select(context.Background(), clone(t), "")
	if err != nil || c.Name() == "existing" {
		t.Errorf("Select = %v, %v", c, err)
	}
}

// A cluster of this clone that is partly down comes before one that it could
// have, such as kind where an engine answers.
func TestSelectPrefersABrokenClusterOfThisClone(t *testing.T) {
	t.Setenv("K8S_VERSION", "")
	fakeEngine(t, "")
	ws := clone(t)
	if c, why, err := Select(t.Context(), ws, ""); err != nil || c.Name() != "kind" {
		t.Fatalf("with an engine and nothing else, Select = %v (%s), %v", c, why, err)
	}
	fatal.If(t, os.MkdirAll(ws.Path("kwok"), 0o755))
	c, why, err := Select(t.Context(), ws, "")
	if err != nil || c.Name() != "kwok" || !strings.Contains(why, "broken") {
		t.Errorf("Select = %v (%s), %v", c, why, err)
	}
	t.Setenv("K8S_VERSION", "1.35") // which kwok would not heed
	if c, why, err := Select(t.Context(), ws, ""); err != nil || c.Name() != "kind" {
		t.Errorf("with K8S_VERSION, Select = %v (%s), %v", c, why, err)
	}
	if _, why, err := Select(t.Context(), ws, "kwok"); err != nil || !strings.Contains(why, "change nothing here") {
		t.Errorf("with K8S_VERSION and kwok, Select = %s, %v", why, err)
	}
	t.Setenv("K8S_VERSION", "")
	// One that was made for a purpose is not taken for any other.
	ws = clone(t)
	fatal.If(t, os.MkdirAll(ws.Path("kwok-chaos"), 0o755))
	if c, why, err := Select(t.Context(), ws, ""); err != nil || c.Name() != "kind" {
		t.Errorf("Select = %v (%s), %v", c, why, err)
	}
	if c, _, err := Select(t.Context(), ws, "kwok-chaos"); err != nil || c.Name() != "kwok-chaos" {
		t.Errorf("Select = %v, %v", c, err)
	}
}

// noImages returns a folder with a docker that answers and has no images.
func noImages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\ncase $1 in version) echo 99.0 ;; *) echo 'Error: No such image' >&2; exit 1 ;; esac\n"
	fatal.If(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755))
	return dir
}

// fakeEngine puts a docker on PATH that answers with a version and, to ps, with output.
func fakeEngine(t *testing.T, output string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\ncase $1 in version) echo 99.0 ;; *) printf '" + output + "' ;; esac\n"
	fatal.If(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755))
	t.Setenv("PATH", dir)
}

func TestExisting(t *testing.T) {
	ws := clone(t)
	e := &existing{ws: ws}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("HOME", t.TempDir())

	if err := e.up(context.Background(), Status{}, io.Discard); err == nil || !strings.Contains(err.Error(), "set KUBECONFIG") {
		t.Errorf("no kubeconfig: error %v does not say what to do", err)
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: one\ncontexts: [{name: one, context: {cluster: one}}, {name: two, context: {cluster: two}}]\n" +
		"clusters: [{name: one, cluster: {server: 'https://127.0.0.1:1'}}, {name: two, cluster: {server: 'https://127.0.0.1:2'}}]\n"
	fatal.If(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	if err := e.up(context.Background(), Status{}, io.Discard); err == nil || !strings.Contains(err.Error(), "context one: https://127.0.0.1:1 does not answer") {
		t.Errorf("server down: error = %v", err)
	}
	if _, err := os.Stat(ws.Path("existing")); !os.IsNotExist(err) {
		t.Errorf("a connection that failed has left files behind (%v)", err)
	}
	if after, err := os.ReadFile(kubeconfig); err != nil || string(after) != text {
		t.Errorf("the user's kubeconfig was changed (%v)", err)
	}

	// What is there, a shell may use: it goes on as soon as the server answers again.
	fatal.If(t, errors.Join(os.Mkdir(ws.Path("existing"), 0o700), os.WriteFile(e.kubeconfig(), []byte(text), 0o600)))
	if err := e.up(context.Background(), Status{}, io.Discard); err == nil {
		t.Error("no error while the server is down")
	}
	if left, err := os.ReadDir(ws.Path("existing")); err != nil || len(left) != 1 || left[0].Name() != "kubeconfig" {
		t.Errorf("%v (%v) is left, want the kubeconfig alone", left, err)
	}
}

// A shell that is open on one context is not moved to another one.
func TestExistingStaysUnderThoseWhoUseIt(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	defer server.Close()
	ws := clone(t)
	theirs := filepath.Join(t.TempDir(), "kubeconfig")
	choose := func(context, server string) {
		text := "apiVersion: v1\nkind: Config\ncurrent-context: " + context + "\ncontexts: [{name: lab, context: {cluster: one}}, {name: prod, context: {cluster: one}}]\nclusters: [{name: one, cluster: {server: '" + server + "'}}]\n"
		fatal.If(t, os.WriteFile(theirs, []byte(text), 0o600))
	}
	t.Setenv("KUBECONFIG", theirs)
	choose("lab", server.URL)
	e := &existing{ws: ws}
	fatal.If(t, e.up(t.Context(), Status{}, io.Discard))
	if from := e.leaves(); from != "" {
		t.Errorf("it would leave %q for the same context", from)
	}
	shell := &Cluster{ws: ws, p: e}
	fatal.If(t, shell.hold())
	for context, server := range map[string]string{"prod": server.URL, "lab": server.URL + "/of-another-cluster"} {
		choose(context, server)
		other := &Cluster{ws: ws, p: &existing{ws: ws}}
		if err := other.Up(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "uses context lab") {
			t.Errorf("while a shell uses lab, and %s of %s is chosen: %v", context, server, err)
		}
	}
	fatal.If(t, shell.letGo())
	if from := e.leaves(); from != "lab" {
		t.Errorf("it leaves %q, want lab", from)
	}
}

// A copy of a clone has a cluster of its own; a clone that was moved keeps its.
func TestCopiedClone(t *testing.T) {
	one, two := clone(t), clone(t)
	a, b := &kind{ws: one}, &kind{ws: two}
	for _, k := range []*kind{a, b} {
		fatal.If(t, os.MkdirAll(k.dir(), 0o755))
		fatal.If(t, os.WriteFile(k.dir("made"), []byte("docker workshop-1 "+one.Root+"\n"), 0o644))
	}
	if _, name := a.made(); name != "workshop-1" {
		t.Errorf("the clone that has made it calls it %s", name)
	}
	if _, name := b.made(); name != two.ID() {
		t.Errorf("its copy calls it %s", name)
	}
	fatal.If(t, os.RemoveAll(a.dir()))
	if _, name := b.made(); name != "workshop-1" {
		t.Errorf("after a move it is called %s", name)
	}
}

// In a terminal of make web, KUBECONFIG is that of a proxy, which ends with the page.
func TestExistingOutlivesTheProxy(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	defer server.Close()
	e := &existing{ws: clone(t)}
	theirs := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: one\ncontexts: [{name: one, context: {cluster: one}}]\nclusters: [{name: one, cluster: {server: '" + server.URL + "'}}]\n"
	fatal.If(t, os.WriteFile(theirs, []byte(text), 0o600))
	t.Setenv("KUBECONFIG", theirs)
	fatal.If(t, e.up(t.Context(), Status{}, io.Discard))
	before, err := os.ReadFile(e.kubeconfig())
	fatal.If(t, err)
	proxy, err := faultproxy.Start(&rest.Config{Host: server.URL})
	fatal.If(t, err)
	defer proxy.Close()
	proxied := filepath.Join(t.TempDir(), "kubeconfig")
	fatal.If(t, proxy.WriteKubeconfig(proxied, "", ""))
	t.Setenv("KUBECONFIG", proxied)
	if status := e.status(t.Context()); status != (Status{State: Ready, Detail: "context one"}) {
		t.Errorf("in a terminal of make web it is %+v", status)
	}
	fatal.If(t, e.up(t.Context(), Status{}, io.Discard))
	if after, err := os.ReadFile(e.kubeconfig()); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the copy is now\n%s%v", after, err)
	}
	// Who has nothing but a proxy gets that.
	fatal.If(t, e.down(t.Context(), io.Discard))
	fatal.If(t, e.up(t.Context(), Status{}, io.Discard))
	if status := e.status(t.Context()); status != (Status{State: Ready, Detail: "context " + workspace.ProxyContext}) {
		t.Errorf("with a proxy alone it is %+v", status)
	}
}

func TestDownOfNothing(t *testing.T) {
	ws := clone(t)
	for _, c := range All(ws) {
		var out bytes.Buffer
		if err := c.Down(context.Background(), &out); err != nil || out.Len() > 0 {
			t.Errorf("%s: %v, output %q", c.Name(), err, out.String())
		}
		if state, detail := c.State(context.Background()); state != Absent {
			t.Errorf("%s is %s (%s)", c.Name(), state, detail)
		}
	}
}

// A process belongs to a cluster if it runs one of our binaries in the
// cluster's folder, and only then.
func TestKillEndsOnlyTheClustersProcesses(t *testing.T) {
	root := filepath.Join(clone(t).Root, "with a space")
	ws := workspace.Workspace{Root: root}
	sleep, err := os.ReadFile("/bin/sleep")
	fatal.If(t, err)
	first, further := &kwok{ws: ws}, &kwok{ws: ws, suffix: "further"}
	for _, dir := range []string{ws.Bin(""), first.clusterDir(), further.clusterDir()} {
		fatal.If(t, os.MkdirAll(dir, 0o755))
	}
	fatal.If(t, os.WriteFile(ws.Bin("etcd"), sleep, 0o755))
	start := func(path, dir string) (ended chan error) {
		cmd := exec.Command(path, "600")
		cmd.Dir = dir
		fatal.If(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		ended = make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return ended
	}
	ours := start(ws.Bin("etcd"), first.clusterDir())
	others := map[string]chan error{
		"of another cluster of this clone":    start(ws.Bin("etcd"), further.clusterDir()),
		"of somebody else, in the same place": start("/bin/sleep", first.clusterDir()),
		"ours, in no cluster":                 start(ws.Bin("etcd"), ws.Root),
	}
	// A new build replaces the binary while the old one runs, and somebody may
	// have removed the folder.
	fatal.If(t, os.Remove(ws.Bin("etcd")))
	fatal.If(t, os.RemoveAll(first.dir()))

	running, err := first.processes(t.Context())
	if err != nil || len(running) != 1 || len(running["etcd"]) != 1 {
		t.Fatalf("processes = %v, %v", running, err)
	}
	if missing := missingComponents(running); len(missing) != len(kwokComponents)-1 {
		t.Errorf("missing components: %v", missing)
	}
	fatal.If(t, first.kill(t.Context(), "kube-apiserver"))
	select {
	case <-ours:
		t.Error("etcd was ended together with the API server")
	case <-time.After(100 * time.Millisecond):
	}
	fatal.If(t, first.down(t.Context(), io.Discard))
	select {
	case <-ours:
	case <-time.After(5 * time.Second):
		t.Error("our process still runs")
	}
	for whose, ended := range others {
		select {
		case <-ended:
			t.Errorf("a process %s was ended", whose)
		default:
		}
	}
}

func TestFurtherClusters(t *testing.T) {
	ws := clone(t)
	for _, name := range []string{"", "Chaos", "a/b", "..", "-x", strings.Repeat("x", 40)} {
		if _, err := NewKwok(ws, name, KwokOptions{}); err == nil {
			t.Errorf("a cluster may be named %q", name)
		}
	}
	options := KwokOptions{AuditPolicy: "kind: Policy", FeatureGates: map[string]bool{"B": false, "A": true},
		ExtraArgs: map[string][]string{"etcd": {"snapshot-count=10", "max-wals=1"}, "kube-apiserver": {"v=4"}}}
	c, err := NewKwok(ws, "chaos", options)
	if err != nil || c.Name() != "kwok-chaos" || !strings.HasPrefix(c.AuditLog(), ws.Path("kwok-chaos")) {
		t.Fatalf("NewKwok = %v, %v", c, err)
	}
	first := &kwok{ws: ws}
	if c.Kubeconfig() == first.kubeconfig() {
		t.Errorf("both clusters have the kubeconfig %s", c.Kubeconfig())
	}

	k := c.p.(*kwok)
	config := filepath.Join(ws.Root, "scripts", "controlplane", "kwok.yaml")
	common, err := os.ReadFile("../../scripts/controlplane/kwok.yaml")
	fatal.If(t, err)
	for path, text := range map[string]string{config: string(common), k.dir("x"): ""} {
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	}
	file, err := k.config()
	fatal.If(t, err)
	data, err := os.ReadFile(file)
	fatal.If(t, err)
	for _, want := range []string{"kubeFeatureGates: A=true,B=false", "kubeAuditPolicy: " + k.dir("audit-policy.yaml"),
		"etcdPort: ", "kubeApiserverPort: ", "key: snapshot-count", "key: max-wals", "name: kube-apiserver", "key: unsafe-no-fsync", "runtime: binary"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%q is missing in\n%s", want, data)
		}
	}
	// Another command of this clone finds it again, with its options.
	all := All(ws)
	found := all[len(all)-1]
	if found.Name() != "kwok-chaos" || found.AuditLog() != c.AuditLog() || !reflect.DeepEqual(found.p.(*kwok).options, options) {
		t.Errorf("All finds %s with %+v", found.Name(), found.p.(*kwok).options)
	}
	for _, bad := range []KwokOptions{
		{ExtraArgs: map[string][]string{"kubelet": {"v=4"}}},
		{ExtraArgs: map[string][]string{"etcd": {"--v=4"}}},
		{ExtraArgs: map[string][]string{"etcd": {"v"}}},
	} {
		if _, err := bad.apply(common, make([]int, len(kwokPorts)), ""); err == nil {
			t.Errorf("options %+v are accepted", bad)
		}
	}
}

func TestOnlyKwokHasComponents(t *testing.T) {
	ws := clone(t)
	for _, c := range All(ws) {
		err := c.Kill(t.Context(), "kubelet")
		if err == nil {
			t.Errorf("%s: a kubelet was killed", c.Name())
		}
		if (len(c.Components()) > 0) != (c.Name() == "kwok") {
			t.Errorf("%s has the components %v", c.Name(), c.Components())
		}
	}
}

func TestRunContainers(t *testing.T) {
	node := func(runtime string, annotations map[string]string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: runtime}}}
	}
	real, fake := node("containerd://2.1.4", nil), node("kwok-v0.8.0", nil)
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		want  bool
	}{
		"none":                          {nil, false},
		"real":                          {[]corev1.Node{real}, true},
		"simulated":                     {[]corev1.Node{fake}, false},
		"simulated beside real":         {[]corev1.Node{real, fake}, false},
		"simulated, says it is no such": {[]corev1.Node{node("containerd://1.7", map[string]string{"kwok.x-k8s.io/node": "fake"})}, false},
	} {
		if got := runContainers(tc.nodes); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLoadImages(t *testing.T) {
	fakeEngine(t, "")
	ws := clone(t)
	var out bytes.Buffer
	if err := (&Cluster{ws: ws, p: &kwok{ws: ws}}).LoadImages(t.Context(), &out, "x:1"); err != nil || !strings.Contains(out.String(), "simulated") {
		t.Errorf("kwok: %v, output %q", err, out.String())
	}
	t.Setenv("PATH", noImages(t))
	if err := (&Cluster{ws: ws, p: &kind{ws: ws}}).LoadImages(t.Context(), io.Discard, "x:1"); err == nil || !strings.Contains(err.Error(), "x:1 is neither a file nor an image of docker: build it or pull it first") {
		t.Errorf("kind: %v", err)
	}
	if err := (&Cluster{ws: ws, p: &existing{ws: ws}}).LoadImages(t.Context(), io.Discard, "x:1"); err == nil || !strings.Contains(err.Error(), "push x:1 to a registry") {
		t.Errorf("existing: %v", err)
	}
}

// The node gets a folder of the clone, whatever its path.
func TestKindConfig(t *testing.T) {
	type mount struct{ HostPath, ContainerPath string }
	var c struct {
		Networking           struct{ DisableDefaultCNI bool }
		KubeadmConfigPatches []string
		Nodes                []struct{ ExtraMounts []mount }
	}
	dir := `/home/a "b" c/audit`
	for _, ownImage := range []bool{true, false} {
		if err := yaml.Unmarshal([]byte(config(ownImage, dir)), &c); err != nil || c.Networking.DisableDefaultCNI != ownImage || len(c.KubeadmConfigPatches) != 2 ||
			len(c.Nodes) != 1 || !slices.Equal(c.Nodes[0].ExtraMounts, []mount{{dir, "/audit"}}) {
			t.Errorf("own image %v: %+v, %v", ownImage, c, err)
		}
	}
	var patch struct {
		APIServer struct {
			ExtraArgs    map[string]string
			ExtraVolumes []struct{ MountPath string }
		}
	}
	if err := yaml.Unmarshal([]byte(c.KubeadmConfigPatches[1]), &patch); err != nil || len(patch.APIServer.ExtraVolumes) != 1 ||
		!strings.HasPrefix(patch.APIServer.ExtraArgs["audit-log-path"], patch.APIServer.ExtraVolumes[0].MountPath+"/") {
		t.Errorf("the patch of kubeadm's configuration: %+v, %v", patch, err)
	}
}

func TestKindAuditPolicyThatIsMissing(t *testing.T) {
	fakeEngine(t, "")
	ws := clone(t)
	t.Setenv("AUDIT_POLICY", filepath.Join(ws.Root, "none.yaml"))
	fatal.If(t, os.MkdirAll(ws.Path(), 0o755))
	k := &kind{ws: ws}
	if err := k.up(t.Context(), Status{State: Absent}, io.Discard); err == nil || !strings.Contains(err.Error(), "AUDIT_POLICY: open") {
		t.Errorf("up: %v", err)
	}
}

// A pretended is a cluster that only counts how often it is removed.
type pretended struct {
	provider
	downs int
}

func (p *pretended) name() string                          { return "pretended" }
func (p *pretended) down(context.Context, io.Writer) error { p.downs++; return nil }

// Whoever has made a cluster removes it, but not under others that use it.
func TestReleaseLeavesTheClusterToOthers(t *testing.T) {
	ws := clone(t)
	p := &pretended{}
	maker, other := &Cluster{ws: ws, p: p}, &Cluster{ws: ws, p: p}
	if used, err := maker.used(); used || err != nil {
		t.Errorf("of a new clone: used %v, %v", used, err)
	}
	for _, c := range []*Cluster{maker, other} {
		fatal.If(t, c.hold())
	}
	maker.created = true
	var out bytes.Buffer
	if err := maker.Release(t.Context(), &out); err != nil || p.downs != 0 || !strings.Contains(out.String(), "another command uses it") {
		t.Errorf("released under another: %v, removed %d times, and said %q", err, p.downs, out.String())
	}
	if err := other.Release(t.Context(), &out); err != nil || p.downs != 0 {
		t.Errorf("the other one has not made it: %v, removed %d times", err, p.downs)
	}
	maker.created = true
	if err := errors.Join(maker.hold(), maker.Release(t.Context(), &out)); err != nil || p.downs != 1 {
		t.Errorf("released at last: %v, removed %d times", err, p.downs)
	}
	if err := errors.Join(other.hold(), maker.Down(t.Context(), &out)); err != nil || p.downs != 2 {
		t.Errorf("make down: %v, removed %d times", err, p.downs)
	}
	// make up has found what a test had made, and has ended.
	out.Reset()
	maker.created = true
	if err := errors.Join(other.Keep(), other.Release(t.Context(), &out), maker.Release(t.Context(), &out)); err != nil || p.downs != 2 || !strings.Contains(out.String(), "make up") {
		t.Errorf("released after make up: %v, removed %d times, and said %q", err, p.downs, out.String())
	}
	maker.created = true
	if err := errors.Join(other.Down(t.Context(), &out), maker.Release(t.Context(), &out)); err != nil || p.downs != 4 {
		t.Errorf("released after make up and make down: %v, removed %d times", err, p.downs)
	}
}

// Whatever is wrong with it: without its objects they could not go on.
func TestNotMadeAnewUnderOthers(t *testing.T) {
	ws := clone(t)
	testfile.WriteAll(t, ws.Root, map[string]string{
		"scripts/controlplane/go.mod":    "module x\n\nrequire k8s.io/kubernetes v1.36.3\n",
		"scripts/controlplane/go.sum":    "",
		"scripts/controlplane/kwok.yaml": "{}",
	})
	k := &kwok{ws: ws}
	for name, stamp := range map[string]string{"of another version": "another", "half-made": ""} {
		fatal.If(t, os.MkdirAll(k.dir(), 0o755))
		if stamp != "" {
			fatal.If(t, os.WriteFile(k.dir("stamp"), []byte(stamp), 0o644))
		}
		err := k.up(t.Context(), Status{State: Broken, Detail: "it is " + name, Used: "a shell uses it"}, io.Discard)
		if err == nil || err.Error() != "kwok: it is "+name+"; and a shell uses it" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(k.dir()); err != nil {
			t.Errorf("%s: its folder is gone: %v", name, err)
		}
		fatal.If(t, os.RemoveAll(k.dir()))
	}
}

func TestLockWaits(t *testing.T) {
	ws := clone(t)
	unlock, waited, err := lockClone(context.Background(), ws, io.Discard)
	if err != nil || waited {
		t.Fatalf("the first lock: waited %v, %v", waited, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if _, _, err := lockClone(ctx, ws, &out); err == nil || !strings.Contains(out.String(), "waiting") {
		t.Errorf("a second lock: %v, output %q", err, out.String())
	}
	fatal.If(t, unlock())
	unlock, _, err = lockClone(context.Background(), ws, io.Discard)
	fatal.If(t, err)
	fatal.If(t, unlock())
}

func TestEnviron(t *testing.T) {
	ws := clone(t)
	t.Setenv("KUBECONFIG", "/somewhere/else")
	t.Setenv("KUBERC", "/somewhere/else")
	p := &kwok{ws: ws}
	env := map[string][]string{}
	for _, kv := range environ(ws, p) {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = append(env[name], value)
	}
	if got := env["KUBECONFIG"]; len(got) != 1 || got[0] != p.kubeconfig() {
		t.Errorf("KUBECONFIG = %v", got)
	}
	if got := env["PATH"]; len(got) != 1 || !strings.HasPrefix(got[0], ws.Bin("")) {
		t.Errorf("PATH = %v does not start with the workshop's kubectl", got)
	}
	if got := env["KUBECACHEDIR"]; len(got) != 1 || !strings.HasPrefix(got[0], ws.Root) {
		t.Errorf("KUBECACHEDIR = %v is outside the clone", got)
	}
	if got := env["KUBERC"]; len(got) != 1 || got[0] != "off" {
		t.Errorf("KUBERC = %v: kubectl reads its owner's preferences", got)
	}
}

func TestSkew(t *testing.T) {
	for _, tc := range []struct {
		server, clientGo string
		note             bool
	}{
		{"v1.36.3", "v0.36.3", false},
		{"v1.35.8", "v0.36.3", false},
		{"v1.37.0", "v0.36.3", false},
		{"v1.34.11+k3s1", "v0.36.3", true},
		{"v1.38.0-alpha.1", "v0.36.3", true},
		{"unknown", "v0.36.3", true},
	} {
		if note := skew(tc.server, tc.clientGo); (note != "") != tc.note {
			t.Errorf("skew(%s, %s) = %q", tc.server, tc.clientGo, note)
		}
	}
}

// A pin names the minor version that chooses it, and carries its digest.
func TestNodeImagesArePinned(t *testing.T) {
	for minor, image := range nodeImages {
		if !strings.HasPrefix(image, "kindest/node:v"+minor+".") || !strings.Contains(image, "@sha256:") {
			t.Errorf("K8S_VERSION=%s is pinned to %s", minor, image)
		}
	}
}

func TestKindFailureIsShort(t *testing.T) {
	ws := clone(t)
	t.Setenv("PATH", t.TempDir()) // no container engine
	k := &kind{ws: ws}
	err := k.explain(context.Background(), "create cluster", os.ErrDeadlineExceeded, strings.Repeat("noise\n", 10_000))
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "the container engine went away") {
		t.Errorf("error = %.600v", err)
	}
	if log, err := os.ReadFile(ws.Path("logs", "kind.log")); err != nil || len(log) != 60_000 {
		t.Errorf("kind's output was not kept: %d bytes, %v", len(log), err)
	}
}

// Lessons beside each other forget at the same time, and while their kubectls write.
func TestForgetDiscoveryWhileKubectlWrites(t *testing.T) {
	ws := clone(t)
	c := &Cluster{ws: ws, p: &kwok{ws: ws}}
	server := filepath.Join(kubectlCache(c.p), "discovery", "127.0.0.1_1")
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = os.MkdirAll(server, 0o755)
			_ = os.WriteFile(filepath.Join(server, fmt.Sprint(i)), nil, 0o644)
			if i == 0 {
				close(began)
			}
		}
	})
	<-began // without a file there would be nothing to forget
	var lessons sync.WaitGroup
	for range 2 {
		lessons.Go(func() {
			for range 500 {
				if err := c.ForgetDiscovery(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	lessons.Wait()
	cancel()
	writers.Wait()
	fatal.If(t, c.ForgetDiscovery())
	if left, err := os.ReadDir(kubectlCache(c.p)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
