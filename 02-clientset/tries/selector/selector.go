package main

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// logins selects the Secrets of team web that are of type kubernetes.io/basic-auth.
func logins() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "team=web", FieldSelector: "type=kubernetes.io/basic-auth"}
}
