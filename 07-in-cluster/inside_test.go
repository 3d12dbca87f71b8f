package incluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

// xrayPort is where the README has the program in the pod listen for the X-ray.
const xrayPort = "6061"

var forwarding = regexp.MustCompile("(?s)\n```sh\n(leader=.*?)```\n")

// insideArgument has the program listen for the X-ray, on another port than the
// README's: the port must be free on this machine, too.
func (d *deployment) insideArgument() string {
	d.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(d.t, err)
	_, d.xray, err = net.SplitHostPort(listener.Addr().String())
	fatal.If(d.t, errors.Join(err, listener.Close()))
	return "xray-listen=127.0.0.1:" + d.xray
}

// inside runs the README's lines as in a terminal of make web, and follows a policy
// through the loop of the leader in its pod.
func (d *deployment) inside() {
	d.t.Helper()
	text, err := os.ReadFile("README.md")
	fatal.If(d.t, err)
	lines := forwarding.FindStringSubmatch(string(text))
	if lines == nil || !strings.Contains(lines[1], xrayPort) {
		d.t.Fatal("the README has no lines that connect a pod with the X-ray")
	}
	d.Eventually(time.Minute, func(ctx context.Context) error { // a leader of before the rollout may still hold the lease
		pod, err := d.client.CoreV1().Pods(name).Get(ctx, podOf(d.leader("")), metav1.GetOptions{})
		if err == nil && (pod.DeletionTimestamp != nil || !strings.Contains(fmt.Sprint(pod.Spec.Containers[0].Args), d.xray)) {
			err = fmt.Errorf("pod %s leads, which is to go", pod.Name)
		}
		return err
	})
	room := xraytest.Enter(d.t, d.Env)
	began := time.Now()
	p := d.Start(testenv.Command{Path: "/bin/bash", Args: []string{"-c", strings.ReplaceAll(lines[1], xrayPort, d.xray)}, Env: room.Environ(), Timeout: 5 * time.Minute})
	room.Until("the pod reports, with its caches and workers", func(i xray.Item) bool {
		held := map[string]int{}
		for _, c := range i.Caches {
			if c.ResourceVersion != "" {
				held[c.Resource] += c.Objects
			}
		}
		return i.Program == name && len(i.Caches) == 6 && held["healthcheckpolicies"] > 0 && held["pods"] > 0 && i.Workers == 16
	})
	// Nothing but this policy marks this pod, so each step has one cause.
	labels := map[string]string{"app": "inside"}
	if _, err := d.client.CoreV1().Pods(d.namespace).Create(d.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: labels}, Spec: unscheduled}, metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
	d.policyWith("inside", v1alpha1.HealthCheckPolicySpec{PodLabel: "inside", Selector: metav1.LabelSelector{MatchLabels: labels}})
	own := func(step, what, reason string) func(xray.Item) bool {
		return func(i xray.Item) bool {
			return i.Program == name && i.Key == d.namespace+"/inside" && i.Step == step && i.What == what && i.Reason == reason
		}
	}
	room.Until("the way of a policy from its event to the write",
		own("event", "policy added", ""),
		own("queued", "", "policy added"),
		own("phase", "judge", ""),
		own("phase", "mark", ""),
		own("write", "mark", "pod bare lacks a probe"),
		own("phase", "done", ""))
	p.Kill()
	room.Until("the connection has ended", func(i xray.Item) bool { return i.Program == name && i.What == "ended" })
	d.t.Logf("the X-ray of a pod took %s", time.Since(began).Round(time.Millisecond))
}
