package incluster

import (
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

// The definitions that the tests of this step share.
const (
	icecreams = "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml"
	policies  = "../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) { testenv.README(t) }
