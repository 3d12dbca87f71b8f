package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/k8s-go/workshop/internal/workspace"
)

// vendoredFolder holds the page in the browser. Its vendored.json names the files
// that others wrote, with their version, licence and checksum.
const vendoredFolder = "internal/web"

// verifyVendored checks that those files are as they were published, and that
// nothing else stands between them.
func verifyVendored(ws workspace.Workspace) error {
	root := filepath.Join(ws.Root, vendoredFolder)
	data, err := os.ReadFile(filepath.Join(root, "vendored.json"))
	if err != nil {
		return err
	}
	var packages []struct {
		Package, Version, Licence, Integrity string
		Files                                []struct{ To, SHA256 string }
	}
	if err := json.Unmarshal(data, &packages); err != nil {
		return fmt.Errorf("%s/vendored.json: %w", vendoredFolder, err)
	}
	var errs []error
	known, folders := map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		if p.Version == "" || p.Licence == "" || p.Integrity == "" {
			errs = append(errs, fmt.Errorf("%s/vendored.json: %s lacks its version, licence or integrity", vendoredFolder, p.Package))
		}
		for _, f := range p.Files {
			known[f.To], folders[filepath.Dir(f.To)] = true, true
			content, err := os.ReadFile(filepath.Join(root, f.To))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != f.SHA256 {
				errs = append(errs, fmt.Errorf("%s/%s is not that of %s %s; scripts/web-vendor.sh renews it", vendoredFolder, f.To, p.Package, p.Version))
			}
		}
	}
	for folder := range folders {
		errs = append(errs, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err == nil && !known[name] {
				return fmt.Errorf("%s/%s is not named in %[1]s/vendored.json", vendoredFolder, name)
			}
			return err
		}))
	}
	return errors.Join(errs...)
}
