package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Index is images of one name for several processors as one OCI index, of which each node pulls its processor's.
type Index struct {
	ref   name.Tag
	index v1.ImageIndex
	// Images has the digest of each processor's image.
	Images map[string]string
}

// NewIndex builds the images and their index. The same files give the same digests.
func NewIndex(images []*Image) (*Index, error) {
	ref, err := name.NewTag(images[0].Name, name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w; name it like holdfast.dev/agent:v1", images[0].Name, err)
	}
	x := &Index{ref: ref, index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex), Images: map[string]string{}}
	for _, i := range images {
		img, err := i.oci()
		if err != nil {
			return nil, fmt.Errorf("building image %s for %s: %w", i.Name, i.Arch, err)
		}
		digest, err := img.Digest()
		if err != nil {
			return nil, fmt.Errorf("building image %s for %s: %w", i.Name, i.Arch, err)
		}
		x.Images[i.Arch] = digest.String()
		x.index = mutate.AppendManifests(x.index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}}})
	}
	return x, nil
}

// oci returns the image in OCI's format, its layer compressed.
func (i *Image) oci() (v1.Image, error) {
	content, err := i.layer()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	return i.with(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
}

// Digest is the digest of the index, by which a cluster may name it.
func (x *Index) Digest() (string, error) {
	digest, err := x.index.Digest()
	return digest.String(), err
}

// Write writes the index as an OCI archive, which registries and containerd import as one image.
func (x *Index) Write(w io.Writer) error {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("making room for the archive: %w", err)
	}
	defer os.RemoveAll(dir)
	out, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = out.AppendIndex(x.index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name": x.ref.Name(), "org.opencontainers.image.ref.name": x.ref.TagStr()}))
	}
	if err != nil {
		return fmt.Errorf("laying out image %s: %w", x.ref, err)
	}
	files, err := Copy(dir, "/")
	if err != nil {
		return fmt.Errorf("laying out image %s: %w", x.ref, err)
	}
	archive, err := (&Image{Files: files}).layer()
	if err == nil {
		_, err = w.Write(archive)
	}
	if err != nil {
		return fmt.Errorf("writing image %s: %w", x.ref, err)
	}
	return nil
}

// Push pushes the index of an archive that Write wrote to a registry, as repository:tag, with the credentials of docker's configuration. It
// returns the digest.
func Push(archive, reference string) (string, error) {
	ref, err := name.NewTag(reference)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w; name it like registry.example.com/holdfast/holdfast-agent:v1", reference, err)
	}
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return "", fmt.Errorf("making room for the archive: %w", err)
	}
	defer os.RemoveAll(dir)
	digest, index, err := read(archive, dir)
	if err != nil {
		return "", fmt.Errorf("reading the image in %s: %w", archive, err)
	}
	if err := remote.WriteIndex(ref, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", ref, err)
	}
	return digest, nil
}

// read lays an archive out in an empty folder and returns its one index.
func read(archive, dir string) (string, v1.ImageIndex, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(tr)
		if err == nil {
			err = errors.Join(root.MkdirAll(path.Dir(h.Name), 0o755), root.WriteFile(h.Name, content, 0o644))
		}
		if err != nil {
			return "", nil, err
		}
	}
	layouts, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", nil, err
	}
	top, err := layouts.IndexManifest()
	if err != nil {
		return "", nil, err
	}
	if len(top.Manifests) != 1 {
		return "", nil, fmt.Errorf("it has %d images, not one: write the archive again", len(top.Manifests))
	}
	index, err := layouts.ImageIndex(top.Manifests[0].Digest)
	return top.Manifests[0].Digest.String(), index, err
}
