package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

var refusedConnection = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

func TestAWatchWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = time.Hour
		begun, tries := time.Now(), 0
		config := &rest.Config{Host: "http://server.test", QPS: -1, Transport: answers(func(r *http.Request) (*http.Response, error) {
			tries++
			if time.Since(begun) < outage {
				return nil, refusedConnection
			}
			return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(""))}, nil
		})}
		WaitForServer(config)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		watch, err := client.CoreV1().ConfigMaps("n").Watch(klog.NewContext(t.Context(), logger), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watch.Stop()
		if said := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(said, "is away") != 1 || strings.Count(said, "is back") != 1 {
			t.Errorf("want the outage and its end once each in the log:\n%s", said)
		}
		if after := time.Since(begun) - outage; after > 2*lookForServer || tries < 1000 || tries > 4000 {
			t.Errorf("open %s after the server's return, at try %d", after, tries)
		}

		begun, tries = time.Now(), 0
		if _, err := client.CoreV1().ConfigMaps("n").Get(t.Context(), "a", metav1.GetOptions{}); !away(err) || tries != 1 {
			t.Errorf("a request that is no watch: %d tries, %v", tries, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := client.CoreV1().ConfigMaps("n").Watch(ctx, metav1.ListOptions{}); err == nil || time.Since(begun) != time.Minute {
			t.Errorf("a watch that is no longer wanted: %v after %s", err, time.Since(begun))
		}
	})
}

func TestAKeyWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = time.Hour
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		begun := time.Now()
		var back []time.Duration // after the server's return
		l := New("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
			if time.Since(begun) < outage {
				return 0, fmt.Errorf("writing: %w", refusedConnection)
			}
			if back = append(back, time.Since(begun)-outage); len(back) == 1 {
				return 0, errors.New("an ordinary error")
			}
			return 0, nil
		}, Options{})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.Add(a, "")
		time.Sleep(2 * outage)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// The outage does not count as failures: the next try comes as soon as after a first one.
		if len(back) != 2 || back[0] > 2*lookForServer || back[1]-back[0] != 10*time.Millisecond {
			t.Errorf("tried %s after the server's return", back)
		}
		alarms := 0
		for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if entry.Type == ktesting.LogError {
				alarms++
			}
		}
		if alarms != 2 {
			t.Errorf("%d alarms, want one for the outage and one for the error", alarms)
		}
	})
}
