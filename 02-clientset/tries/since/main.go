// Command since prints what since returns for a list and an object, which the lesson leaves to its
// reader. It asks no server, so it is built quickly.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "since:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("want LIST OBJECT, as JSON")
	}
	list, created := &corev1.ConfigMapList{}, &corev1.ConfigMap{}
	if err := errors.Join(json.Unmarshal([]byte(args[0]), list), json.Unmarshal([]byte(args[1]), created)); err != nil {
		return fmt.Errorf("reading a list and an object: %w", err)
	}
	fmt.Println(since(list, created))
	return nil
}
