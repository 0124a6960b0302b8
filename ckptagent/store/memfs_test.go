//go:build linux

package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"sort"
	"strings"
)

// errCrash is returned after the crash.
var errCrash = errors.New("crashed")

// node is a file or a folder. synced is the content of a file that survives a power failure.
type node struct {
	dir          bool
	data, synced []byte
}

// memFS is a file system that loses content that was not synced: data needs Sync, a name needs SyncDir of its folder.
type memFS struct {
	rnd   *rand.Rand
	ops   int // done so far
	crash int // number of the operation that is carried out in part or not at all; 0: none
	now   map[string]*node
	safe  map[string]*node
	trace []string
}

func newMemFS(rnd *rand.Rand, crash int) *memFS {
	root, mount := &node{dir: true}, &node{dir: true}
	return &memFS{rnd: rnd, crash: crash, now: map[string]*node{"/": root, "/claim": mount}, safe: map[string]*node{"/": root, "/claim": mount}}
}

// step counts an operation; true: the crash comes before the operation.
func (m *memFS) step(format string, args ...any) bool {
	m.ops++
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
	return m.crash > 0 && m.ops >= m.crash
}

func (m *memFS) MkdirAll(dir string) error {
	if m.step("mkdir %s", dir) {
		return errCrash
	}
	for d := dir; d != "/"; d = path.Dir(d) {
		if m.now[d] == nil {
			m.now[d] = &node{dir: true}
		}
	}
	return nil
}

type memFile struct {
	fs *memFS
	n  *node
}

func (m *memFS) Create(name string) (File, error) {
	if m.step("create %s", name) {
		return nil, errCrash
	}
	if d := m.now[path.Dir(name)]; d == nil || !d.dir {
		return nil, fs.ErrNotExist
	}
	n := &node{}
	m.now[name] = n
	return memFile{m, n}, nil
}

func (f memFile) WriteAt(b []byte, at int64) (int, error) {
	crashes := f.fs.step("write %d at %d", len(b), at)
	part := b
	if crashes {
		if f.fs.ops != f.fs.crash {
			return 0, errCrash
		}
		part = b[:f.fs.rnd.IntN(len(b)+1)] // the present operation may be carried out in part
	}
	if more := int(at) + len(part) - len(f.n.data); more > 0 {
		f.n.data = append(f.n.data, make([]byte, more)...)
	}
	copy(f.n.data[at:], part)
	if crashes {
		return 0, errCrash
	}
	return len(b), nil
}

func (f memFile) Sync() error {
	if f.fs.step("sync") {
		return errCrash
	}
	f.n.synced = bytes.Clone(f.n.data)
	return nil
}

func (f memFile) Close() error { return nil }

func (m *memFS) Open(name string, at int64) (io.ReadCloser, error) {
	n := m.now[name]
	if n == nil || n.dir {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(n.data[min(at, int64(len(n.data))):])), nil
}

func (m *memFS) Rename(from, to string) error {
	if m.step("rename %s", to) {
		return errCrash
	}
	n := m.now[from]
	if n == nil {
		return fs.ErrNotExist
	}
	delete(m.now, from)
	m.now[to] = n
	return nil
}

func (m *memFS) Remove(name string) error {
	if m.step("remove %s", name) {
		return errCrash
	}
	n := m.now[name]
	if n == nil {
		return fs.ErrNotExist
	}
	if n.dir {
		if names, _ := m.List(name); len(names) > 0 {
			return errors.New("not empty")
		}
	}
	delete(m.now, name)
	return nil
}

func (m *memFS) List(dir string) ([]string, error) {
	if n := m.now[dir]; n == nil || !n.dir {
		return nil, fs.ErrNotExist
	}
	var names []string
	for p := range m.now {
		if path.Dir(p) == dir && p != "/" {
			names = append(names, path.Base(p))
		}
	}
	return names, nil
}

func (m *memFS) SyncDir(dir string) error {
	if m.step("syncdir %s", dir) {
		return errCrash
	}
	if m.now[dir] == nil {
		return fs.ErrNotExist
	}
	for p := range m.safe {
		if path.Dir(p) == dir && m.now[p] == nil {
			delete(m.safe, p)
		}
	}
	for p, n := range m.now {
		if path.Dir(p) == dir {
			m.safe[p] = n
		}
	}
	return nil
}

// reboot returns the file system after the crash. Without a power failure all completed operations are there. With one, of each thing that
// was not synced either the old or the new is there.
func (m *memFS) reboot(power bool) *memFS {
	out := newMemFS(m.rnd, 0)
	paths := map[string]bool{}
	for p := range m.now {
		paths[p] = true
	}
	if power {
		for p := range m.safe {
			paths[p] = true
		}
	}
	var sorted []string
	for p := range paths {
		sorted = append(sorted, p)
	}
	sort.Strings(sorted) // folders before their content
	for _, p := range sorted {
		n := m.now[p]
		if power && m.now[p] != m.safe[p] && m.rnd.IntN(2) == 0 {
			n = m.safe[p]
		}
		if n == nil || p != "/" && out.now[path.Dir(p)] == nil {
			continue
		}
		kept := &node{dir: n.dir, data: bytes.Clone(n.data)}
		if power {
			kept.data = m.survives(n)
		}
		kept.synced = kept.data
		out.now[p], out.safe[p] = kept, kept
	}
	return out
}

// survives returns what a power failure leaves of a file: the synced content, and of the rest nothing, a part, all, or other bytes of the
// same length.
func (m *memFS) survives(n *node) []byte {
	data := bytes.Clone(n.data)
	if len(n.data) == len(n.synced) {
		return data
	}
	rest := data[len(n.synced):]
	switch m.rnd.IntN(4) {
	case 0:
		return data[:len(n.synced)+m.rnd.IntN(len(rest)+1)]
	case 1:
		return data
	case 2: // the length was stored, and the blocks were not
		clear(rest)
	case 3:
		for i := range rest {
			rest[i] = byte(m.rnd.Uint32())
		}
	}
	return data
}

// goOn returns the file system of the same machine after a process died: nothing is lost, and content that was not synced stays so. The
// next crash comes at an operation of the next process.
func (m *memFS) goOn(crash int) *memFS {
	m.ops, m.crash, m.trace = 0, crash, append(m.trace, "-- the next process")
	return m
}

func (m *memFS) String() string { return strings.Join(m.trace, "\n") }
