package proc

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"
)

// Go runs the go command to its end, as Run does, with a temporary folder that goes with it: go build leaves its
// own behind when it is interrupted, and that holds hundreds of megabytes. Path and Grace of c are set here.
func Go(ctx context.Context, c Cmd) (err error) {
	if c.Env == nil {
		c.Env = os.Environ()
	}
	of := ""
	for _, kv := range c.Env {
		if dir, ok := strings.CutPrefix(kv, "GOTMPDIR="); ok {
			of = dir
		}
	}
	temp, err := os.MkdirTemp(of, "workshop-go-") // without GOTMPDIR in TMPDIR, as go does
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	c.Path, c.Env, c.Grace = "go", append(slices.Clip(c.Env), "GOTMPDIR="+temp), 10*time.Second
	return Run(ctx, c)
}
