package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/term"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/web"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// serveWeb serves the workshop in the browser until it is interrupted.
func serveWeb(ctx context.Context, ws workspace.Workspace, _ []string) (err error) {
	prefix, err := lesson.ParsePrefix(os.Getenv(lesson.PrefixVariable))
	if err != nil {
		return err
	}
	host, err := forwardedHost(os.Getenv("HOST"))
	if err != nil {
		return err
	}
	listener, err := listen(os.Getenv("PORT"))
	if err != nil {
		return err
	}
	defer listener.Close() // if Serve does not get it
	c, err := chooseUp(ctx, ws)
	if err != nil {
		return err
	}
	// The path of a socket has at most 100 bytes, so this is not below the clone.
	dir, err := os.MkdirTemp("", "workshop-web-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The terminals reach the cluster through the fault proxy.
	proxy, namespace, err := faultproxy.StartFor(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig()})
	if err != nil {
		return err
	}
	defer proxy.Close()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := proxy.WriteKubeconfig(kubeconfig, namespace, ""); err != nil {
		return fmt.Errorf("writing the proxy's kubeconfig: %w", err)
	}
	socket := filepath.Join(dir, "xray")
	hub, err := xray.NewHub(proxy, socket)
	if err != nil {
		return fmt.Errorf("starting the X-ray: %w", err)
	}
	defer func() { err = errors.Join(err, hub.Close()) }()
	options := web.Options{Workspace: ws, Prefix: prefix, Host: host, Xray: hub.Handler(), Tour: hub.Tour}
	options.Env = append(workspace.Without(c.Environ(), lesson.PrefixVariable, "PORT", "HOST", "KUBECONFIG", "KUBECACHEDIR"),
		prefix.Environ(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+filepath.Join(dir, "kubectl-cache"), report.Variable+"="+socket)
	return web.Serve(ctx, listener, options, func(s *web.Server) {
		fmt.Printf("\nThe workshop is at\n\n  %s\n\nOnly this machine reaches it. Ctrl-C ends the page, its terminals and all that runs in them; the cluster stays.\n", s.Address())
		openBrowser(s.AddressOnce())
	})
}

// listen listens on this machine alone, on PORT or a free port.
func listen(port string) (net.Listener, error) {
	if port == "" {
		port = "0"
	} else if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, fmt.Errorf("PORT=%s is no port: use a number from 1024 to 65535, or leave it out for a free one", port)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, fmt.Errorf("port %s: %w: choose another one from 1024 on with PORT=, or leave it out for a free one", port, err)
	}
	return listener, nil
}

// forwardedHost checks HOST, the name under which a forwarded port is reached.
func forwardedHost(host string) (string, error) {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	switch {
	case host == "":
		return "", nil
	case strings.ContainsAny(host, "/@*? ") || name == "":
		return "", fmt.Errorf("HOST=%s is no host: give the name in the address of the forwarded port, such as HOST=learner-8080.example.org", host)
	case name == "localhost" || net.ParseIP(name).IsLoopback():
		return "", fmt.Errorf("HOST=%s is this machine, which reaches the page anyway: leave HOST out", host)
	}
	return host, nil
}

// openBrowser opens the page where there is somebody to see it.
func openBrowser(address string) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	path, err := exec.LookPath(program)
	if err != nil || !term.IsTerminal(int(os.Stdout.Fd())) {
		return
	}
	cmd := exec.Command(path, address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the browser is not ours to end
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}
