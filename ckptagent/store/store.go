//go:build linux

// Package store writes and reads the steps of one job in a mounted folder. A step has one file per rank and a manifest,
// as specified in docs/formats/storage.md.
//
//   - A file that has its final name is complete.
//   - After Put or PutManifest returned nil, the file survives a power failure.
//   - Get returns the bytes that were stored, or an error.
//   - Prune and PruneBelow remove only files with names of Holdfast, and no file of a step that the caller lists as
//     recorded.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// chunk is the number of bytes that are read, checksummed and written at a time.
const chunk = 4 << 20

// ErrUseless is returned for a step that is unavailable: a file is missing, incomplete, of another size or of another step.
var ErrUseless = errors.New("of no use")

// ErrChanged is returned if the bytes are not those that were sealed.
var ErrChanged = errors.New("the bytes are not those that were sealed")

// compare orders marks by creation: first by generation, then by step.
func compare(m, o protocol.Mark) int {
	return cmp.Or(cmp.Compare(m.Generation, o.Generation), cmp.Compare(m.Step, o.Step))
}

// Store is the folder of one job. Its methods may be called concurrently.
type Store struct {
	fs       FS
	dir      string
	writer   string
	parts    atomic.Uint64
	indexer  Indexer // nil: no step gets an index
	notNamed func(m protocol.Mark, why error)
	streams  chan struct{} // has one for each rank whose data is being written
}

// Streams is the most ranks of a pod whose data is written, or fetched, at a time.
const Streams = 4

// New returns the Store in folder dir; writer distinguishes this process's unfinished files from those of others.
func New(under FS, dir, writer string) *Store {
	return &Store{fs: under, dir: dir, writer: writer, streams: make(chan struct{}, Streams)}
}

// Probe reports whether the folder can be written.
func (s *Store) Probe() error {
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return fmt.Errorf("making the job's folder: %w", err)
	}
	name := path.Join(s.dir, "probe-"+s.writer+format.PartSuffix)
	f, err := s.fs.Create(name)
	if err != nil {
		return fmt.Errorf("writing into the job's folder: %w", err)
	}
	_, err = f.WriteAt([]byte("holdfast\n"), 0)
	return errors.Join(err, f.Sync(), f.Close(), s.fs.Remove(name))
}

// Answers reports whether the folder can at least be read.
func (s *Store) Answers() bool {
	_, err := s.fs.List(s.dir)
	return err == nil
}

func (s *Store) folder(generation int64) string {
	return path.Join(s.dir, format.GenerationFolder(generation))
}

// Put writes a rank's file, unless it exists already. The error is ErrChanged if data does not have the length and the checksum in f.
func (s *Store) Put(ctx context.Context, f format.RankFile, data io.Reader) error {
	if have, err := s.header(s.rankFile(f)); err == nil && have == f {
		return s.fs.SyncDir(s.folder(f.Generation)) // its writer may have died before the sync
	}
	return s.Draft(ctx, f, data).Commit(f)
}

func (s *Store) rankFile(f format.RankFile) string {
	return path.Join(s.folder(f.Generation), format.RankFileName(f.Step, f.Rank))
}

// Draft is a rank's file whose data is written while the checksum of its slot is computed. It exists only after Commit.
type Draft struct {
	of      format.RankFile // without a checksum
	file    part
	sum     uint32
	err     error
	written chan struct{} // closed after the data was written, or not
}

// Draft begins to write the data of a rank's file, in another goroutine, which ends with ctx, and which waits while Streams others write.
// One of Commit and Drop must follow.
func (s *Store) Draft(ctx context.Context, f format.RankFile, data io.Reader) *Draft {
	d := &Draft{of: f, written: make(chan struct{})}
	d.of.Checksum = 0
	go func() {
		defer close(d.written)
		select {
		case s.streams <- struct{}{}:
			defer func() { <-s.streams }()
		case <-ctx.Done():
			d.err = ctx.Err()
			return
		}
		if d.err = s.makeFolder(s.folder(f.Generation)); d.err != nil {
			return
		}
		if d.file, d.err = s.begin(s.rankFile(f)); d.err == nil {
			d.sum, d.err = writeData(ctx, d.file.File, f.Length, data)
		}
	}()
	return d
}

// Matches reports whether the file is that of f, except for the checksum.
func (d *Draft) Matches(f format.RankFile) bool {
	f.Checksum = 0
	return f == d.of
}

// Commit writes the header and gives the file its name. The error is ErrChanged if the data does not have the checksum in f.
func (d *Draft) Commit(f format.RankFile) error {
	<-d.written
	if d.err == nil && d.sum != f.Checksum {
		d.err = ErrChanged
	}
	if d.err == nil {
		head := aligned(format.RankFileData)
		copy(head, f.Encode())
		_, d.err = d.file.WriteAt(head, 0)
	}
	return d.file.finish(d.err)
}

// Drop removes the file.
func (d *Draft) Drop() {
	<-d.written
	_ = d.file.finish(errors.Join(context.Canceled, d.err))
}

// part is a file with a temporary name.
type part struct {
	File
	s          *Store
	temp, name string
}

// begin creates a file that gets its name by finish. Its folder must exist.
func (s *Store) begin(name string) (p part, err error) {
	temp := fmt.Sprintf("%s.%s-%d%s", name, s.writer, s.parts.Add(1), format.PartSuffix)
	out, err := s.fs.Create(temp)
	if err != nil {
		return part{}, err
	}
	return part{File: out, s: s, temp: temp, name: name}, nil
}

// finish syncs the file and renames it, or removes it if err is set, and returns the first error.
func (p part) finish(err error) error {
	if p.File == nil {
		return err
	}
	if err == nil {
		err = p.Sync()
	}
	if err = errors.Join(err, p.Close()); err == nil {
		err = p.s.fs.Rename(p.temp, p.name)
	}
	if err != nil {
		_ = p.s.fs.Remove(p.temp) // after a failure it is removed with the other files of its step
		return err
	}
	return p.s.fs.SyncDir(path.Dir(p.name))
}

// put writes a complete file. Its folder must exist.
func (s *Store) put(name string, fill func(io.Writer) error) error {
	p, err := s.begin(name)
	if err != nil {
		return err
	}
	return p.finish(fill(io.NewOffsetWriter(p, 0)))
}

// makeFolder creates a generation's folder so that its name survives a power failure.
func (s *Store) makeFolder(dir string) error {
	if err := s.fs.MkdirAll(dir); err != nil {
		return err
	}
	for _, above := range []string{s.dir, path.Dir(s.dir)} {
		if err := s.fs.SyncDir(above); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) header(name string) (format.RankFile, error) {
	in, err := s.fs.Open(name, 0)
	if err != nil {
		return format.RankFile{}, useless(err)
	}
	defer in.Close()
	b := make([]byte, format.RankFileData)
	if _, err := io.ReadFull(in, b); err != nil {
		return format.RankFile{}, useless(err)
	}
	return format.DecodeRankFile(b)
}

// PutManifest marks a step as complete. PutManifest first checks that the step's files match the manifest, and writes the index for stock
// torch.
func (s *Store) PutManifest(m format.Manifest) error {
	name := path.Join(s.folder(m.Generation), format.ManifestName(m.Step))
	given := m.Branch
	for rank, want := range m.Ranks {
		f, err := s.header(path.Join(s.folder(m.Generation), format.RankFileName(m.Step, uint32(rank))))
		if err != nil {
			return fmt.Errorf("looking for the file of rank %d, step %d, generation %d: %w", rank, m.Step, m.Generation, err)
		}
		if rank == 0 && given == 0 {
			m.Branch = f.Branch // a coordinator without branches sends none
		}
		if f.Point() != (format.Point{Branch: m.Branch, Step: m.Step}) || f.Generation != m.Generation || f.Rank != uint32(rank) ||
			f.Length != want.Length ||
			f.Checksum != want.Checksum {
			return fmt.Errorf(
				"the file of rank %d, step %d, generation %d does not match the manifest: %w",
				rank,
				m.Step,
				m.Generation,
				ErrUseless,
			)
		}
	}
	if err := s.makeFolder(s.folder(m.Generation)); err != nil {
		return err
	}
	if s.indexer != nil {
		if err := s.writeIndex(m); err != nil { // the step is durable even without an index
			s.notNamed(protocol.Mark{Step: m.Step, Generation: m.Generation}, err)
		}
	}
	return s.put(name, func(out io.Writer) error {
		_, err := out.Write(m.Encode())
		return err
	})
}

// Get reads a rank's file into the writer that to returns, and verifies all of it. The error is ErrUseless if a retry cannot succeed.
func (s *Store) Get(
	ctx context.Context,
	m protocol.Mark,
	rank uint32,
	to func(format.RankFile) (io.Writer, error),
) (format.RankFile, error) {
	in, err := s.fs.Open(path.Join(s.folder(m.Generation), format.RankFileName(m.Step, rank)), 0)
	if err != nil {
		return format.RankFile{}, useless(err)
	}
	defer in.Close()
	buf := make([]byte, format.RankFileData)
	if _, err := io.ReadFull(in, buf); err != nil {
		return format.RankFile{}, useless(err)
	}
	f, err := format.DecodeRankFile(buf)
	if err != nil {
		return format.RankFile{}, fmt.Errorf("%w: %w", ErrUseless, err)
	}
	if f.Step != m.Step || f.Generation != m.Generation || f.Rank != rank {
		return f, fmt.Errorf("%w: the file of rank %d says that it is rank %d, step %d, generation %d", ErrUseless, rank, f.Rank, f.Step, f.Generation)
	}
	out, err := to(f)
	if err != nil {
		return f, err
	}
	sum := format.NewChecksum()
	buf = make([]byte, min(chunk, f.Length))
	for left := f.Length; left > 0; {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		part := buf[:min(left, chunk)]
		if _, err := io.ReadFull(in, part); err != nil {
			return f, useless(err)
		}
		_, _ = sum.Write(part)
		if _, err := out.Write(part); err != nil {
			return f, err
		}
		left -= uint64(len(part))
	}
	if n, err := io.ReadFull(in, make([]byte, 1)); n > 0 {
		return f, fmt.Errorf("%w: the file of rank %d, step %d, generation %d is longer than the %d bytes of data that its header says", ErrUseless, rank, m.Step, m.Generation, f.Length)
	} else if !errors.Is(err, io.EOF) {
		return f, err
	}
	if sum.Sum32() != f.Checksum {
		return f, fmt.Errorf("%w: rank %d, step %d, generation %d has checksum %08x, its header says %08x", ErrUseless, rank, m.Step, m.Generation, sum.Sum32(), f.Checksum)
	}
	return f, nil
}

// useless marks errors for a missing or truncated file.
func useless(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrUseless, err)
	}
	return err
}

// Complete returns the steps that have a complete manifest, oldest first.
func (s *Store) Complete() ([]protocol.Mark, error) {
	var marks []protocol.Mark
	err := s.walk(func(dir, name string, kind format.FileKind, m protocol.Mark) error {
		if kind != format.FileManifest {
			return nil
		}
		if have, err := s.manifest(path.Join(dir, name)); err == nil && have.Step == m.Step && have.Generation == m.Generation {
			marks = append(marks, m)
		}
		return nil
	})
	slices.SortFunc(marks, compare)
	return marks, err
}

// Manifest returns the manifest of a step.
func (s *Store) Manifest(m protocol.Mark) (format.Manifest, error) {
	return s.manifest(path.Join(s.folder(m.Generation), format.ManifestName(m.Step)))
}

func (s *Store) manifest(name string) (format.Manifest, error) {
	in, err := s.fs.Open(name, 0)
	if err != nil {
		return format.Manifest{}, err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, format.MaxManifest))
	if err != nil {
		return format.Manifest{}, err
	}
	return format.DecodeManifest(b)
}

// walk visits every file with one of Holdfast's names.
func (s *Store) walk(visit func(dir, name string, kind format.FileKind, m protocol.Mark) error) error {
	folders, err := s.fs.List(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	slices.Sort(folders)
	for _, folder := range folders {
		generation, ok := format.ParseGenerationFolder(folder)
		if !ok {
			continue
		}
		dir := path.Join(s.dir, folder)
		names, more := s.fs.List(dir)
		if more != nil {
			err = errors.Join(err, more)
			continue
		}
		slices.Sort(names)
		for _, name := range names {
			kind, step := format.ParseFileName(name)
			if kind == format.FileUnknown {
				continue
			}
			if more := visit(dir, name, kind, protocol.Mark{Step: step, Generation: generation}); more != nil {
				return errors.Join(err, more)
			}
		}
	}
	return err
}

// Prune removes steps older than every mark in the gang's record; nothing if the record is empty. Marks that the record gets later are
// newer than its present ones, so even a delayed writer removes no step that may still be needed. A step's manifest and its .metadata are
// removed first, so that neither ever refers to files that are gone.
func (s *Store) Prune(recorded ...protocol.Mark) error {
	if len(recorded) == 0 {
		return nil
	}
	return s.PruneBelow(slices.MinFunc(recorded, compare), recorded...)
}

// PruneBelow removes steps older than line that are not in the gang's record; nothing if the record is empty.
func (s *Store) PruneBelow(line protocol.Mark, recorded ...protocol.Mark) error {
	if len(recorded) == 0 {
		return nil
	}
	var manifests, others, indices []string
	dirs := map[string]int64{}
	err := s.walk(func(dir, name string, kind format.FileKind, m protocol.Mark) error {
		if m.Generation < line.Generation {
			dirs[dir] = m.Generation
		}
		switch {
		case compare(m, line) >= 0 || named(recorded, m):
		case kind == format.FileManifest:
			manifests = append(manifests, path.Join(dir, name))
		case kind == format.FileIndex:
			indices = append(indices, path.Join(dir, name))
			manifests = append(manifests, path.Join(dir, name, format.IndexMetadata))
		default:
			others = append(others, path.Join(dir, name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	synced := map[string]bool{}
	for _, name := range manifests {
		if err := s.remove(name); err != nil {
			return err
		}
		synced[path.Dir(name)] = true
	}
	for dir := range synced { // before the files that the manifests list
		if err := s.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range indices {
		if err := s.removeIndex(dir); err != nil {
			return err
		}
	}
	for _, name := range others {
		if err := s.remove(name); err != nil {
			return err
		}
	}
	for dir := range dirs {
		_ = s.fs.Remove(dir) // succeeds only if it is empty
	}
	return nil
}

// named reports whether a file belongs to one of these marks, by step and generation: names in storage have no more.
func named(marks []protocol.Mark, m protocol.Mark) bool {
	return slices.ContainsFunc(marks, func(o protocol.Mark) bool { return o.Step == m.Step && o.Generation == m.Generation })
}

func (s *Store) remove(name string) error {
	if err := s.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return nil
}
