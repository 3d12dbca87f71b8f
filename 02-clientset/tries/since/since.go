package main

import corev1 "k8s.io/api/core/v1"

// since returns the version from which a watch shows all that has happened since an object
// was created, after a list.
func since(list *corev1.ConfigMapList, created *corev1.ConfigMap) string {
	return created.ResourceVersion
}
