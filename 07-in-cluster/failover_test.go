package incluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/fatal"
)

// The lease of the failovers. A rollout sets it.
const (
	shortLease    = 5 * time.Second
	shortDeadline = 2 * time.Second
	shortRetry    = time.Second
	shortNextTry  = shortRetry * 22 / 10
)

// A strike ends the leadership of a pod.
type strike struct {
	what     string
	releases bool // whether the leader can still let go of its lease
	do       func(d *deployment, leader *corev1.Pod)
	// after runs when the next one leads. It undoes the strike, and may return when the
	// process of the leader has ended.
	after func(d *deployment, leader *corev1.Pod, next term) (ended time.Time)
}

var strikes = []strike{
	{"pod deleted", true, deletePod, func(*deployment, *corev1.Pod, term) (ended time.Time) { return }},
	{"process killed", false, killProcess, func(d *deployment, leader *corev1.Pod, _ term) (ended time.Time) { restarted(d, leader); return }},
	{"cut off", false, cutOff, endedInTime},
}

// failovers has the leader die in every way: three times, or as often as FAILOVERS says.
func failovers(t *testing.T) int {
	t.Helper()
	n := os.Getenv("FAILOVERS")
	if n == "" {
		return len(strikes)
	}
	count, err := strconv.Atoi(n)
	if err != nil || count < 1 {
		t.Fatalf("FAILOVERS=%s: want how many, such as 20", n)
	}
	return count
}

func (d *deployment) failover(log auditLog, i int) {
	d.t.Helper()
	s := strikes[i%len(strikes)]
	d.rolledOut()
	before := d.leader("")
	leader, err := d.client.CoreV1().Pods(name).Get(d.Context(), podOf(before), metav1.GetOptions{})
	fatal.If(d.t, err)
	struck := time.Now()
	s.do(d, leader)
	d.leader(before)
	next := d.gap(log, s, struck)
	pod := fmt.Sprintf("after-%d", i)
	d.pod(pod)
	d.marked(pod)
	ended := s.after(d, leader, next)
	writes, err := log.read()
	fatal.If(d.t, err)
	d.t.Logf("%s\n%s", s.what, timeLine(writes, next, struck, ended))
}

func deletePod(d *deployment, leader *corev1.Pod) {
	d.t.Helper()
	fatal.If(d.t, d.client.CoreV1().Pods(name).Delete(d.Context(), leader.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(leader.UID))}))
}

// onNode runs a command on the node of a pod. A node's name is that of its container.
func (d *deployment) onNode(pod *corev1.Pod, command ...string) {
	d.t.Helper()
	if _, err := runOnNode(d.Context(), pod, command...); err != nil {
		d.t.Fatal(err)
	}
}

func runOnNode(ctx context.Context, pod *corev1.Pod, command ...string) (string, error) {
	runtime, err := engine.Find(ctx)
	if err != nil {
		return "", err
	}
	output, err := runtime.Run(ctx, append([]string{"exec", pod.Spec.NodeName}, command...)...)
	if err != nil {
		err = fmt.Errorf("on node %s: %w", pod.Spec.NodeName, err)
	}
	return output, err
}

// killProcess kills a container's process on its node, as the kernel does when
// memory runs out. The kubelet starts it again in the same pod, but that is another
// process, and so another identity.
func killProcess(d *deployment, pod *corev1.Pod) {
	d.t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	d.onNode(pod, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id)
}

// restarted waits until the kubelet has started a pod's container once more.
func restarted(d *deployment, before *corev1.Pod) {
	d.t.Helper()
	want := before.Status.ContainerStatuses[0].RestartCount + 1
	d.Eventually(4*time.Minute, func(ctx context.Context) error {
		pod, err := d.client.CoreV1().Pods(before.Namespace).Get(ctx, before.Name, metav1.GetOptions{})
		if err == nil && (pod.Status.ContainerStatuses[0].RestartCount != want || !pod.Status.ContainerStatuses[0].Ready) {
			err = fmt.Errorf("want %d restarts and ready: %+v", want, pod.Status.ContainerStatuses[0])
		}
		return err
	})
}

// toServer is about what pods send to the API server; kube-proxy has replaced the
// Service's address by then.
const toServer = `iptables --wait $0 INPUT --source $1 --protocol tcp --dport 6443 --jump `

// dropPackets drops what a pod sends to the API server. What the API server sends still
// arrives, which is worse than a cut in both directions: the leader goes on to hear what
// it has to do. The probes of the kubelet pass.
const dropPackets = toServer + `DROP`

// cutOff has the API server vanish for the leader's pod, without a word.
func cutOff(d *deployment, leader *corev1.Pod) {
	d.t.Helper()
	d.t.Cleanup(func() { // harmless when the cut has been mended
		_, _ = runOnNode(context.WithoutCancel(d.Context()), leader, "sh", "-c", dropPackets, "--delete", leader.Status.PodIP)
	})
	d.onNode(leader, "sh", "-c", dropPackets, "--insert", leader.Status.PodIP)
}

// endedInTime mends the cut, and checks that the leader had ended by itself before
// its lease did.
func endedInTime(d *deployment, leader *corev1.Pod, next term) (ended time.Time) {
	d.t.Helper()
	d.onNode(leader, "sh", "-c", dropPackets, "--delete", leader.Status.PodIP)
	restarted(d, leader)
	d.Eventually(time.Minute, func(context.Context) error { // a busy node writes the last lines later
		log := d.kubectl("logs", "-n", name, leader.Name, "--previous", "--timestamps", "--tail=10")
		for line := range strings.Lines(log) { // behind it may be what the controllers say when their context ends
			if stamp, message, _ := strings.Cut(line, " "); strings.Contains(message, "the lease is lost") {
				var err error
				ended, err = time.Parse(time.RFC3339Nano, stamp)
				return err
			}
		}
		return fmt.Errorf("the leader that was cut off said at last: %s", log)
	})
	if left := next.received.Sub(ended); left <= 0 {
		d.t.Errorf("the leader that was cut off ended %s after the next one had asked for the lease", -left)
	}
	return ended
}

// gap looks in the audit log how long nobody led, by the clock of the API server.
func (d *deployment) gap(log auditLog, s strike, struck time.Time) (next term) {
	d.t.Helper()
	writes, err := log.read()
	fatal.If(d.t, err)
	terms, err := judgeTerms(writes)
	fatal.If(d.t, err)
	// On a busy machine, a leader may also lose its lease by itself, later.
	i := slices.IndexFunc(terms, func(t term) bool { return t.received.After(struck) })
	if i < 0 {
		d.t.Fatalf("%s: nobody has taken the lease since", s.what)
	}
	next = terms[i]
	last := next.last // write to the lease of the leader before
	// The next try of the standby gets a lease that was released. Another one it gets
	// when it has seen no renewal for the length of the lease: it may see the last one
	// a try late, and come a try late.
	least, most := time.Duration(0), shortNextTry
	if !s.releases {
		least, most = shortLease, shortLease+2*shortNextTry
	}
	gap := next.done.Sub(last.done)
	if released := last.holder == ""; released != s.releases || next.done.Sub(last.received) < least || gap > most+slack {
		d.t.Errorf("%s: released %v, and taken %s after the last write to the lease; want %v, and %s to %s", s.what, released, gap, s.releases, least, most)
	}
	d.t.Logf("%s: taken %s after the strike, and %s after the last write to the lease (%s to %s)", s.what,
		next.done.Sub(struck).Round(time.Millisecond), gap.Round(time.Millisecond), least, most)
	return next
}

// timeLine draws a failover, in columns of a tenth of a second.
func timeLine(writes []write, next term, struck, ended time.Time) string {
	const column = 100 * time.Millisecond
	from, until := struck.Add(-time.Second), next.done.Add(time.Second)
	rows := map[string][]byte{}
	set := func(row string, at time.Time, symbol byte) {
		if rows[row] == nil {
			rows[row] = bytes.Repeat([]byte{' '}, int(until.Sub(from)/column)+1)
		}
		if !at.Before(from) && !at.After(until) {
			rows[row][at.Sub(from)/column] = symbol
		}
	}
	for second := range int(until.Sub(struck)/time.Second) + 1 {
		set("s", struck.Add(time.Duration(second)*time.Second), byte('0'+second%10))
	}
	pods := map[string]string{next.last.pod: "old", next.pod: "new"}
	for _, symbol := range []byte("wr") { // renewals over other writes
		for _, w := range writes {
			if row := pods[w.pod]; row != "" && (w.resource == "leases") == (symbol == 'r') {
				set(row, w.done, symbol)
			}
		}
	}
	if next.last.holder == "" {
		set("old", next.last.done, 'L')
	}
	set("new", next.done, 'T')
	set("old", struck, 'X')
	if !ended.IsZero() {
		set("old", ended, 'E')
	}
	var lines []string
	for _, row := range []string{"s", "old", "new"} {
		lines = append(lines, fmt.Sprintf("%-4s%s", row, bytes.TrimRight(rows[row], " ")))
	}
	return strings.Join(lines, "\n") + "\nw writes, r renews the lease, X is struck, L lets the lease go, E ends, T takes the lease"
}

// rolledOut waits until every replica is of the latest kind, and ready.
func (d *deployment) rolledOut() {
	d.t.Helper()
	d.kubectl("rollout", "status", "-n", name, "deployment/"+name, "--timeout=5m")
}

// shorten changes settings: the lease gets short, and the X-ray can look into the pods.
func (d *deployment) shorten() {
	d.t.Helper()
	var patch []string
	for _, flag := range []string{"lease-duration=" + shortLease.String(), "renew-deadline=" + shortDeadline.String(), "retry-period=" + shortRetry.String(), d.insideArgument()} {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"-%s"}`, flag))
	}
	d.change(strings.Join(patch, ","))
	d.rolledOut()
}

func (d *deployment) change(patch string) {
	d.t.Helper()
	if _, err := d.client.AppsV1().Deployments(name).Patch(d.Context(), name, types.JSONPatchType, []byte("["+patch+"]"), metav1.PatchOptions{}); err != nil {
		d.t.Fatal(err)
	}
}

// serverAway takes the API server from the controllers for longer than their lease.
// A few failovers leave the server running: it belongs to other packages' tests, too.
// make chaos asks for many, has the cluster to itself, and kills it.
func (d *deployment) serverAway() {
	d.t.Helper()
	pods, err := d.client.CoreV1().Pods("kube-system").List(d.Context(), metav1.ListOptions{LabelSelector: "component=kube-apiserver"})
	if err != nil || len(pods.Items) != 1 {
		d.t.Fatalf("looking for the API server: %d pods, %v", len(pods.Items), err)
	}
	server := &pods.Items[0]
	if os.Getenv("FAILOVERS") != "" {
		killed := time.Now()
		killProcess(d, server)
		restarted(d, server)
		d.t.Logf("API server killed: ready again after %s", time.Since(killed).Round(time.Second))
		return
	}
	node, err := d.client.CoreV1().Nodes().Get(d.Context(), server.Spec.NodeName, metav1.GetOptions{})
	fatal.If(d.t, err)
	d.t.Cleanup(func() { // harmless when it has been mended
		_, _ = runOnNode(context.WithoutCancel(d.Context()), server, "sh", "-c", resetConnections, "--delete", node.Spec.PodCIDR)
	})
	d.onNode(server, "sh", "-c", resetConnections, "--insert", node.Spec.PodCIDR)
	time.Sleep(shortLease + time.Second)
	rules, err := runOnNode(d.Context(), server, "iptables", "--wait", "--list-rules", "INPUT", "--verbose")
	fatal.If(d.t, err)
	if i := strings.Index(rules, node.Spec.PodCIDR); i < 0 || !strings.Contains(rules[i:], "-c ") || strings.Contains(strings.SplitN(rules[i:], "\n", 2)[0], "-c 0 ") {
		d.t.Errorf("no controller has missed the API server:\n%s", rules)
	}
	d.onNode(server, "sh", "-c", resetConnections, "--delete", node.Spec.PodCIDR)
}

// resetConnections answers every packet from pods to the API server like a host whose
// server has just ended: watches break, and nobody can connect.
const resetConnections = toServer + `REJECT --reject-with tcp-reset`

// leadsAlone reads the audit log: no write of one pod has arrived after the next one
// had taken the lease. So many leaders at least have written something.
func (d *deployment) leadsAlone(log auditLog, leaders int) {
	d.t.Helper()
	writes, err := log.read()
	fatal.If(d.t, err)
	terms, err := judgeTerms(writes)
	if err != nil {
		d.t.Error(err)
	}
	var pods []string
	for _, term := range terms {
		pods = append(pods, fmt.Sprintf("%s (%d)", term.pod, term.writes))
		if term.writes > 0 {
			leaders--
		}
	}
	if leaders > 0 {
		d.t.Errorf("%d leaders too few have written anything", leaders)
	}
	d.t.Logf("%d writes by the leaders %s", len(writes), strings.Join(pods, ", "))
	evictions, err := judgeEvictions(writes)
	if err != nil {
		d.t.Error(err)
	}
	if evictions == 0 {
		d.t.Error("no eviction")
	}
	d.t.Logf("%d evictions", evictions)
}
