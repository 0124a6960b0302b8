package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestIndexOfTwoProcessors: one archive has for each processor an image with its own program.
func TestIndexOfTwoProcessors(t *testing.T) {
	of := func(arch string) *Image {
		return &Image{Name: "holdfast.dev/test/x:1", Arch: arch, Entrypoint: []string{"/x"}, Files: []File{{Path: "/x", Mode: 0o755, Content: []byte("for " + arch)}}}
	}
	var archive, again bytes.Buffer
	for _, w := range []io.Writer{&archive, &again} {
		if err := WriteIndex([]*Image{of("amd64"), of("arm64")}, w); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("two archives of the same files differ")
	}
	dir := t.TempDir()
	for tr := tar.NewReader(&archive); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		content, err := io.ReadAll(tr)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, content, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if m := top.Manifests; len(m) != 1 || m[0].MediaType != types.OCIImageIndex || m[0].Annotations["io.containerd.image.name"] != "holdfast.dev/test/x:1" {
		t.Fatalf("the archive holds %+v", m)
	}
	index, err := root.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var archs []string
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		layer, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(layer)
		if err != nil || !strings.Contains(string(content), "for "+m.Platform.Architecture) || config.Architecture != m.Platform.Architecture {
			t.Errorf("%s: the image is for %s: %v", m.Platform, config.Architecture, err)
		}
		archs = append(archs, m.Platform.Architecture)
	}
	if !slices.Equal(archs, []string{"amd64", "arm64"}) {
		t.Errorf("images for %v", archs)
	}
}

// TestLibrariesOfAnotherProcessor: they never come from this machine.
func TestLibrariesOfAnotherProcessor(t *testing.T) {
	img := &Image{Name: "holdfast.dev/test/x:1", Arch: "riscv64"}
	if err := img.AddLibraries(); err == nil || !strings.Contains(err.Error(), "there are no libraries for riscv64 here") {
		t.Error(err)
	}
}
