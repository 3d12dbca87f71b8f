// Package image makes container images of Go programs, without a container engine.
// An image holds one static binary and nothing else: no shell, no libc, no
// certificates. The same program gives the same digest.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is nobody in particular, but not root: Pod Security "restricted" needs a number.
const user = "65532:65532"

// New returns an image that holds nothing but one program for Linux.
func New(entrypoint string, program []byte, arch string, labels map[string]string) (v1.Image, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: entrypoint[1:], Mode: 0o555, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("adding the layer: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy() // without a time: it would change the digest
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{User: user, Entrypoint: []string{entrypoint}, Labels: labels}
	return mutate.ConfigFile(img, config)
}

// Write writes an image to a file, as docker save would, for docker load, kind load
// and ctr images import.
func Write(file, tag string, img v1.Image, furtherTags ...string) error {
	tags := map[name.Tag]v1.Image{}
	for _, tag := range append(furtherTags, tag) {
		ref, err := name.NewTag(tag)
		if err != nil {
			return fmt.Errorf("the image's name: %w", err)
		}
		tags[ref] = img
	}
	if err := tarball.MultiWriteToFile(file, tags); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}

// Index puts images for several architectures under one name. A node takes its own.
func Index(images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return index, nil
}

// Push sends an image, or an index of several, to a registry, with the credentials of docker login.
func Push(ctx context.Context, tag string, what remote.Taggable) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return fmt.Errorf("the image's name: %w", err)
	}
	if err := remote.Push(ref, what, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("pushing %s (docker login makes the credentials): %w", ref, err)
	}
	return nil
}
