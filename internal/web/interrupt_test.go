package web

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/testenv"
)

// Ctrl-C ends make web with all that runs in its terminals, and leaves no file and no port.
func TestInterruptLeavesNothing(t *testing.T) {
	e := testenv.New(t)
	program := e.Program("./scripts/workshop")
	temp := t.TempDir()
	p := e.Start(testenv.Command{Path: program, Args: []string{"web"}, Timeout: 3 * time.Minute, Env: []string{"TMPDIR=" + temp, "PORT=", "HOST=", "DISPLAY=", "WAYLAND_DISPLAY="}})
	address := ""
	e.Eventually(time.Minute, func(context.Context) error {
		address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`).FindString(p.Stdout())
		if address == "" {
			return fmt.Errorf("no address is printed; %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	base, _, _ := strings.Cut(address, "/?")
	c := &client{Client: &http.Client{Jar: jar, Timeout: time.Minute}, t: t, base: base}
	if r := c.get(address); r.StatusCode != http.StatusOK {
		t.Fatalf("opening the page: %s", r.Status)
	}
	var pids []int
	for range 2 {
		s := c.terminal()
		s.keys("sleep 1000 & echo pid $!\r(trap '' HUP INT; sleep 1000 & echo pid $!); kubectl get pods --watch & echo pid $!\r")
		s.keys("echo $WORKSHOP_XRAY; kubectl config view --minify --output jsonpath='{.current-context}'; touch $TMPDIR/left; sleep 1000 # fore\"\"ground\r")
		s.shows("faultproxy")
		found := regexp.MustCompile(`pid (\d+)\r\n`).FindAllStringSubmatch(s.output.String(), -1)
		if len(found) != 3 || !strings.Contains(s.output.String(), temp) {
			t.Fatalf("processes %v\n%q", found, s.output.String())
		}
		for _, m := range found {
			pid, _ := strconv.Atoi(m[1])
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		if !runs(pid) {
			t.Fatalf("process %d does not run before the interrupt", pid)
		}
	}
	// As from a terminal: to all of its group.
	if err := unix.Kill(-p.Pid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	r := p.Wait()
	if r.ExitCode != 0 || r.Stderr != "" || r.TimedOut {
		t.Errorf("exit code %d, timed out %v\n%s", r.ExitCode, r.TimedOut, r.Stderr)
	}
	for _, pid := range pids {
		if runs(pid) {
			t.Errorf("process %d is left", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	files, err := filepath.Glob(filepath.Join(temp, "*"))
	if len(files) > 0 || err != nil {
		t.Errorf("files are left: %v %v", files, err)
	}
	listener, err := net.Listen("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Errorf("the port is still taken: %v", err)
	} else {
		_ = listener.Close()
	}
}
