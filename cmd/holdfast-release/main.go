// Command holdfast-release makes what `make release` leaves in dist/ of programs that are built: images of several processors with their SBOMs,
// the wheels of the Python package, and the checksums of all files. It also pushes images.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/image"
)

const usage = `use: holdfast-release images --bin FOLDER --version VERSION --archs amd64,arm64 --out FOLDER
     holdfast-release wheels --bin FOLDER --version VERSION --archs amd64,arm64 --out FOLDER
     holdfast-release push --images FOLDER --version VERSION --registry REGISTRY
     holdfast-release sums FOLDER
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command was given\n%s", usage)
	}
	var o options
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", ".cache/release", "folder with a folder of programs for each processor")
	f.StringVar(&o.version, "version", "", "tag of the images")
	f.StringVar(&o.archs, "archs", "amd64,arm64", "processors, by Go's names")
	f.StringVar(&o.out, "out", "dist/images", "folder to write archives and SBOMs to")
	f.StringVar(&o.images, "images", "dist/images", "folder with the archives to push")
	f.StringVar(&o.registry, "registry", "", "registry and path before the images' names, such as registry.example.com/holdfast")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] != "sums" && o.version == "" {
		return fmt.Errorf("--version is empty: name the images' tag, such as v0.1.0")
	}
	switch args[0] {
	case "images":
		return o.write(out)
	case "wheels":
		return o.wheels(out)
	case "push":
		return o.push(out)
	case "sums":
		return sums(f.Arg(0))
	}
	return fmt.Errorf("there is no command %q\n%s", args[0], usage)
}

type options struct {
	bin, version, archs, out string
	images, registry         string
}

// write writes each product's archive, and an SBOM for each of its processors.
func (o options) write(out io.Writer) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for _, name := range image.Products {
		digest, err := o.product(name)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, digest, filepath.Join(o.out, name+".tar"))
	}
	return nil
}

func (o options) product(name string) (string, error) {
	var images []*image.Image
	for _, arch := range strings.Split(o.archs, ",") {
		img, err := image.Product(filepath.Join(o.bin, arch), name, "holdfast.dev/"+name+":"+o.version, arch)
		if err != nil {
			return "", fmt.Errorf("image %s for %s: %w", name, arch, err)
		}
		img.Labels = map[string]string{"org.opencontainers.image.title": name, "org.opencontainers.image.version": o.version,
			"org.opencontainers.image.licenses": "Apache-2.0"}
		images = append(images, img)
	}
	index, err := image.NewIndex(images)
	if err != nil {
		return "", err
	}
	for _, img := range images {
		s, err := bill(img, name, o.version, index.Images[img.Arch])
		if err == nil {
			err = os.WriteFile(filepath.Join(o.out, name+"-"+img.Arch+".spdx.json"), s, 0o644)
		}
		if err != nil {
			return "", fmt.Errorf("the SBOM of %s for %s: %w", name, img.Arch, err)
		}
	}
	f, err := os.Create(filepath.Join(o.out, name+".tar"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := index.Write(f); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err == nil {
		err = f.Close()
	}
	return digest, err
}

func (o options) push(out io.Writer) error {
	if o.registry == "" {
		return fmt.Errorf("--registry is empty: name where to push to, such as registry.example.com/holdfast")
	}
	for _, name := range image.Products {
		ref := strings.TrimSuffix(o.registry, "/") + "/" + name + ":" + o.version
		digest, err := image.Push(filepath.Join(o.images, name+".tar"), ref)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s@%s\n", ref, digest)
	}
	return nil
}
