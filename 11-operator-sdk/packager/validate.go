package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A bundle is one that has been read, with the text of its ClusterServiceVersion.
type bundle struct {
	*manifests.Bundle
	csvYAML []byte
}

// load reads the bundle in a folder.
func load(dir string) (b bundle, err error) {
	if _, err := os.Stat(filepath.Join(dir, manifestsDir)); err != nil {
		return b, fmt.Errorf("%s is no bundle, because it has no folder %s: name the folder that has it", dir, manifestsDir)
	}
	if b.Bundle, err = manifests.GetBundleFromDir(dir); err != nil {
		return b, err
	}
	files, err := filepath.Glob(filepath.Join(dir, manifestsDir, "*"))
	if err != nil {
		return b, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return b, err
		}
		var is metav1.TypeMeta
		if err := yaml.Unmarshal(data, &is); err == nil && is.Kind == operatorsv1alpha1.ClusterServiceVersionKind {
			b.csvYAML = data
		}
	}
	if b.csvYAML == nil {
		return b, fmt.Errorf("%s has no ClusterServiceVersion in %s", dir, manifestsDir)
	}
	return b, nil
}

// validate prints what is wrong with a bundle. The findings of the framework's validators are
// marked with olm, and ours with more.
func validate(dir string, out io.Writer) error {
	b, err := load(dir)
	if err != nil {
		return err
	}
	found := 0
	say := func(who, level, text string) {
		fmt.Fprintf(out, "%-4s %-7s %s\n", who, level, strings.Join(strings.Fields(text), " "))
	}
	for _, result := range validation.DefaultBundleValidators.WithValidators(validation.OperatorHubV2Validator, validation.GoodPracticesValidator).Validate(b.ObjectsToValidate()...) {
		for _, e := range result.Errors {
			found++
			text := e.Detail
			if cause, ok := e.BadValue.(error); ok {
				text += ": " + cause.Error()
			}
			say("olm", "error", text)
		}
		for _, w := range result.Warnings {
			say("olm", "warning", w.Detail)
		}
	}
	for _, check := range further {
		for _, text := range check(dir, b) {
			found++
			say("more", "error", text)
		}
	}
	if found > 0 {
		return fmt.Errorf("%w: %d errors", errFound, found)
	}
	fmt.Fprintf(out, "%s is valid\n", b.CSV.Name)
	return nil
}

// further are the checks for what the framework's validators do not see.
var further = []func(dir string, b bundle) []string{unknownFields, nameAndVersion, strategy, wildcards, plural, metadata}

// unknownFields finds fields that no type has. The validators drop them, and what they were to say is lost.
func unknownFields(_ string, b bundle) []string {
	err := yaml.UnmarshalStrict(b.csvYAML, &operatorsv1alpha1.ClusterServiceVersion{})
	if err == nil {
		return nil
	}
	return []string{"the ClusterServiceVersion has a field that is lost: " + strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: json: ")}
}

// nameAndVersion compares the name, by which others replace this bundle, with the version.
func nameAndVersion(_ string, b bundle) []string {
	if v := b.CSV.Spec.Version.String(); !strings.HasSuffix(b.CSV.Name, ".v"+v) {
		return []string{fmt.Sprintf("the name %s does not end in .v%s, although that is spec.version", b.CSV.Name, v)}
	}
	return nil
}

// strategy: OLM knows one.
func strategy(_ string, b bundle) []string {
	if name := b.CSV.Spec.InstallStrategy.StrategyName; name != operatorsv1alpha1.InstallStrategyNameDeployment {
		return []string{fmt.Sprintf("the install strategy is %q: OLM knows only %q", name, operatorsv1alpha1.InstallStrategyNameDeployment)}
	}
	return nil
}

// wildcards finds rights that nobody has thought about.
func wildcards(_ string, b bundle) (found []string) {
	spec := b.CSV.Spec.InstallStrategy.StrategySpec
	for _, p := range slices.Concat(spec.Permissions, spec.ClusterPermissions) {
		for _, r := range p.Rules {
			if slices.ContainsFunc(slices.Concat(r.Verbs, r.Resources, r.APIGroups), func(s string) bool { return s == rbacv1.VerbAll }) {
				found = append(found, fmt.Sprintf("%s asks for * in %v of %v in %v: name what the operator does", p.ServiceAccountName, r.Verbs, r.Resources, r.APIGroups))
			}
		}
	}
	return found
}

// plural compares the names of the CRDs with those that the ClusterServiceVersion says it owns.
func plural(_ string, b bundle) (found []string) {
	for _, crd := range b.V1CRDs {
		if want := crd.Spec.Names.Plural + "." + crd.Spec.Group; crd.Name != want {
			found = append(found, fmt.Sprintf("the CRD %s has to have the name %s", crd.Name, want))
		}
		for _, owned := range b.CSV.Spec.CustomResourceDefinitions.Owned {
			if owned.Kind == crd.Spec.Names.Kind && owned.Name != crd.Name {
				found = append(found, fmt.Sprintf("the ClusterServiceVersion owns %s, and the CRD of %s is %s", owned.Name, owned.Kind, crd.Name))
			}
		}
	}
	return found
}

// metadata looks for what makes a folder a bundle for opm: who does not find it takes the folder for something else.
func metadata(dir string, _ bundle) []string {
	data, err := os.ReadFile(filepath.Join(dir, metadataDir, "annotations.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{"there is no metadata/annotations.yaml, so no catalog can take the bundle"}
	}
	var file struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err == nil {
		err = yaml.Unmarshal(data, &file)
	}
	if err != nil {
		return []string{err.Error()}
	}
	var missing []string
	for _, key := range []string{mediatypeLabel, manifestsLabel, metadataLabel, packageLabel, channelsLabel} {
		if file.Annotations[key] == "" {
			missing = append(missing, "metadata/annotations.yaml has no "+key)
		}
	}
	return missing
}
