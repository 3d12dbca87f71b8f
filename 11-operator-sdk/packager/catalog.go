package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/property"
	"github.com/operator-framework/operator-registry/pkg/image"
	"github.com/operator-framework/operator-registry/pkg/registry"
)

// printCatalog prints the file-based catalog of some bundles: the package and its channels, which
// somebody has written, and what the bundles say of themselves.
func printCatalog(packageFile string, dirs []string, asMermaid bool, out io.Writer) error {
	cfg, err := loadCatalog(packageFile)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		b, err := catalogBundle(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		cfg.Bundles = append(cfg.Bundles, b)
	}
	if _, err := declcfg.ConvertToModel(*cfg); err != nil {
		return err
	}
	if asMermaid {
		return declcfg.NewMermaidWriter().WriteChannels(*cfg, out)
	}
	return declcfg.WriteYAML(*cfg, out)
}

// checkCatalog prints what is wrong with a catalog.
func checkCatalog(file string, out io.Writer) error {
	cfg, err := loadCatalog(file)
	if err != nil {
		return err
	}
	if _, err := declcfg.ConvertToModel(*cfg); err != nil {
		fmt.Fprintln(out, err)
		return errFound
	}
	fmt.Fprintf(out, "%s is a valid catalog\n", filepath.Base(file))
	return nil
}

func loadCatalog(file string) (*declcfg.DeclarativeConfig, error) {
	cfg, err := declcfg.LoadFile(os.DirFS(filepath.Dir(file)), filepath.Base(file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return cfg, nil
}

// catalogBundle makes the entry of a bundle.
func catalogBundle(dir string) (declcfg.Bundle, error) {
	b, err := load(dir)
	if err != nil {
		return declcfg.Bundle{}, err
	}
	ref := image.SimpleReference("workshop/" + b.Package + "-bundle:v" + b.CSV.Spec.Version.String())
	input, err := registry.NewImageInput(ref, dir)
	if err != nil {
		return declcfg.Bundle{}, err
	}
	_, properties, err := registry.ObjectsAndPropertiesFromBundle(input.Bundle)
	if err != nil {
		return declcfg.Bundle{}, err
	}
	// In the place of all manifests, which would make a catalog large.
	properties = slices.DeleteFunc(properties, func(p property.Property) bool { return p.Type == property.TypeBundleObject })
	properties = append(properties, property.MustBuildCSVMetadata(*b.CSV))
	entry := declcfg.Bundle{Schema: declcfg.SchemaBundle, Name: b.CSV.Name, Package: b.Package, Image: ref.String(), Properties: properties}
	for _, related := range b.CSV.Spec.RelatedImages {
		entry.RelatedImages = append(entry.RelatedImages, declcfg.RelatedImage{Name: related.Name, Image: related.Image})
	}
	entry.RelatedImages = append(entry.RelatedImages, declcfg.RelatedImage{Image: ref.String()})
	return entry, nil
}

// printUpgrades prints where each version of a catalog goes, channel by channel: by replaces, by
// skips, and by skipRange. It also prints the versions from which no way leads on, of which a
// channel should have one, its head. Also are bundles that somebody may still have, although no
// entry names them.
func printUpgrades(file string, also []string, out io.Writer) error {
	cfg, err := loadCatalog(file)
	if err != nil {
		return err
	}
	for _, c := range cfg.Channels {
		next := map[string][]string{}
		for _, e := range c.Entries {
			for _, name := range append([]string{e.Name, e.Replaces}, e.Skips...) {
				next[name] = nil // also where nothing follows
			}
		}
		for _, name := range also {
			next[name] = nil
		}
		delete(next, "")
		for _, e := range c.Entries {
			from := e.Skips
			if e.Replaces != "" {
				from = append([]string{e.Replaces}, from...)
			}
			if e.SkipRange != "" {
				inRange, err := semver.ParseRange(e.SkipRange)
				if err != nil {
					return fmt.Errorf("%s: the skipRange of %s: %w", file, e.Name, err)
				}
				for name := range next {
					if v, err := versionOf(name); err == nil && name != e.Name && inRange(v) {
						from = append(from, name)
					}
				}
			}
			for _, name := range from {
				if !slices.Contains(next[name], e.Name) {
					next[name] = append(next[name], e.Name)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(next)) {
			for _, to := range next[name] {
				fmt.Fprintf(out, "%s: %s -> %s\n", c.Name, name, to)
			}
			if len(next[name]) == 0 {
				fmt.Fprintf(out, "%s: %s is the end\n", c.Name, name)
			}
		}
	}
	return nil
}

// versionOf returns the version that a bundle's name ends in, after ".v".
func versionOf(name string) (semver.Version, error) {
	return semver.Parse(name[strings.LastIndex(name, ".v")+len(".v"):])
}
