// Command etcd is etcd itself: its module has no main package that can be
// pinned as a tool beside Kubernetes, so this one calls the same entry point.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
