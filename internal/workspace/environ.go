package workspace

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// leadAstray are variables of a person's environment that change what the
// workshop's programs do: where bash goes and what it reads, what Go builds, for which
// processor Docker's images are, whether client-go takes this machine for a pod of some
// other cluster, and whether make takes itself for a part of another make.
var leadAstray = []string{"GO111MODULE", "CDPATH", "BASH_ENV", "ENV", "GOOS", "GOARCH", "DOCKER_DEFAULT_PLATFORM",
	"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}

// leadLessonsAstray are further ones that change what bash, curl, kubectl or a script
// of the workshop do. Readers see what a lesson does without them.
var leadLessonsAstray = []string{"BASHOPTS", "SHELLOPTS", "POSIXLY_CORRECT", "GLOBIGNORE", "PROMPT_COMMAND", "PS4", "TMOUT",
	"LANG", "LANGUAGE", "GREP_OPTIONS", "CURL_HOME", "KUBECTL_EXTERNAL_DIFF", "KUBERC", "WORKSHOP_NAMESPACE"}

// loopback is what must never go through a proxy: kwok's and kind's API servers.
const loopback = "127.0.0.1,localhost,::1"

// Environ returns the environment for every program that the workshop starts:
// this process's own, less what would lead such a program astray, and extra.
func Environ(extra ...string) []string {
	env := Without(os.Environ(), append(leadAstray, "NO_PROXY", "no_proxy")...)
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		env = append(env, name+"="+noProxy(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")))
	}
	env = append(env,
		"GOWORK=off", // a go.work in a folder above does not know this module
		"GOFLAGS="+goFlags(os.Getenv("GOFLAGS")),
		"CGO_ENABLED="+cgo(os.Getenv("GOFLAGS")),
	)
	return append(env, extra...)
}

// Toolchain names the version of Go and the variables of env by which it compiles otherwise, or
// keeps its caches elsewhere.
func Toolchain(env []string) string {
	of := runtime.Version()
	for _, variable := range env {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "GO") || name == "CGO_ENABLED" || name == "HOME" || name == "XDG_CACHE_HOME" {
			of += fmt.Sprintf(" %q", variable)
		}
	}
	return of
}

// goFlags keeps of somebody's flags only the one that changes no module. It is
// never empty, which would let `go env -w GOFLAGS` apply. Without -buildvcs=false
// a clone that belongs to another user cannot be built: git then says nothing.
func goFlags(own string) string {
	if slices.Contains(strings.Fields(own), "-race") {
		return "-buildvcs=false -race"
	}
	return "-buildvcs=false"
}

// cgo is off for all that the workshop builds. So the control plane, which has to be
// static for images FROM scratch, and the lessons share their compiled packages, and
// nobody needs a C compiler. Only the race detector is linked by one.
func cgo(flags string) string {
	if slices.Contains(strings.Fields(flags), "-race") {
		return "1"
	}
	return "0"
}

// Quick returns env with go commands that leave out what a lesson does not need: vet, which make
// lint does (where nothing was vetted yet, that takes half a minute, because go vet looks at all
// dependencies first), and the symbol table, with which linking takes almost twice as long. Stack
// traces stay whole.
func Quick(env []string) []string {
	env = slices.Clone(env)
	for i, kv := range env {
		if strings.HasPrefix(kv, "GOFLAGS=") {
			env[i] += " -vet=off -ldflags=-s"
		}
	}
	return env
}

// noProxy adds the loopback addresses to the first list that is not empty.
func noProxy(lists ...string) string {
	for _, list := range lists {
		switch list {
		case "":
			continue
		case "*": // nothing goes through a proxy; as one of several, curl ignores it
			return list
		}
		return list + "," + loopback
	}
	return loopback
}

// Without returns env without the named variables.
func Without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

// ForLessons returns env without what would lead a lesson's shell astray.
func ForLessons(env []string) []string {
	return slices.DeleteFunc(Without(env, slices.Concat(leadAstray, leadLessonsAstray)...), func(kv string) bool {
		return strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "BASH_FUNC_")
	})
}
