package proc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

// An interrupted go build leaves its temporary folder behind.
func TestGoLeavesNoTemporaryFolder(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		done <- goBuild(ctx, "GOCACHE="+filepath.Join(temp, "cache"), "GOTMPDIR="+temp) // with nothing compiled, it takes seconds
	}()
	err := poll.Until(t.Context(), 5*time.Millisecond, 20*time.Second, func(context.Context) error {
		if found, _ := filepath.Glob(filepath.Join(temp, "*", "go-build*", "b*")); len(found) == 0 {
			return errors.New("go compiles nothing yet")
		}
		return nil
	})
	cancel()
	if err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the interrupt", err)
	}
	entries, err := os.ReadDir(temp)
	fatal.If(t, err)
	if len(entries) != 1 || entries[0].Name() != "cache" {
		t.Errorf("in its folder for temporary files: %v, want the build cache alone", entries)
	}
}

func goBuild(ctx context.Context, env ...string) error {
	return Go(ctx, Cmd{Args: []string{"build", "fmt"}, Env: append(os.Environ(), env...)})
}
