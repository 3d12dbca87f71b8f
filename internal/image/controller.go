package image

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Controller is the name under which the manifests of 07-in-cluster know the image.
const Controller = "workshop/policy-controller:1"

// BuildController returns the image of the controller of step 07.
func BuildController(ctx context.Context, root, arch string) (v1.Image, error) {
	return Build(ctx, root, "./07-in-cluster/policy-controller", arch, map[string]string{
		"org.opencontainers.image.title":       "policy-controller",
		"org.opencontainers.image.description": "The controllers of HealthCheckPolicies and Icecreams",
		"org.opencontainers.image.source":      "https://github.com/k8s-go/workshop",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	})
}
