package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/image"
)

// The parts of SPDX 2.3 that an SBOM of an image needs.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo,omitempty"`
	Location  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Concluded string      `json:"licenseConcluded"`
	Declared  string      `json:"licenseDeclared"`
	Copyright string      `json:"copyrightText"`
	Checksums []checksum  `json:"checksums,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// none is SPDX's word for what the document does not say.
const none = "NOASSERTION"

// bill returns the SBOM of an image: the image, its programs, the Go modules that the programs report, and the packages of the shared
// libraries. It has no time of its own, so the same image gives the same bytes.
func bill(img *image.Image, name, version, digest string) ([]byte, error) {
	hex := strings.TrimPrefix(digest, "sha256:")
	d := &document{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version + "-" + img.Arch,
		Namespace: "https://holdfast.dev/spdx/" + name + "/" + version + "/" + hex,
		Creation:  creation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: holdfast-release"}}}
	top := d.add(component{Name: name, Version: version, Declared: "Apache-2.0", Checksums: []checksum{{"SHA256", hex}},
		Refs: purl("pkg:oci/" + name + "@" + strings.Replace(digest, ":", "%3A", 1) + "?arch=" + img.Arch)})
	d.relate(d.ID, "DESCRIBES", top)
	files := slices.Clone(img.Files)
	slices.SortFunc(files, func(a, b image.File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range files {
		if f.Source == "" {
			continue
		}
		content, err := os.ReadFile(f.Source)
		if err != nil {
			return nil, err
		}
		if err := d.file(top, f, content); err != nil {
			return nil, err
		}
	}
	out, err := json.MarshalIndent(d, "", "  ")
	return append(out, '\n'), err
}

// file adds a program with its modules, or the package of a shared library.
func (d *document) file(top string, f image.File, content []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		lib, err := library(f, content)
		if err != nil {
			return err
		}
		d.relate(top, "CONTAINS", d.add(lib))
		return nil
	}
	program := d.add(component{Name: path.Base(f.Path), Version: info.Main.Version, Declared: "Apache-2.0",
		Checksums: []checksum{{"SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}}})
	d.relate(top, "CONTAINS", program)
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	d.relate(program, "DEPENDS_ON", d.add(component{Name: "stdlib", Version: goVersion, Refs: purl("pkg:golang/stdlib@" + goVersion)}))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.relate(program, "DEPENDS_ON", d.add(component{Name: m.Path, Version: m.Version, Refs: purl("pkg:golang/" + m.Path + "@" + m.Version)}))
	}
	return nil
}

// library names the Debian package of a shared library: known vulnerabilities are listed by it.
func library(f image.File, content []byte) (component, error) {
	c := component{Name: path.Base(f.Path), Checksums: []checksum{{"SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}}}
	for _, at := range []string{f.Source, strings.TrimPrefix(f.Source, "/usr")} { // Debian's /lib is /usr/lib
		owner, err := exec.Command("dpkg-query", "--search", at).Output()
		if errors.Is(err, exec.ErrNotFound) {
			break
		}
		if err != nil {
			continue
		}
		debian, _, _ := strings.Cut(string(owner), ": ")
		version, err := exec.Command("dpkg-query", "--show", "--showformat=${Version}", debian).Output()
		if err != nil {
			return c, fmt.Errorf("asking dpkg for the version of %s: %w", debian, err)
		}
		bare, _, _ := strings.Cut(debian, ":")
		return component{Name: bare, Version: string(version), Refs: purl("pkg:deb/debian/" + bare + "@" + string(version))}, nil
	}
	return c, nil
}

// add adds a component once and returns its id.
func (d *document) add(c component) string {
	c.ID = "SPDXRef-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, c.Name+"-"+c.Version)
	if !slices.ContainsFunc(d.Packages, func(other component) bool { return other.ID == c.ID }) {
		c.Location, c.Concluded, c.Copyright = none, none, none
		if c.Declared == "" {
			c.Declared = none
		}
		d.Packages = append(d.Packages, c)
	}
	return c.ID
}

func (d *document) relate(from, how, to string) {
	r := relationship{from, how, to}
	if !slices.Contains(d.Relationships, r) {
		d.Relationships = append(d.Relationships, r)
	}
}

func purl(locator string) []reference { return []reference{{"PACKAGE-MANAGER", "purl", locator}} }
