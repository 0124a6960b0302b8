package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// BaseUser is the user of the base image.
const BaseUser = "1000:1000"

// baseTools are the programs of the base image, except those that this machine lacks.
var baseTools = strings.Fields(`
	bash sh env ls cat cp mv rm ln mkdir rmdir touch chmod sleep echo printf true false test
	head tail tee wc sort uniq cut tr seq date id whoami uname hostname nproc df du stat dd sync
	sha256sum md5sum od base64 basename dirname readlink realpath timeout nice mktemp mkfifo
	grep sed find xargs ps getent`)

// extraLibraries are loaded by name at run time, so that no file's header lists them.
var extraLibraries = strings.Fields(`
	libgcc_s.so.1 libstdc++.so.6 libgomp.so.1 libnss_dns.so.2 libnss_files.so.2
	libssl.so.3 libcrypto.so.3 libffi.so.8 libz.so.1 liblzma.so.5 libbz2.so.1.0 libsqlite3.so.0
	libexpat.so.1 libuuid.so.1 libncursesw.so.6 libtinfo.so.6 libreadline.so.8 libpanelw.so.6
	libgdbm.so.6 libdb-5.3.so libnsl.so.2 libtirpc.so.3 libcrypt.so.1 librt.so.1 libdl.so.2 libutil.so.1 libpthread.so.0`)

// Base returns the training base image: a shell, the core tools and the shared libraries for these and for the Python in pythonDir (may be
// empty). A volume provides Python itself.
func Base(pythonDir string) (*Image, error) {
	img := &Image{
		Name:       layout.BaseImage,
		Cmd:        []string{"/bin/bash"},
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"},
		User:       BaseUser,
		WorkDir:    "/tmp",
		Files:      baseSkeleton(),
		Entrypoint: nil,
	}
	libs := newLibraries()
	for _, tool := range baseTools {
		p, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		if err := libs.needsOf(p); err != nil {
			return nil, err
		}
		img.Files = append(img.Files, File{Path: "/usr/bin/" + tool, Mode: 0o755, Source: p})
	}
	for _, lib := range extraLibraries {
		if err := libs.add(lib); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if pythonDir != "" {
		if err := libs.needsBelow(filepath.Join(pythonDir, "base")); err != nil {
			return nil, err
		}
	}
	img.Files = append(img.Files, libs.files()...)
	for _, opt := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/protocols", "/etc/services"} {
		if _, err := os.Stat(opt); err == nil {
			img.Files = append(img.Files, File{Path: opt, Mode: 0o644, Source: opt})
		}
	}
	return img, nil
}

// foreign is the folder of Debian's cross compilers with the C library of another processor.
var foreign = map[string]string{"amd64": "/usr/x86_64-linux-gnu", "arm64": "/usr/aarch64-linux-gnu"}

// AddLibraries adds the shared libraries that the image's programs need, of this machine or of the image's processor, and the whole C
// library, which libraries loaded at run time may need.
func (i *Image) AddLibraries() error {
	libs := newLibraries()
	if i.Arch != "" && i.Arch != runtime.GOARCH {
		root := foreign[i.Arch]
		libs.root, libs.dirs = root, []string{filepath.Join(root, "lib")}
		if _, err := os.Stat(filepath.Join(root, "lib")); root == "" || err != nil {
			return fmt.Errorf("there are no libraries for %s here: install that processor's cross compiler (gcc-aarch64-linux-gnu, gcc-x86-64-linux-gnu)", i.Arch)
		}
	}
	for _, f := range i.Files {
		if f.Source == "" || f.Mode.IsDir() {
			continue
		}
		if err := libs.needsOf(f.Source); err != nil {
			return err
		}
	}
	for _, lib := range []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"} {
		if err := libs.add(lib); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	i.Files = append(i.Files, libs.files()...)
	i.Files = append(i.Files, File{Path: "/lib", Link: "usr/lib"}, File{Path: "/lib64", Link: "usr/lib64"})
	return nil
}

func baseSkeleton() []File {
	return []File{
		{Path: "/bin", Link: "usr/bin"}, {Path: "/sbin", Link: "usr/bin"},
		{Path: "/lib", Link: "usr/lib"}, {Path: "/lib64", Link: "usr/lib64"},
		Dir("/tmp", 0o777|fs.ModeSticky), Dir("/var/tmp", 0o777|fs.ModeSticky), Dir("/opt", 0o755), Dir("/dev", 0o755), Dir("/proc", 0o755), Dir("/sys", 0o755),
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/bash\ntrainer:x:1000:1000:trainer:/tmp:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\ntrainer:x:1000:\nnogroup:x:65534:\n")},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	}
}

// libraries collects shared libraries and their dependencies.
type libraries struct {
	root  string // root of another processor's libraries; empty: this machine's
	dirs  []string
	found map[string]string // path in the image -> path on the machine
}

func newLibraries() *libraries {
	return &libraries{
		dirs: []string{
			"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
			"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/lib",
		},
		found: map[string]string{},
	}
}

func (l *libraries) files() []File {
	var out []File
	for at, src := range l.found {
		out = append(out, File{Path: at, Mode: 0o755, Source: src})
	}
	return out
}

// add adds the library with this name, and its dependencies.
func (l *libraries) add(lib string) error {
	for _, d := range l.dirs {
		p := filepath.Join(d, lib)
		if _, err := os.Stat(p); err != nil {
			continue
		}
		return l.take(p)
	}
	return fmt.Errorf("finding library %s: %w", lib, fs.ErrNotExist)
}

func (l *libraries) take(p string) error {
	at := strings.TrimPrefix(p, l.root)
	if !strings.HasPrefix(at, "/usr/") {
		at = "/usr" + at // the image's /lib links to /usr/lib
	}
	if _, ok := l.found[at]; ok {
		return nil
	}
	l.found[at] = p
	return l.needsOf(p)
}

// needsOf adds the dependencies of the program or library p, but not p itself.
func (l *libraries) needsOf(p string) error {
	f, err := elf.Open(p)
	var notELF *elf.FormatError
	if errors.As(err, &notELF) {
		return nil // a script
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if sec := f.Section(".interp"); sec != nil {
		b, err := sec.Data()
		if err != nil {
			return err
		}
		if err := l.take(l.root + strings.TrimRight(string(b), "\x00")); err != nil {
			return err
		}
	}
	needs, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading what %s needs: %w", p, err)
	}
	for _, n := range needs {
		if err := l.add(n); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// needsBelow adds the dependencies of the programs and extension modules below dir. A library that is missing on this machine is skipped.
func (l *libraries) needsBelow(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if !strings.Contains(d.Name(), ".so") && filepath.Base(filepath.Dir(p)) != "bin" {
			return nil
		}
		if err := l.needsOf(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}
