package runner

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Watch checks a task again at each save: the one that TASK names, else the first
// of the step that has not passed, and then the next one.
func Watch(ctx context.Context, ws workspace.Workspace, _ []string) error {
	v := given()
	for checked := false; ; checked = true {
		t, _, err := currentTask(ws, v)
		if err != nil && checked {
			fmt.Println(err)
			return nil
		}
		if err != nil {
			return couldNotCheck(err)
		}
		err = watchTask(ctx, ws, t, v.task == "")
		if ctx.Err() != nil {
			return nil // Ctrl-C is how it ends
		}
		if err != nil {
			return couldNotCheck(err)
		}
	}
}

// settled is for how long nothing must happen after a save: editors write a file
// in several steps.
const settled = 150 * time.Millisecond

func watchTask(ctx context.Context, ws workspace.Workspace, t exercise.Task, untilPassed bool) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching files: %w", err)
	}
	defer w.Close()
	for {
		// Folders, because many editors replace the file that they save; again each time, because make reset, too, has made others.
		err = filepath.WalkDir(t.Dir(exercise.Work(ws)), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			return w.Add(path)
		})
		if err != nil {
			return fmt.Errorf("watching files: %w", err)
		}
		fmt.Printf("\n%s\n", time.Now().Format(time.TimeOnly))
		tasks, err := t.UpTo()
		if err != nil {
			return err
		}
		passed, err := checkTasks(ctx, ws, tasks)
		if err != nil || passed && untilPassed {
			return err
		}
		fmt.Printf("Save a file in %s to check it again; Ctrl-C ends this\n", t.Shown(""))
		if err := saved(ctx, w); err != nil {
			return err
		}
	}
}

// saved waits for the end of a save.
func saved(ctx context.Context, w *fsnotify.Watcher) error {
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-w.Errors:
			return fmt.Errorf("watching files: %w", err)
		case <-quiet:
			return nil
		case event := <-w.Events:
			name := filepath.Base(event.Name)
			// An editor's own files, and ours.
			if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || event.Op == fsnotify.Chmod {
				continue
			}
			quiet = time.After(settled)
		}
	}
}
