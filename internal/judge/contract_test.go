package judge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

const good = `scenario:
  one:
  - apply: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {n: "1"}}
  - wait: {apiVersion: v1, kind: ConfigMap, metadata: {name: a-copy}}
end:
- {apiVersion: v1, kind: ConfigMap}
`

func load(t *testing.T, text string) (*Contract, error) {
	t.Helper()
	dir := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(dir, "contract.yaml"), []byte(text), 0o644))
	return Load(dir)
}

func TestLoad(t *testing.T) {
	c, err := load(t, good+`bounds: {settle: 2m}
hundred:
- apply: {apiVersion: v1, kind: ConfigMap, metadata: {name: "many-{{.N}}"}, data: {n: "{{.N}}"}}
`)
	fatal.If(t, err)
	if c.Settle != 2*time.Minute || c.Calm != 3*time.Second || len(c.Scenario) != 1 || len(c.Scenario[0].Steps) != 2 || c.Scenario[0].Steps[1].String() != "ConfigMap a-copy" {
		t.Errorf("%+v", c)
	}
	one, err := numbered(c.Hundred[0], 42)
	if err != nil || one.String() != "ConfigMap many-42" || c.Hundred[0].String() != "ConfigMap many-{{.N}}" {
		t.Errorf("%s, %v; afterwards the template is %s", one, err, c.Hundred[0])
	}
}

// Each mistake is reported with its line and its field.
func TestLoadSaysWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no such field":     {good + "extra: 1\n", "contract.yaml:7: extra: there is no such field; a contract has bounds, bystanders, crds, end, hundred, outside, scenario"},
		"a missing field":   {"scenario: {a: []}\n", "contract.yaml:1: a contract needs the field end"},
		"an unknown verb":   {strings.Replace(good, "- wait", "- await", 1), "contract.yaml:4: scenario.one[1].await: there is no such field; a step has apply, delete, gone, patch, wait"},
		"two verbs":         {strings.Replace(good, "  - wait", "    wait", 1), "contract.yaml:3: scenario.one[0]: a step has one verb"},
		"no name":           {strings.Replace(good, "metadata: {name: a}, ", "", 1), "contract.yaml:3: scenario.one[0].apply: it needs the field metadata.name"},
		"no kind":           {strings.Replace(good, "kind: ConfigMap, metadata: {name: a}", "metadata: {name: a}", 1), "contract.yaml:3: scenario.one[0].apply: Object 'Kind' is missing"},
		"no apiVersion":     {strings.Replace(good, "apiVersion: v1, ", "", 1), "contract.yaml:3: scenario.one[0].apply: it needs the field apiVersion"},
		"a namespace":       {strings.Replace(good, "{name: a}", "{name: a, namespace: b}", 1), "contract.yaml:3: scenario.one[0].apply: metadata.namespace is not its to choose"},
		"no object":         {strings.Replace(good, "wait: {apiVersion: v1, kind: ConfigMap, metadata: {name: a-copy}}", "wait: 3s", 1), "contract.yaml:4: scenario.one[1].wait: it has to be an object"},
		"a field twice":     {good + "bounds: {calm: 1s, calm: 2s}\n", "contract.yaml:7: bounds.calm: it is there twice"},
		"no time span":      {good + "bounds: {calm: 3}\n", `contract.yaml:7: bounds.calm: "3" is no time span; write 90s or 2m`},
		"no list":           {strings.Replace(good, "- {apiVersion: v1, kind: ConfigMap}\n", "  kind: ConfigMap\n", 1), "contract.yaml:6: end: it has to be a list"},
		"no metadata":       {strings.Replace(good, "kind: ConfigMap}\n", "kind: ConfigMap, leaveOut: [metadata]}\n", 1), `contract.yaml:6: end[0].leaveOut[0]: without its metadata nobody knows which object it is; name the fields in it`},
		"no path":           {strings.Replace(good, "kind: ConfigMap}\n", "kind: ConfigMap, leaveOut: [\"a[b\"]}\n", 1), `contract.yaml:6: end[0].leaveOut[0]: "a[b" is no path`},
		"no such file":      {good + "crds: [missing.yaml]\n", "contract.yaml:7: crds[0]: stat "},
		"no YAML":           {"a: [\n", "contract.yaml: yaml: line 1"},
		"nothing":           {"# nothing\n", "contract.yaml is empty"},
		"an empty track":    {strings.Replace(good, "end:", "  two: []\nend:", 1), "contract.yaml:5: scenario.two: a track needs a step"},
		"no whole number":   {good + "bounds: {writes: many}\n", `contract.yaml:7: bounds.writes: "many" is no whole number`},
		"a track twice":     {strings.Replace(good, "end:", "  one: []\nend:", 1), "contract.yaml:5: scenario.one: it is there twice"},
		"a key twice in it": {strings.Replace(good, `{n: "1"}`, `{n: "1", n: "2"}`, 1), `contract.yaml:3: scenario.one[0].apply: yaml: unmarshal errors:`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v\nwant %s", err, test.want)
			}
		})
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), Format) {
		t.Errorf("without a contract: %v", err)
	}
}

func TestOurContracts(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	names := Contracts(ws)
	if len(names) < 2 {
		t.Fatalf("contracts %v", names)
	}
	for _, name := range names {
		dir, err := FindContract(ws, name)
		fatal.If(t, err)
		if _, err := Load(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := FindContract(ws, "nothing"); err == nil || !strings.Contains(err.Error(), "icecream, mirror") {
		t.Errorf("an unknown contract: %v", err)
	}
}

func TestParsePath(t *testing.T) {
	got, err := parsePath("metadata.annotations[example.org/a.b].*.c")
	if diff := cmp.Diff([]string{"metadata", "annotations", "example.org/a.b", "*", "c"}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestExpand(t *testing.T) {
	got, err := expand("x -n {{.Namespace}} -k {{.Kubeconfig}} -s {{.Outside}}", place{"a", "b", "c"})
	if err != nil || got != "x -n a -k b -s c" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := expand("x {{.Name}}", place{}); err == nil || !strings.Contains(err.Error(), "{{.Namespace}}, {{.Kubeconfig}} and {{.Outside}}") {
		t.Errorf("error %v", err)
	}
}
