package engine

import (
	"context"
	"strings"
	"testing"
)

func TestFindNone(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Find(context.Background())
	if err == nil || !strings.Contains(err.Error(), "CLUSTER=kwok") {
		t.Errorf("error %v does not say what to do without an engine", err)
	}
}

// The messages are those of docker 20.10 and 28.2.
func TestExplain(t *testing.T) {
	for _, tc := range []struct{ stderr, want string }{
		{"Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n", "start it"},
		{"Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get ...\n", "usermod -aG docker"},
		{"permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get ...\n", "usermod -aG docker"},
		{"Error: something else\nmore of it\n", "Error: something else"},
	} {
		if got := explain(tc.stderr); !strings.Contains(got, tc.want) {
			t.Errorf("explain(%q) = %q, want %q in it", tc.stderr, got, tc.want)
		}
	}
}
