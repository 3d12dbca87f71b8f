package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
	"github.com/operator-framework/api/pkg/lib/version"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

type bundleOptions struct{ project, version, replaces, image, flavour string }

const (
	operator = "icecream" // the name of the package, and of the bundles before their version
	channel  = "alpha"
	account  = "icecream-controller-manager"
)

// The annotations of a bundle, as in operator-registry's pkg/lib/bundle, which would bring 350 packages.
const (
	mediatypeLabel      = "operators.operatorframework.io.bundle.mediatype.v1"
	manifestsLabel      = "operators.operatorframework.io.bundle.manifests.v1"
	metadataLabel       = "operators.operatorframework.io.bundle.metadata.v1"
	packageLabel        = "operators.operatorframework.io.bundle.package.v1"
	channelsLabel       = "operators.operatorframework.io.bundle.channels.v1"
	channelDefaultLabel = "operators.operatorframework.io.bundle.channel.default.v1"

	manifestsDir = "manifests/"
	metadataDir  = "metadata/"
)

// writeBundle writes the bundle of step 10's operator into dir: what OLM has to know (manifests),
// what a catalog has to know (metadata), and tests.
func writeBundle(o bundleOptions, dir string) error {
	switch left, err := os.ReadDir(dir); {
	case o.version == "" || o.flavour == "":
		return errors.New("-version and -flavour are needed")
	case err == nil && len(left) > 0:
		return fmt.Errorf("%s is not empty: remove it, or name another folder", dir)
	}
	csv, crd, err := csvOf(o)
	if err != nil {
		return err
	}
	for name, content := range map[string]any{
		"manifests/icecream.clusterserviceversion.yaml":     csv,
		"manifests/icecreams.customresourcedefinition.yaml": crd,
		"metadata/annotations.yaml": map[string]any{"annotations": map[string]string{
			mediatypeLabel:      "registry+v1",
			manifestsLabel:      manifestsDir,
			metadataLabel:       metadataDir,
			packageLabel:        operator,
			channelsLabel:       channel,
			channelDefaultLabel: channel,
		}},
		"tests/scorecard/config.yaml": scorecardConfig(o.flavour),
	} {
		data, err := marshal(content)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// csvOf makes the ClusterServiceVersion of what controller-gen and kubebuilder have written into a project.
func csvOf(o bundleOptions) (csv *operatorsv1alpha1.ClusterServiceVersion, crd *apiextensionsv1.CustomResourceDefinition, err error) {
	v, err := semver.Parse(o.version)
	if err != nil {
		return nil, nil, fmt.Errorf("-version %s: %w", o.version, err)
	}
	crd = &apiextensionsv1.CustomResourceDefinition{}
	var (
		role    rbacv1.ClusterRole
		leader  rbacv1.Role
		manager appsv1.Deployment
		sample  map[string]any
	)
	for name, into := range map[string]any{
		"crd/bases/controller.nicoleh.io_icecreams.yaml": crd,
		"rbac/role.yaml":                            &role,
		"rbac/leader_election_role.yaml":            &leader,
		"manager/manager.yaml":                      &manager,
		"samples/controller_v1alpha1_icecream.yaml": &sample,
	} {
		if err := readLast(filepath.Join(o.project, "config", filepath.FromSlash(name)), into); err != nil {
			return nil, nil, err
		}
	}
	examples, err := json.Marshal([]any{sample})
	if err != nil {
		return nil, nil, err
	}

	pod := &manager.Spec.Template.Spec
	pod.ServiceAccountName = account
	c := &pod.Containers[0]
	c.Image = o.image
	// OLM writes the namespaces to work in into an annotation of the pods.
	c.Env = append(c.Env, corev1.EnvVar{Name: "WATCH_NAMESPACE", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['olm.targetNamespaces']"}}})
	c.Args = append(c.Args, "--namespace=$(WATCH_NAMESPACE)",
		"--leader-elect-namespace=$(WATCH_NAMESPACE)", // where OLM gives the right to a Lease, also if the pod is elsewhere
		"--image="+o.flavour, "--save-flavours")

	csv = &operatorsv1alpha1.ClusterServiceVersion{
		TypeMeta: metav1.TypeMeta{APIVersion: operatorsv1alpha1.SchemeGroupVersion.String(), Kind: operatorsv1alpha1.ClusterServiceVersionKind},
		ObjectMeta: metav1.ObjectMeta{Name: operator + ".v" + o.version, Namespace: "placeholder", Annotations: map[string]string{
			"alm-examples": string(examples),
			"capabilities": "Seamless Upgrades",
			"categories":   "Developer Tools",
			"description":  "Gives each Icecream its Deployment, and saves its flavour before an upgrade.",
		}},
		Spec: operatorsv1alpha1.ClusterServiceVersionSpec{
			DisplayName:    "Icecream",
			Description:    "Gives each Icecream its Deployment. Before the image of a Deployment changes, the one that works is saved, and it is given back if the new one does not become available.",
			Version:        version.OperatorVersion{Version: v},
			Replaces:       o.replaces,
			Maturity:       channel,
			MinKubeVersion: "1.31.0",
			Keywords:       []string{"icecream"},
			Maintainers:    []operatorsv1alpha1.Maintainer{{Name: "The workshop", Email: "icecream@example.com"}},
			Provider:       operatorsv1alpha1.AppLink{Name: "The workshop"},
			Links:          []operatorsv1alpha1.AppLink{{Name: "Source", URL: "https://github.com/k8s-go/workshop"}},
			RelatedImages:  []operatorsv1alpha1.RelatedImage{{Name: "operator", Image: o.image}, {Name: "flavour", Image: o.flavour}},
			InstallModes: []operatorsv1alpha1.InstallMode{
				{Type: operatorsv1alpha1.InstallModeTypeOwnNamespace, Supported: true},
				{Type: operatorsv1alpha1.InstallModeTypeSingleNamespace, Supported: true},
				{Type: operatorsv1alpha1.InstallModeTypeMultiNamespace, Supported: false}, // -namespace takes one
				{Type: operatorsv1alpha1.InstallModeTypeAllNamespaces, Supported: true},
			},
			InstallStrategy: operatorsv1alpha1.NamedInstallStrategy{
				StrategyName: operatorsv1alpha1.InstallStrategyNameDeployment,
				StrategySpec: operatorsv1alpha1.StrategyDetailsDeployment{
					DeploymentSpecs: []operatorsv1alpha1.StrategyDeploymentSpec{{Name: account, Spec: manager.Spec, Label: manager.Labels}},
					// In a namespace, or in all of them: that is decided when it is installed.
					Permissions: []operatorsv1alpha1.StrategyDeploymentPermissions{{ServiceAccountName: account,
						Rules: append(slices.Clone(role.Rules), election(leader.Rules)...)}},
				},
			},
		},
	}
	for _, v := range crd.Spec.Versions {
		csv.Spec.CustomResourceDefinitions.Owned = append(csv.Spec.CustomResourceDefinitions.Owned, operatorsv1alpha1.CRDDescription{
			Name: crd.Name, Version: v.Name, Kind: crd.Spec.Names.Kind, DisplayName: crd.Spec.Names.Kind,
			Description: "A Deployment with the operator's flavour"})
	}
	return csv, crd, nil
}

// election returns what leader election needs today: Leases, and Events of the old API about who leads. The scaffold's
// role also allows ConfigMaps, which were its lock until 2020.
func election(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "configmaps") })
}

// marshal returns an object as YAML, without the status that its type has and a file should not.
func marshal(content any) ([]byte, error) {
	data, err := yaml.Marshal(content)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := yaml.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	delete(object, "status")
	return yaml.Marshal(object)
}

// readLast reads the last document of a YAML file.
func readLast(file string, into any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(f))
	var last []byte
	for {
		data, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		last = data
	}
	if err := yaml.Unmarshal(last, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// scorecardConfig says which tests belong to the bundle. The images of the tests are not used
// here: the runner of this step starts their entry points as processes.
func scorecardConfig(flavour string) v1alpha3.Configuration {
	test := func(name string, entrypoint ...string) v1alpha3.TestConfiguration {
		return v1alpha3.TestConfiguration{Image: "workshop/icecream-tests:1", Entrypoint: entrypoint, Labels: map[string]string{"suite": "icecream", "test": name}}
	}
	c := v1alpha3.Configuration{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha3.GroupVersion.String(), Kind: v1alpha3.ConfigurationKind}}
	c.Metadata.Name = "config"
	judge := test("judge", "scoretests", "judge")
	judge.Labels["suite"] = "judge" // it takes a cluster of its own
	c.Stages = []v1alpha3.StageConfiguration{{Parallel: true, Tests: []v1alpha3.TestConfiguration{
		test("examples", "scoretests", "examples"), test("rights", "scoretests", "rights"), test("drift", "drift.sh", flavour), judge}}}
	return c
}
