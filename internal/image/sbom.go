package image

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// WriteSBOM writes which modules the program in an image was built from, as
// CycloneDX JSON. The list comes out of the program itself, so it cannot differ
// from what is in the image. It holds no time and no serial number: the same image
// has the same list.
func WriteSBOM(file, tag string, img v1.Image) error {
	bom, err := sbom(tag, img)
	if err != nil {
		return fmt.Errorf("listing what the image is made of: %w", err)
	}
	var text bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom); err != nil {
		return fmt.Errorf("writing what the image is made of: %w", err)
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

func sbom(tag string, img v1.Image) (*cyclonedx.BOM, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	info, err := buildInfo(img)
	if err != nil {
		return nil, err
	}
	program := module(cyclonedx.ComponentTypeApplication, &info.Main)
	program.Name = info.Path // of the main package
	libraries := []cyclonedx.Component{module(cyclonedx.ComponentTypeLibrary,
		&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Version != "(devel)" { // that is a folder, whose path says nothing elsewhere
			m = m.Replace
		}
		libraries = append(libraries, module(cyclonedx.ComponentTypeLibrary, m))
	}
	var uses []string
	for _, l := range libraries {
		uses = append(uses, l.BOMRef)
	}
	components := append([]cyclonedx.Component{program}, libraries...)

	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		Type: cyclonedx.ComponentTypeContainer, Name: tag, Version: digest.String(), BOMRef: digest.String()}}
	bom.Components = &components
	// The build information does not say which module needs which.
	bom.Dependencies = &[]cyclonedx.Dependency{
		{Ref: digest.String(), Dependencies: &[]string{program.BOMRef}},
		{Ref: program.BOMRef, Dependencies: &uses},
	}
	return bom, nil
}

// module describes a module of a program. The main module and one that is replaced
// by a folder have no hash.
func module(kind cyclonedx.ComponentType, m *debug.Module) cyclonedx.Component {
	purl := "pkg:golang/" + m.Path
	c := cyclonedx.Component{Type: kind, Name: m.Path, BOMRef: purl, PackageURL: purl}
	if m.Version != "" && m.Version != "(devel)" {
		c.Version = m.Version
		c.PackageURL += "@" + url.QueryEscape(m.Version)
		c.BOMRef = c.PackageURL
	}
	// "h1:" and the SHA-256 of a list of the module's files with theirs, as in go.sum.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// buildInfo reads what go build has put into the only file of an image.
func buildInfo(img v1.Image) (*buildinfo.BuildInfo, error) {
	contents := mutate.Extract(img)
	defer contents.Close()
	files := tar.NewReader(contents)
	if _, err := files.Next(); errors.Is(err, io.EOF) {
		return nil, errors.New("the image is empty")
	} else if err != nil {
		return nil, err
	}
	program, err := io.ReadAll(files)
	if err != nil {
		return nil, err
	}
	return buildinfo.Read(bytes.NewReader(program))
}
