package image

import (
	"archive/tar"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// WriteIndex writes images of one name for several processors as one OCI archive: registries and containerd import it as one image, from
// which each node gets its processor's.
func WriteIndex(images []*Image, w io.Writer) error {
	ref, err := name.NewTag(images[0].Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image name %q: %w; name it like holdfast.dev/agent:v1", images[0].Name, err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		img, err := i.build()
		if err != nil {
			return fmt.Errorf("building image %s for %s: %w", i.Name, i.Arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: mutate.MediaType(img, types.OCIManifestSchema1),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}}})
	}
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("making room for the archive: %w", err)
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name": ref.Name(), "org.opencontainers.image.ref.name": ref.TagStr()}))
	}
	if err != nil {
		return fmt.Errorf("laying out image %s: %w", ref, err)
	}
	tw := tar.NewWriter(w)
	if err := tw.AddFS(os.DirFS(dir)); err != nil {
		return fmt.Errorf("writing image %s: %w", ref, err)
	}
	return tw.Close()
}
