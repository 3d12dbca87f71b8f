package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Somebody takes a Deployment away from its Icecream, and then deletes it. Only the
// first of the two events says whose it was, and only its old object does.
func TestTheSolutionHearsThatADeploymentWasTakenAway(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	s := examine(t, e, e.Program("./06-controller/find-the-bugs/solution"), "")
	s.watches()
	defer s.Kill()
	ice := s.create("given", "given", 0)
	fatal.If(t, s.owned(ice, collected))
	old := s.patchDeployment("given", `{"metadata":{"ownerReferences":null}}`)
	fatal.If(t, s.deployments.Delete(e.Context(), "given", metav1.DeleteOptions{}))
	if err := s.owned(ice, 3*soon, *old); err != nil {
		t.Error(err)
	}
}
