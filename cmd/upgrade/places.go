package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/workspace"
)

const (
	controlPlane  = "scripts/controlplane/go.mod"
	newRepository = "internal/newrepo/repository"
	kubernetes    = "k8s.io/kubernetes"
	openAPI       = "k8s.io/kube-openapi" // follows Kubernetes, with versions of its own
	nodeImages    = "internal/cluster/kind.go"
)

// A place is text of a file that names versions, as {lib} or another of versionsOf.
type place struct{ file, template string }

var places = []place{
	{"02-clientset/reference.md", "\tk8s.io/api v{lib}\n\tk8s.io/apimachinery v{lib}\n\tk8s.io/client-go v{lib}\n"},
	{"02-clientset/reference.md", "client-go v{libminor} belongs to Kubernetes {minor}"},
	{"02-clientset/reference.md", "| v{lib}, for Kubernetes {k8s} |"},
	{"02-clientset/versions_test.go", "client-go v{lib} belongs to Kubernetes {minor}"},
	{"06-controller/reference.md", "k8s.io/sample-controller v{lib}"},
	{"06-controller/icecream_bench_test.go", "k8s.io/sample-controller@v{lib}"},
	{"Makefile", "K8S_VERSION={oldest} to {newest}"},
	{"README.md", "`K8S_VERSION={oldest}` to `{newest}`"},
	{".github/workflows/ci.yaml", "version: [{kinds}]"},
	{"README.md", "You need Go {go}"},
	{"TRAINERS.md", "installers of Go {go}"},
	{newRepository + "/README.md", "You need Go {go}"},
	{".devcontainer/devcontainer.json", `"golang:{go}-bookworm"`},
}

// What the versions in the templates of places look like.
var names = map[string]string{
	"lib": `\d+\.\d+\.\d+`, "k8s": `\d+\.\d+\.\d+`, "libminor": `\d+\.\d+`, "minor": `\d+\.\d+`,
	"oldest": `\d+\.\d+`, "newest": `\d+\.\d+`, "kinds": `[^\]\n]*`, "go": `\d+\.\d+`,
}

func (p place) pattern() *regexp.Regexp {
	pattern := regexp.QuoteMeta(p.template)
	for name, looks := range names {
		pattern = strings.ReplaceAll(pattern, `\{`+name+`\}`, looks)
	}
	return regexp.MustCompile(pattern)
}

func (p place) text(versions map[string]string) string {
	text := p.template
	for name := range names {
		text = strings.ReplaceAll(text, "{"+name+"}", versions[name])
	}
	return text
}

var nodeImage = regexp.MustCompile(`"(\d+\.\d+)": +"kindest/node:v(\d+\.\d+)\.\d+@sha256:[0-9a-f]{64}"`)

// versionsOf returns the versions that all places have to name: those of client-go and
// of Go in the root module, and those that kind has node images for.
func versionsOf(ws workspace.Workspace) (map[string]string, error) {
	lib, err := ws.ModuleVersion("go.mod", "k8s.io/client-go")
	if err != nil {
		return nil, err
	}
	golang, err := ws.GoVersion()
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(filepath.Join(ws.Root, nodeImages))
	if err != nil {
		return nil, err
	}
	var minors, quoted []string
	for _, m := range nodeImage.FindAllStringSubmatch(string(source), -1) {
		minors = append(minors, m[1])
	}
	if len(minors) == 0 {
		return nil, fmt.Errorf("%s names no node image", nodeImages)
	}
	slices.SortFunc(minors, func(a, b string) int { return semver.Compare("v"+a, "v"+b) })
	for _, minor := range minors {
		quoted = append(quoted, strconv.Quote(minor))
	}
	k8s := "1." + strings.TrimPrefix(lib, "v0.")
	return map[string]string{
		"lib": lib[1:], "libminor": semver.MajorMinor(lib)[1:], "k8s": k8s, "minor": semver.MajorMinor("v" + k8s)[1:],
		"oldest": minors[0], "newest": minors[len(minors)-1], "kinds": strings.Join(quoted, ", "),
		"go": semver.MajorMinor("v" + golang)[1:],
	}, nil
}

// compare returns every place that names another version than the root module.
func compare(ws workspace.Workspace) error {
	versions, err := versionsOf(ws)
	if err != nil {
		return err
	}
	errs := []error{compareModules(ws, versions), compareNodeImages(ws, versions)}
	for _, p := range places {
		data, err := os.ReadFile(filepath.Join(ws.Root, p.file))
		if err != nil {
			return err
		}
		found := p.pattern().FindAllString(string(data), -1)
		if len(found) == 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not there any more; cmd/upgrade/places.go says that it is", p.file, p.template))
		}
		for _, text := range found {
			if want := p.text(versions); text != want {
				errs = append(errs, fmt.Errorf("%s: %q, want %q", p.file, text, want))
			}
		}
	}
	return errors.Join(errs...)
}

// compareModules compares what every go.mod requires, and puts in its place.
func compareModules(ws workspace.Workspace, versions map[string]string) error {
	control, err := parse(filepath.Join(ws.Root, controlPlane))
	if err != nil {
		return err
	}
	root, err := parse(filepath.Join(ws.Root, "go.mod"))
	if err != nil {
		return err
	}
	want := map[string]string{kubernetes: "v" + versions["k8s"]}
	for _, path := range staging(control, "k8s.io/") {
		want[path] = "v" + versions["lib"]
	}
	modules, err := ws.Modules()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range modules {
		file := filepath.Join(dir, "go.mod")
		mod, err := parse(filepath.Join(ws.Root, file))
		if err != nil {
			return err
		}
		for _, r := range mod.Require {
			replaced := slices.ContainsFunc(mod.Replace, func(by *modfile.Replace) bool { return by.Old.Path == r.Mod.Path })
			if v := want[r.Mod.Path]; v != "" && r.Mod.Version != v && !replaced {
				errs = append(errs, fmt.Errorf("%s requires %s %s, want %s", file, r.Mod.Path, r.Mod.Version, v))
			}
		}
		for _, r := range mod.Replace {
			v := want[r.Old.Path]
			if r.Old.Path == openAPI {
				v = required(root, openAPI)
			}
			if v != "" && r.New.Version != v {
				errs = append(errs, fmt.Errorf("%s replaces %s by %s, want %s", file, r.Old.Path, r.New.Version, v))
			}
		}
	}
	return errors.Join(errs...)
}

// compareNodeImages compares the images of kind, whose patch releases are of kind's choice.
func compareNodeImages(ws workspace.Workspace, versions map[string]string) error {
	source, err := os.ReadFile(filepath.Join(ws.Root, nodeImages))
	if err != nil {
		return err
	}
	kind, err := ws.ModuleVersion("go.mod", "sigs.k8s.io/kind")
	if err != nil {
		return err
	}
	var errs []error
	if !strings.Contains(string(source), "release notes of kind "+kind+",") {
		errs = append(errs, fmt.Errorf("%s: the node images are not those of the release notes of kind %s; copy them, and name that version in the comment", nodeImages, kind))
	}
	ours := false
	for _, m := range nodeImage.FindAllStringSubmatch(string(source), -1) {
		ours = ours || m[1] == versions["minor"]
		if m[1] != m[2] {
			errs = append(errs, fmt.Errorf("%s: the node image of %s is one of %s", nodeImages, m[1], m[2]))
		}
	}
	if !ours {
		errs = append(errs, fmt.Errorf("%s: no node image of %s; a release of kind has one, with its digest in the release notes", nodeImages, versions["minor"]))
	}
	return errors.Join(errs...)
}

// required returns the version of a module that a go.mod requires.
func required(mod *modfile.File, path string) string {
	for _, r := range mod.Require {
		if r.Mod.Path == path {
			return r.Mod.Version
		}
	}
	return ""
}
