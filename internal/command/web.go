package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/gofrs/flock"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/cluster"
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
	origin, err := forwardedOrigin(os.Getenv("HOST"))
	if err != nil {
		return err
	}
	listener, err := listen(os.Getenv("PORT"))
	if err != nil {
		return err
	}
	defer listener.Close() // if Serve does not get it
	c, err := keepUp(ctx, ws)
	if err != nil {
		return err
	}
	// The path of a socket has at most 100 bytes, so this is not below the clone.
	dir, err := os.MkdirTemp("", "workshop-web-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	begun, err := leadsTo(c.Kubeconfig())
	if err != nil {
		return err
	}
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
	options := web.Options{Workspace: ws, Prefix: prefix, Origin: origin, Xray: hub.Handler(), Tour: hub.Tour}
	lock := flock.New(ws.Path("page.lock"))
	if locked, err := lock.TryLock(); err != nil {
		return fmt.Errorf("locking what the page remembers: %w", err)
	} else if locked {
		options.State = ws.Path("page.json")
	} else {
		fmt.Println("Another make web of this clone is open, so this one forgets your place, ticks and settings when it ends.")
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	options.Look = func(ctx context.Context) web.Cluster {
		look := web.Cluster{Name: c.Name()}
		if now, err := leadsTo(c.Kubeconfig()); err == nil && now != begun {
			look.Error = "The cluster was made anew under this page: end make web with Ctrl-C, and run it again."
		} else if err := cluster.Healthy(ctx, c.Kubeconfig()); err != nil {
			look.Error = err.Error()
		}
		for _, fault := range proxy.Active() {
			look.Faults = append(look.Faults, string(fault))
		}
		return look
	}
	options.Board, options.Place, options.Follow = pathOf("DIR"), pathOf("PLACE"), pathOf("FOLLOW")
	options.Env = append(workspace.Without(c.Environ(), lesson.PrefixVariable, "DIR", "PLACE", "FOLLOW", "PORT", "HOST", "KUBECONFIG", "KUBECACHEDIR"),
		prefix.Environ(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+filepath.Join(dir, "kubectl-cache"), report.Variable+"="+socket)
	reach := "Only this machine reaches it, and only with this token."
	if origin != "" {
		reach = "It opens a shell as you for everybody who has this token."
	}
	opener := ""
	defer func() { _ = os.Remove(opener) }()
	return web.Serve(ctx, listener, options, func(s *web.Server) {
		fmt.Printf("\nThe workshop is at\n\n  %s\n\n%s Ctrl-C ends the page, its terminals and all that runs in them; the cluster stays.\n", s.Address(), reach)
		if term.IsTerminal(int(os.Stdout.Fd())) {
			opener = openBrowser(ws, s.Address())
		}
	})
}

// leadsTo returns what tells one API server from another: its address and its CA.
func leadsTo(kubeconfig string) (string, error) {
	config, err := cluster.Config(kubeconfig)
	if err != nil {
		return "", err
	}
	err = rest.LoadTLSFiles(config)
	return config.Host + "\n" + string(config.CAData), err
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

// forwardedOrigin checks HOST, the beginning of the address under which a forwarded port is reached.
func forwardedOrigin(host string) (string, error) {
	if host == "" {
		return "", nil
	}
	u, err := url.Parse(strings.ToLower(host))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path+u.RawQuery+u.Fragment != "" || strings.Contains(u.Host, "*") {
		return "", fmt.Errorf("HOST=%s is not the beginning of an address: give scheme, name and port as your browser shows them, such as HOST=https://learner-8080.example.org, or nothing if HOST is not meant for this: make web HOST=", host)
	}
	// As browsers write it.
	return u.Scheme + "://" + strings.TrimSuffix(u.Host, map[string]string{"http": ":80", "https": ":443"}[u.Scheme]), nil
}

// openBrowser opens the page where there is somebody to see it, and returns the file
// that leads there. The address is not on the browser's command line, because other
// users of this machine can read that.
func openBrowser(ws workspace.Workspace, address string) (file string) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return ""
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	f, err := os.CreateTemp(ws.Path(), "open-*.html") // with mode 0600; not in /tmp, which a browser in a snap does not see
	if err != nil {
		return ""
	}
	_, err = fmt.Fprintf(f, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\"><a href=\"%[1]s\">The workshop</a>\n", address)
	cmd := exec.Command(path, f.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the browser is not ours to end
	if errors.Join(err, f.Close()) == nil && cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
	return f.Name()
}
