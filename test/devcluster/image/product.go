package image

import "path/filepath"

// Products are the product's images, each named as its program.
var Products = []string{"holdfast-controller", "holdfast-scheduler", "holdfast-agent", daemon}

// daemon is the image that has more than its program: the probe, and the shared libraries that it needs.
const (
	daemon = "holdfast-node"
	probe  = "holdfast-nvml"
)

// Product returns the product's image of that name from the programs in folder bin, for a processor; "": this machine's. Its content
// depends on the programs' bytes alone, not on the owner or the mode of their files.
func Product(bin, name, reference, arch string) (*Image, error) {
	program := func(name string) File { return File{Path: "/" + name, Mode: 0o755, Source: filepath.Join(bin, name)} }
	img := &Image{Name: reference, Arch: arch, Entrypoint: []string{"/" + name}, User: "65532:65532", Files: []File{program(name)}}
	if name == daemon {
		img.User, img.Files = "0:0", append(img.Files, program(probe))
		return img, img.AddLibraries()
	}
	return img, nil
}
