// Command tries prints what one of three small functions returns, which the lesson leaves to
// its reader: logins, unlessGone and since. It asks no server, so it is built quickly.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tries:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "logins":
		return json.NewEncoder(os.Stdout).Encode(logins())
	case len(args) == 2 && args[0] == "gone":
		refusal := &apierrors.StatusError{}
		if err := json.Unmarshal([]byte(args[1]), &refusal.ErrStatus); err != nil {
			return fmt.Errorf("reading a Status: %w", err)
		}
		return unlessGone(fmt.Errorf("deleting: %w", refusal))
	case len(args) == 3 && args[0] == "since":
		list, created := &corev1.ConfigMapList{}, &corev1.ConfigMap{}
		if err := errors.Join(json.Unmarshal([]byte(args[1]), list), json.Unmarshal([]byte(args[2]), created)); err != nil {
			return fmt.Errorf("reading a list and an object: %w", err)
		}
		fmt.Println(since(list, created))
		return nil
	}
	return errors.New("want logins, gone STATUS or since LIST OBJECT")
}
