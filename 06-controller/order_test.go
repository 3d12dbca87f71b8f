package controller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// lookedAt waits until the controller has looked at all that has happened to Icecreams
// so far: until it has made Deployments for two further ones, and no answer is due. Keys
// are taken from the queue in the order of their events, and one that is worked on when
// its event comes is put behind those that wait, but before the second one. An error that
// wrong returns before that is the result.
func (f *icecreamTest) lookedAt(wrong func() error) (err error) {
	f.T.Helper()
	for range 2 {
		f.further++
		name := fmt.Sprintf("further-%d", f.further)
		ice := f.create(name, name, 0)
		f.Eventually(time.Minute, func(context.Context) error {
			if err = wrong(); err == nil && len(f.all(ice)) == 0 {
				return fmt.Errorf("%s has no Deployment", name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	f.Writes() // waits for the answers
	return wrong()
}

// all returns the Deployments of an Icecream.
func (f *icecreamTest) all(ice *v1alpha1.Icecream) []appsv1.Deployment {
	f.T.Helper()
	list, err := f.deployments.List(f.Context(), metav1.ListOptions{})
	if err != nil {
		f.T.Fatal(err)
	}
	var all []appsv1.Deployment
	for _, d := range list.Items {
		if metav1.IsControlledBy(&d, ice) {
			all = append(all, d)
		}
	}
	return all
}
