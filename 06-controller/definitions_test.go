package controller

// The definitions that the tests of this step share.
const (
	icecreams = "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml"
	policies  = "../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml"
)
