package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Folder is where the contracts of the workshop are, and Format where their format is described.
const (
	Folder = "06-controller/contracts"
	Format = Folder + "/README.md"
)

// A Contract says what a controller has to do: what people do to its objects, what
// must be true afterwards, and what nobody may touch.
type Contract struct {
	Name string // of its folder
	file string

	CRDs       []string // files
	Bystanders []Step   // to apply
	Scenario   []Track
	Hundred    []Step // each is played a hundred times, with the number in place of {{.N}}
	End        []Resource
	Outside    *Outside // what is not in Kubernetes; nil if there is nothing

	Settle time.Duration // how long anything that people wait for may take
	Calm   time.Duration // how long nothing may be written afterwards

	Writes   int // how many it may take for each change that people make, on average
	Requests int // how many a minute there may be at rest
	Copies   int // how many controllers can run on a machine at the same time; any number if zero
	Exit     int // an exit code after SIGTERM that is as good as 0

	Calls int           // how many calls to the outside it may take for each change that people make, on average
	Retry time.Duration // how long what the outside has refused may not be asked for again
}

// A Track is what one person does, one step after the other. The seed chooses how the
// tracks take turns.
type Track struct {
	Name  string
	Steps []Step
}

// The verbs of steps.
const (
	apply  = "apply"  // make the object, or change it to this
	patch  = "patch"  // change these fields; null removes one
	remove = "delete" // delete the object
	wait   = "wait"   // until an object holds at least this
	gone   = "gone"   // until no object does
)

// A Step does something to an object, or waits for one.
type Step struct {
	Verb   string
	Object *unstructured.Unstructured
	where  string // file:line: field
}

// String names the step's object as people do: "ConfigMap a".
func (s Step) String() string {
	if s.Object.GetName() == "" {
		return "a " + s.what()
	}
	return s.what()
}

// what is String without an article.
func (s Step) what() string { return strings.TrimSpace(s.Object.GetKind() + " " + s.Object.GetName()) }

// changes says whether the step does something, and does not only wait.
func (s Step) changes() bool { return s.Verb != wait && s.Verb != gone }

// theirs says whether people make the object that a step is about.
func (c *Contract) theirs(step Step) bool {
	return slices.ContainsFunc(c.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(s Step) bool { return s.Verb == apply && s.String() == step.String() })
	})
}

// removes says whether people delete something in the cluster.
func (c *Contract) removes() bool {
	return slices.ContainsFunc(c.Scenario, func(t Track) bool {
		return slices.ContainsFunc(t.Steps, func(s Step) bool {
			return s.Verb == remove && !c.Outside.is(s.Object.GetAPIVersion(), s.Object.GetKind())
		})
	})
}

// changes counts what people do in the scenario.
func (c *Contract) changes() (n int) {
	for _, t := range c.Scenario {
		for _, step := range t.Steps {
			if step.changes() {
				n++
			}
		}
	}
	return n
}

// unnamed are the kinds of the end state of which no step names an object: how those are called is up
// to the controller.
func (c *Contract) unnamed() map[string]bool {
	kinds := map[string]bool{}
	for _, r := range c.End {
		kinds[r.Kind] = true
	}
	steps := slices.Clone(c.Hundred)
	for _, t := range c.Scenario {
		steps = append(steps, t.Steps...)
	}
	for _, s := range steps {
		if s.Object.GetName() != "" {
			delete(kinds, s.Object.GetKind())
		}
	}
	return kinds
}

// levels is how far a controller with this contract can get.
func (c *Contract) levels() int {
	if c.Outside == nil {
		return len(Levels) - 2
	}
	return len(Levels) - 1
}

// allows complains about what is asked for and does not fit the contract.
func (c *Contract) allows(o Options) error {
	switch told := strings.Contains(o.Controller, ".Outside"); {
	case o.Level > c.levels():
		return unusable("LEVEL=%d (%s): the contract %s has nothing outside of Kubernetes, so its levels are 1 to %d", o.Level, Levels[o.Level], c.Name, c.levels())
	case told && c.Outside == nil:
		return unusable("{{.Outside}} in CONTROLLER: the contract %s has nothing outside of Kubernetes", c.Name)
	case !told && c.Outside != nil:
		return unusable("the contract %s has a %s outside of Kubernetes: pass its address, {{.Outside}}, to the command in CONTROLLER", c.Name, c.Outside.Kind)
	}
	return nil
}

// A Resource is a part of the end state.
type Resource struct {
	APIVersion, Kind string
	LeaveOut         [][]string // paths of fields that may differ; "*" stands for each element
	where            string
}

// Load reads the contract in a folder.
func Load(dir string) (*Contract, error) {
	c := &Contract{Name: filepath.Base(dir), file: filepath.Join(dir, "contract.yaml"), Settle: time.Minute, Calm: 3 * time.Second, Writes: 10, Requests: 60, Calls: 10, Retry: time.Second}
	data, err := os.ReadFile(c.file)
	if err != nil {
		return nil, fmt.Errorf("reading the contract: %w; its format is described in %s", err, Format)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", c.file, err)
	}
	if len(document.Content) == 0 {
		return nil, fmt.Errorf("%s is empty; its format is described in %s", c.file, Format)
	}
	r := &reader{file: c.file}
	if here, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(here, c.file); err == nil && filepath.IsLocal(short) {
			r.file = short
		}
	}
	r.fields(document.Content[0], "", map[string]func(*yaml.Node, string){
		"crds": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) {
				file := filepath.Join(dir, filepath.FromSlash(r.text(n, path)))
				if _, err := os.Stat(file); err != nil {
					r.fail(n, path, "%v", err)
				}
				c.CRDs = append(c.CRDs, file)
			})
		},
		"bystanders": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) { c.Bystanders = append(c.Bystanders, r.object(apply, n, path)) })
		},
		"scenario": func(n *yaml.Node, path string) { c.Scenario = r.tracks(n, path) },
		"hundred":  func(n *yaml.Node, path string) { c.Hundred = r.steps(n, path) },
		"end": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) { c.End = append(c.End, r.resource(n, path)) })
		},
		"outside": func(n *yaml.Node, path string) { c.Outside = r.outside(n, path) },
		"bounds": func(n *yaml.Node, path string) {
			r.fields(n, path, map[string]func(*yaml.Node, string){
				"settle":   func(n *yaml.Node, path string) { c.Settle = r.duration(n, path) },
				"calm":     func(n *yaml.Node, path string) { c.Calm = r.duration(n, path) },
				"writes":   func(n *yaml.Node, path string) { c.Writes = r.number(n, path) },
				"requests": func(n *yaml.Node, path string) { c.Requests = r.number(n, path) },
				"exit":     func(n *yaml.Node, path string) { c.Exit = r.number(n, path) },
				"copies":   func(n *yaml.Node, path string) { c.Copies = r.number(n, path) },
				"calls":    func(n *yaml.Node, path string) { c.Calls = r.number(n, path) },
				"retry":    func(n *yaml.Node, path string) { c.Retry = r.duration(n, path) },
			}, "bounds")
		},
	}, "a contract", "scenario", "end")
	r.byHands(c)
	return c, errors.Join(r.errs...)
}

// A reader collects what is wrong with a file.
type reader struct {
	file string
	errs []error
}

func (r *reader) where(n *yaml.Node, path string) string {
	if path == "" {
		return fmt.Sprintf("%s:%d", r.file, n.Line)
	}
	return fmt.Sprintf("%s:%d: %s", r.file, n.Line, path)
}

func (r *reader) fail(n *yaml.Node, path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: "+format, append([]any{r.where(n, path)}, args...)...))
}

func join(path, key string) string {
	if path == "" || strings.HasPrefix(key, "[") {
		return path + key
	}
	return path + "." + key
}

// resolved is what an alias stands for.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields calls the function of each field, and complains about fields that are not known, or missing, or there twice.
func (r *reader) fields(n *yaml.Node, path string, known map[string]func(*yaml.Node, string), what string, required ...string) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "%s has fields: %s", what, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch f := known[key.Value]; {
		case f == nil:
			r.fail(key, join(path, key.Value), "there is no such field; %s has %s", what, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[key.Value]:
			r.fail(key, join(path, key.Value), "it is there twice")
		default:
			seen[key.Value] = true
			f(value, join(path, key.Value))
		}
	}
	for _, field := range required {
		if !seen[field] {
			r.fail(n, path, "%s needs the field %s", what, field)
		}
	}
}

func (r *reader) list(n *yaml.Node, path string, each func(*yaml.Node, string)) {
	n = resolved(n)
	if n.Kind != yaml.SequenceNode {
		r.fail(n, path, "it has to be a list")
		return
	}
	for i, element := range n.Content {
		each(element, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (r *reader) text(n *yaml.Node, path string) string {
	n = resolved(n)
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		r.fail(n, path, "it has to be a text")
	}
	return n.Value
}

func (r *reader) duration(n *yaml.Node, path string) time.Duration {
	d, err := time.ParseDuration(r.text(n, path))
	if err != nil || d <= 0 {
		r.fail(n, path, "%q is no time span; write 90s or 2m", n.Value)
	}
	return d
}

func (r *reader) number(n *yaml.Node, path string) int {
	number, err := strconv.Atoi(r.text(n, path))
	if err != nil || number < 0 {
		r.fail(n, path, "%q is no whole number", n.Value)
	}
	return number
}

func (r *reader) tracks(n *yaml.Node, path string) (tracks []Track) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		r.fail(n, path, "it has to name tracks, each with a list of steps")
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if slices.ContainsFunc(tracks, func(t Track) bool { return t.Name == name }) {
			r.fail(n.Content[i], join(path, name), "it is there twice")
		}
		steps := r.steps(n.Content[i+1], join(path, name))
		if len(steps) == 0 {
			r.fail(n.Content[i], join(path, name), "a track needs a step")
		}
		tracks = append(tracks, Track{name, steps})
	}
	return tracks
}

func (r *reader) steps(n *yaml.Node, path string) (steps []Step) {
	r.list(n, path, func(n *yaml.Node, path string) {
		known := map[string]func(*yaml.Node, string){}
		for _, verb := range []string{apply, patch, remove, wait, gone} {
			known[verb] = func(n *yaml.Node, path string) { steps = append(steps, r.object(verb, n, path)) }
		}
		if r.fields(n, path, known, "a step"); n.Kind == yaml.MappingNode && len(n.Content) != 2 {
			r.fail(n, path, "a step has one verb: begin the next one with a dash of its own")
		}
	})
	return steps
}

// object reads an object, or what is to be known of one.
func (r *reader) object(verb string, n *yaml.Node, path string) Step {
	s := Step{Verb: verb, Object: &unstructured.Unstructured{Object: map[string]any{}}, where: r.where(n, path)}
	if resolved(n).Kind != yaml.MappingNode {
		r.fail(n, path, "it has to be an object, with apiVersion, kind and metadata")
		return s
	}
	var content map[string]any
	err := n.Decode(&content)
	var data []byte
	if err == nil {
		data, err = json.Marshal(content)
	}
	if err == nil {
		err = s.Object.UnmarshalJSON(data) // numbers are then those of objects from the API server
	}
	switch {
	case err != nil:
		r.fail(n, path, "%v", err)
	case s.Object.GetAPIVersion() == "":
		r.fail(n, path, "it needs the field apiVersion")
	case s.Object.GetName() == "" && s.changes() && (verb != remove || len(s.Object.Object) < 3):
		r.fail(n, path, "it needs the field metadata.name")
	case s.Object.GetNamespace() != "":
		r.fail(n, path, "metadata.namespace is not its to choose: each case has a namespace of its own")
	}
	return s
}

func (r *reader) resource(n *yaml.Node, path string) Resource {
	res := Resource{where: r.where(n, path)}
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"apiVersion": func(n *yaml.Node, path string) { res.APIVersion = r.text(n, path) },
		"kind":       func(n *yaml.Node, path string) { res.Kind = r.text(n, path) },
		"leaveOut": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) {
				field, err := parsePath(r.text(n, path))
				if err != nil {
					r.fail(n, path, "%v", err)
				}
				if len(field) == 1 && (field[0] == "metadata" || field[0] == "*") {
					r.fail(n, path, "without its metadata nobody knows which object it is; name the fields in it")
				}
				res.LeaveOut = append(res.LeaveOut, field)
			})
		},
	}, "a part of the end state", "apiVersion", "kind")
	return res
}

var segment = regexp.MustCompile(`^(?:\.?([^.\[\]]+)|\[([^\]]+)\])`)

// parsePath splits "status.conditions.*.message" and "metadata.annotations[example.org/key]".
func parsePath(path string) (segments []string, err error) {
	for rest := path; rest != ""; {
		m := segment.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("%s is no path; write status.conditions.*.message or metadata.annotations[example.org/key]", strconv.Quote(path))
		}
		segments = append(segments, m[1]+m[2])
		rest = rest[len(m[0]):]
	}
	return segments, nil
}
