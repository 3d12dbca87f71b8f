package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"strings"

	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

type manifestOptions struct{ namespace, targets string }

// allNamespaces is how OLM writes that an operator works everywhere: no namespace, and nothing else.
var allNamespaces = []string{metav1.NamespaceAll}

// printManifests prints the objects that OLM would make of a bundle. Webhooks and kinds other than
// CRDs, which ours does not have, are an error.
func printManifests(o manifestOptions, dir string, out io.Writer) error {
	b, err := load(dir)
	if err != nil {
		return err
	}
	if o.namespace == "" {
		return fmt.Errorf("-namespace is missing: where is the operator to run?")
	}
	targets := []string{o.namespace}
	switch o.targets {
	case "":
	case "*":
		targets = allNamespaces
	default:
		targets = strings.Split(o.targets, ",")
	}
	if mode := modeOf(o.namespace, targets); !supports(b.CSV, mode) {
		return fmt.Errorf("%s does not support the install mode %s, which these namespaces are", b.CSV.Name, mode)
	}
	for _, o := range b.Objects {
		if kind := o.GetKind(); kind != operatorsv1alpha1.ClusterServiceVersionKind && kind != "CustomResourceDefinition" {
			return fmt.Errorf("%s has a %s, which OLM would apply and packager does not", b.CSV.Name, kind)
		}
	}
	if len(b.CSV.Spec.WebhookDefinitions) > 0 {
		return fmt.Errorf("%s has webhooks, for which OLM would make a certificate and packager does not", b.CSV.Name)
	}
	for _, crd := range b.V1CRDs {
		if err := printObject(crd, out); err != nil {
			return err
		}
	}
	for _, o := range objectsOf(b.CSV, o.namespace, targets) {
		if err := printObject(o, out); err != nil {
			return err
		}
	}
	return nil
}

// modeOf returns the install mode that some target namespaces mean.
func modeOf(namespace string, targets []string) operatorsv1alpha1.InstallModeType {
	switch {
	case len(targets) > 1:
		return operatorsv1alpha1.InstallModeTypeMultiNamespace
	case targets[0] == metav1.NamespaceAll:
		return operatorsv1alpha1.InstallModeTypeAllNamespaces
	case targets[0] == namespace:
		return operatorsv1alpha1.InstallModeTypeOwnNamespace
	}
	return operatorsv1alpha1.InstallModeTypeSingleNamespace
}

func supports(csv *operatorsv1alpha1.ClusterServiceVersion, mode operatorsv1alpha1.InstallModeType) bool {
	for _, m := range csv.Spec.InstallModes {
		if m.Type == mode {
			return m.Supported
		}
	}
	return false
}

// objectsOf returns what a ClusterServiceVersion leads to. The rules are those of OLM v1's
// renderer, https://github.com/operator-framework/operator-controller/blob/main/internal/operator-controller/rukpak/render/registryv1/generators/generators.go:
//   - permissions become a Role in each target namespace, or ClusterRoles that may also read
//     namespaces, if the target is all of them; clusterPermissions are always ClusterRoles;
//   - the pods get the annotations of the ClusterServiceVersion, and the namespaces;
//   - one old ReplicaSet is kept.
//
// The label olm.owner is OLM v0's. By it, what belonged to an old version is found after an upgrade.
func objectsOf(csv *operatorsv1alpha1.ClusterServiceVersion, namespace string, targets []string) (objects []runtime.Object) {
	label := map[string]string{"olm.owner": csv.Name}
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: maps.Clone(label)}
	}
	spec := csv.Spec.InstallStrategy.StrategySpec
	var permissions, clusterPermissions = spec.Permissions, spec.ClusterPermissions
	if targets[0] == metav1.NamespaceAll {
		for _, p := range permissions {
			p.Rules = append(p.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get", "list", "watch"}})
			clusterPermissions = append(clusterPermissions, p)
		}
		permissions = nil
	}
	accounts := map[string]bool{"": true, "default": true} // which is there already
	for _, p := range append(spec.Permissions, spec.ClusterPermissions...) {
		if !accounts[p.ServiceAccountName] {
			accounts[p.ServiceAccountName] = true
			objects = append(objects, &corev1.ServiceAccount{ObjectMeta: meta(namespace, p.ServiceAccountName)})
		}
	}
	subjects := func(p operatorsv1alpha1.StrategyDeploymentPermissions) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: cmp.Or(p.ServiceAccountName, "default")}}
	}
	for i, p := range permissions {
		name := fmt.Sprintf("%s-%s-%d", csv.Name, p.ServiceAccountName, i)
		for _, target := range targets {
			objects = append(objects, &rbacv1.Role{ObjectMeta: meta(target, name), Rules: p.Rules},
				&rbacv1.RoleBinding{ObjectMeta: meta(target, name), Subjects: subjects(p), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
		}
	}
	for i, p := range clusterPermissions {
		// They have no namespace, so the name has to tell two installations apart.
		name := fmt.Sprintf("%s-%s-%s-%d", csv.Name, namespace, p.ServiceAccountName, i)
		objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: meta("", name), Rules: p.Rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", name), Subjects: subjects(p), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	}
	for _, d := range spec.DeploymentSpecs {
		spec := *d.Spec.DeepCopy()
		annotations := map[string]string{}
		maps.Copy(annotations, csv.Annotations)
		maps.Copy(annotations, spec.Template.Annotations)
		annotations["olm.targetNamespaces"] = strings.Join(targets, ",")
		annotations["olm.operatorNamespace"] = namespace
		spec.Template.Annotations = annotations
		spec.RevisionHistoryLimit = ptr.To(int32(1))
		o := meta(namespace, d.Name)
		maps.Copy(o.Labels, d.Label)
		objects = append(objects, &appsv1.Deployment{ObjectMeta: o, Spec: spec})
	}
	return objects
}

// printObject prints an object as a YAML document.
func printObject(o runtime.Object, out io.Writer) error {
	if o.GetObjectKind().GroupVersionKind() == (schema.GroupVersionKind{}) {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
	}
	data, err := marshal(o)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "---\n%s", data)
	return err
}
