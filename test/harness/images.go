package harness

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/image"
)

// tag is the tag of the product's images in manifests/kustomization.yaml.
const tag = "v0.1.0-dev"

// ControlPlane are the images that only nodes of the control plane need.
var ControlPlane = []string{"holdfast-controller", "holdfast-scheduler"}

// base is the training base image among the product's.
const base = "base"

// Injected are the images that pods of jobs need: the agent's and the training base image.
var Injected = []string{"holdfast-agent", base}

// LoadImages builds the product's images from the source tree's bin/ and loads them, with the training base image, into all nodes.
func (c *Cluster) LoadImages(ctx context.Context) error {
	return c.LoadImagesInto(ctx, c.Nodes(), append(slices.Clone(image.Products), base)...)
}

// LoadImagesInto builds some of these images and loads them into some nodes.
func (c *Cluster) LoadImagesInto(ctx context.Context, nodes []*devcluster.Node, names ...string) error {
	for _, name := range names {
		img, err := ProductImage(c.Source, c.Spec().PythonDir, name)
		if err != nil {
			return fmt.Errorf("building image %s: %w", name, err)
		}
		if err := c.LoadInto(ctx, nodes, img); err != nil {
			return fmt.Errorf("loading images: %w", err)
		}
	}
	return nil
}

// ProductImage returns the image that `make images` builds for the binary of that name, or the training base image.
func ProductImage(source, pythonDir, name string) (*image.Image, error) {
	if name == base {
		return image.Base(pythonDir)
	}
	return image.Product(filepath.Join(source, "bin"), name, "holdfast.dev/"+name+":"+tag, "")
}
