package image

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestIndexOfTwoProcessors: one archive has for each processor an image with its own program.
func TestIndexOfTwoProcessors(t *testing.T) {
	of := func(arch string) *Image {
		return &Image{Name: "holdfast.dev/test/x:1", Arch: arch, Entrypoint: []string{"/x"}, Files: []File{{Path: "/x", Mode: 0o755, Content: []byte("for " + arch)}}}
	}
	var archives [2][]byte
	for n := range archives {
		x, err := NewIndex([]*Image{of("amd64"), of("arm64")})
		if err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		if err := x.Write(&archive); err != nil {
			t.Fatal(err)
		}
		archives[n] = archive.Bytes()
		time.Sleep(time.Duration(1-n) * 1100 * time.Millisecond) // archives have times in whole seconds
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}
	dir := t.TempDir()
	at := filepath.Join(dir, "x.tar")
	if err := os.WriteFile(at, archives[0], 0o644); err != nil {
		t.Fatal(err)
	}
	digest, index, err := read(at, dir)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/test/x:1"
	if pushed, err := Push(at, ref); err != nil || pushed != digest {
		t.Fatalf("pushed %s, want %s: %v", pushed, digest, err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if img, err := remote.Image(parsed, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch})); err != nil {
			t.Errorf("the registry has no image for %s: %v", arch, err)
		} else if c, err := img.ConfigFile(); err != nil || c.Architecture != arch {
			t.Errorf("a node of %s pulls an image for %s: %v", arch, c.Architecture, err)
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
