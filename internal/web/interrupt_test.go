package web

import (
	"context"
	"fmt"
	"net"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Ctrl-C, and closing the window of make web, end it with all that runs in its terminals,
// and leave no file and no port.
func TestInterruptLeavesNothing(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGHUP": syscall.SIGHUP} { // when the window is closed
		t.Run(name, func(t *testing.T) {
			if ossignal.Ignored(signal) {
				t.Skipf("%s is ignored here, as under nohup, and programs inherit that: run it without", name)
			}
			interruptLeavesNothing(t, signal)
		})
	}
}

func interruptLeavesNothing(t *testing.T, signal syscall.Signal) {
	e := testenv.New(t)
	program := e.Program("./cmd/workshop")
	temp := t.TempDir()
	ports, err := freeport.Of("127.0.0.1", 1) // or somebody else may have it when it is looked at
	fatal.If(t, err)
	p := e.Start(testenv.Command{Path: program, Args: []string{"web"}, Timeout: 3 * time.Minute, Env: []string{"TMPDIR=" + temp, fmt.Sprintf("PORT=%d", ports[0]), "HOST=", "DISPLAY=", "WAYLAND_DISPLAY="}})
	address := ""
	e.Eventually(time.Minute, func(context.Context) error {
		address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/#token=\w+`).FindString(p.Stdout())
		if address == "" {
			return fmt.Errorf("no address is printed; %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	c := visit(t, address)
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
	fatal.If(t, unix.Kill(-p.Pid(), signal))
	r := p.Wait()
	if r.ExitCode != 0 || r.Stderr != "" || r.TimedOut {
		t.Errorf("exit code %d, timed out %v\n%s", r.ExitCode, r.TimedOut, r.Stderr)
	}
	for _, pid := range pids {
		if runs(pid) {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			t.Errorf("process %d is left %.200s", pid, status)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	files, err := filepath.Glob(filepath.Join(temp, "*"))
	if len(files) > 0 || err != nil {
		t.Errorf("files are left: %v %v", files, err)
	}
	listener, err := net.Listen("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Errorf("the port is still taken: %v", err)
	} else {
		_ = listener.Close()
	}
}
