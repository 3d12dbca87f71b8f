package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"k8s.io/klog/v2"
)

// setUpLog chooses the format of all logs, client-go's included.
func setUpLog(format string, verbosity int) error {
	var level klog.Level
	if err := level.Set(strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("-v %d: %w", verbosity, err)
	}
	switch format {
	case "text":
	case "json":
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-verbosity)})))
	default:
		return fmt.Errorf("-log-format %s: want text or json", format)
	}
	return nil
}
