// Package image builds container images from files of the machine, without a registry, a daemon or a Dockerfile. The
// same files give an image with the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is the content of an image of one layer.
type Image struct {
	// Name is the full reference with a tag, such as holdfast.dev/agent:v1.
	Name       string
	Entrypoint []string
	Cmd        []string
	Env        []string
	WorkDir    string
	// Arch is the processor of its programs, by Go's name; empty: this machine's.
	Arch string
	// User is a uid, or uid:gid; restricted pods need a number.
	User   string
	Labels map[string]string
	Files  []File
}

// File is one entry of an image: a symbolic link if Link is set, a directory if Mode says so, otherwise a file with Content or a copy of
// Source.
type File struct {
	Path    string
	Mode    fs.FileMode
	Link    string
	Content []byte
	Source  string
}

// Dir returns a directory entry.
func Dir(path string, mode fs.FileMode) File { return File{Path: path, Mode: mode | fs.ModeDir} }

// Copy returns copies of a file, or of a whole directory, of this machine.
func Copy(src, dst string) ([]File, error) {
	info, err := os.Stat(src)
	if err != nil {
		return nil, fmt.Errorf("adding %s to the image: %w", src, err)
	}
	if !info.IsDir() {
		return []File{{Path: dst, Mode: info.Mode().Perm(), Source: src}}, nil
	}
	var out []File
	err = filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := path.Join(dst, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			out = append(out, Dir(at, info.Mode().Perm()))
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out = append(out, File{Path: at, Link: to})
		case d.Type().IsRegular():
			out = append(out, File{Path: at, Mode: info.Mode().Perm(), Source: p})
		}
		return nil
	})
	return out, err
}

// Write writes the image as an archive that containerd and docker can import.
func (i *Image) Write(w io.Writer) error {
	ref, err := name.NewTag(i.Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image name %q: %w; name it like holdfast.dev/agent:v1", i.Name, err)
	}
	img, err := i.build()
	if err != nil {
		return fmt.Errorf("building image %s: %w", i.Name, err)
	}
	if err := tarball.Write(ref, img, w); err != nil {
		return fmt.Errorf("writing image %s: %w", i.Name, err)
	}
	return nil
}

// Tar returns the archive of Write, in memory.
func (i *Image) Tar() ([]byte, error) {
	var b bytes.Buffer
	err := i.Write(&b)
	return b.Bytes(), err
}

func (i *Image) build() (v1.Image, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	return i.with(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
}

// with returns the image with its content in a layer on base.
func (i *Image) with(base v1.Image, layer v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.OS = cmp.Or(i.Arch, runtime.GOARCH), "linux"
	cf.Created = v1.Time{Time: time.Unix(0, 0)}
	cf.Config = v1.Config{Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: i.Env, WorkingDir: i.WorkDir, User: i.User, Labels: i.Labels}
	return mutate.ConfigFile(img, cf)
}

// layer returns the tar of all files with their parent directories, sorted.
func (i *Image) layer() ([]byte, error) {
	all := map[string]File{}
	for _, f := range i.Files {
		f.Path = strings.TrimPrefix(path.Clean("/"+f.Path), "/")
		if f.Path == "" {
			continue
		}
		all[f.Path] = f
	}
	for p := range all {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if _, ok := all[d]; !ok {
				all[d] = Dir(d, 0o755)
			}
		}
	}
	paths := make([]string, 0, len(all))
	for p := range all {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, p := range paths {
		if err := writeEntry(tw, p, all[p]); err != nil {
			return nil, fmt.Errorf("adding /%s: %w", p, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func writeEntry(tw *tar.Writer, p string, f File) error {
	h := &tar.Header{Name: p, Mode: int64(f.Mode.Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		return tw.WriteHeader(h)
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, p+"/"
		return tw.WriteHeader(h)
	}
	content := f.Content
	if f.Source != "" {
		var err error
		if content, err = os.ReadFile(f.Source); err != nil {
			return err
		}
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}
