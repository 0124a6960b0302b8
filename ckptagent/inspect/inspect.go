// Package inspect lists the steps in a job's storage: their sizes, and which files are incomplete and why.
// docs/formats/storage.md specifies the files. Look changes nothing, reads nothing outside the given folder and follows
// no symbolic link. Look reads at most fixed numbers of files and names, and its result says what was left out.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Bounds of one inspection.
const (
	// maxEntries is the most names that are read, and the most files that are checked.
	maxEntries = 200_000
	// maxFolders is the most folders of a claim that are checked for being a job's.
	maxFolders = 1_000
	// maxSteps is the most steps of a job in a result, the newest ones.
	maxSteps = 1_000
	// maxRuns is the most runs of files of a step in a result, maxAllRuns of all steps.
	maxRuns    = 1_000
	maxAllRuns = 10_000
	maxNotes   = 32
)

// Options select what is inspected.
type Options struct {
	// Deep reads every byte of every rank file; otherwise only headers and lengths.
	Deep bool
	// Step is the only step to inspect; 0: all.
	Step int64
	// Folder selects one job's folder of a claim; empty: all.
	Folder string
}

// Look inspects a job's folder, or a claim with such folders.
func Look(ctx context.Context, dir string, o Options) (Storage, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Storage{}, err
	}
	defer root.Close()
	l := &look{ctx: ctx, options: o, entries: maxEntries, files: maxEntries, runs: maxAllRuns}
	out := Storage{Version: Version, Verified: o.Deep}
	names, err := l.list(root)
	if err != nil {
		return Storage{}, err
	}
	if slices.ContainsFunc(names, isGeneration) {
		full, err := filepath.Abs(dir)
		if err != nil {
			return Storage{}, err
		}
		out.Folders = append(out.Folders, l.folder(root, filepath.Base(full), names))
	} else {
		out.Folders = l.claim(root, names)
	}
	out.Notes = l.notes
	return out, ctx.Err()
}

// look is one inspection.
type look struct {
	ctx     context.Context
	options Options
	// entries, files and runs are what remains of the bounds.
	entries, files, runs int
	notes                []string
}

func (l *look) notef(format string, args ...any) {
	if len(l.notes) < maxNotes {
		l.notes = append(l.notes, fmt.Sprintf(format, args...))
	}
}

func isGeneration(name string) bool {
	_, ok := format.ParseGenerationFolder(name)
	return ok
}

// list returns the sorted names in a folder, within the bound.
func (l *look) list(dir *os.Root) ([]string, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var names []string
	for l.ctx.Err() == nil {
		if l.entries == 0 {
			l.notef("%s: more names than are looked at (%d in all)", dir.Name(), maxEntries)
			break
		}
		some, err := d.Readdirnames(min(l.entries, 1024))
		names, l.entries = append(names, some...), l.entries-len(some)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return names, err
		}
	}
	slices.Sort(names)
	return names, l.ctx.Err()
}

// enter opens a folder; nil: it is a link or no folder.
func (l *look) enter(dir *os.Root, name string) *os.Root {
	info, err := dir.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		l.notef("%s: %v", name, err)
		return nil
	}
	return sub
}

// claim inspects the jobs' folders of a claim.
func (l *look) claim(root *os.Root, names []string) (out []Folder) {
	looked := 0
	for _, name := range names {
		if l.options.Folder != "" && name != l.options.Folder {
			continue
		}
		if looked++; looked > maxFolders {
			l.notef("more than %d folders: the others were not looked at; name one", maxFolders)
			break
		}
		sub := l.enter(root, name)
		if sub == nil {
			continue
		}
		inside, err := l.list(sub)
		if err != nil {
			l.notef("%s: %v", name, err)
		}
		if slices.ContainsFunc(inside, isGeneration) || name == l.options.Folder {
			out = append(out, l.folder(sub, name, inside))
		}
		sub.Close()
	}
	return out
}

// found are the files of one step in a generation's folder.
type found struct {
	step, generation int64
	ranks            []uint32
	manifest         bool
	parts            int
}

// folder inspects a job's folder.
func (l *look) folder(root *os.Root, name string, names []string) Folder {
	out := Folder{Name: name}
	var steps []*found
	var generations []int64
	for _, name := range names {
		if generation, ok := format.ParseGenerationFolder(name); ok {
			generations = append(generations, generation)
		} else if name != format.HangsFolder {
			out.Foreign++
		}
	}
	slices.Sort(generations)
	for _, generation := range slices.Backward(generations) { // newest first, in case a bound is reached
		name := format.GenerationFolder(generation)
		dir := l.enter(root, name)
		if dir == nil {
			l.notef("%s: is no folder that can be read", name)
			continue
		}
		inside, err := l.list(dir)
		if err != nil {
			l.notef("%s: %v", name, err)
		}
		dir.Close()
		more, foreign := group(generation, inside)
		steps, out.Foreign = append(steps, more...), out.Foreign+foreign
	}
	steps = slices.DeleteFunc(steps, func(s *found) bool { return l.options.Step > 0 && s.step != l.options.Step })
	slices.SortFunc(steps, func(a, b *found) int {
		return cmp.Or(cmp.Compare(b.generation, a.generation), cmp.Compare(b.step, a.step))
	})
	if len(steps) > maxSteps {
		l.notef("%d older steps were not looked at", len(steps)-maxSteps)
		steps = steps[:maxSteps]
	}
	for _, s := range steps {
		if l.ctx.Err() != nil {
			break
		}
		dir := l.enter(root, format.GenerationFolder(s.generation))
		if dir == nil {
			continue // removed meanwhile
		}
		out.Steps = append(out.Steps, l.step(dir, s))
		dir.Close()
	}
	return out
}

// group groups the names of a generation's folder by step.
func group(generation int64, names []string) (steps []*found, foreign int) {
	by := map[int64]*found{}
	for _, name := range names {
		kind, step := format.ParseFileName(name)
		if kind == format.FileUnknown {
			foreign++
			continue
		}
		if kind == format.FileIndex {
			continue // an index repeats the content of the step's files
		}
		s := by[step]
		if s == nil {
			s = &found{step: step, generation: generation}
			by[step], steps = s, append(steps, s)
		}
		switch kind {
		case format.FileManifest:
			s.manifest = true
		case format.FilePart:
			s.parts++
		case format.FileRank:
			s.ranks = append(s.ranks, rankOf(name))
		}
	}
	return steps, foreign
}

// step inspects the files of one step.
func (l *look) step(dir *os.Root, s *found) Step {
	out := Step{Step: s.step, Generation: s.generation, Unfinished: s.parts, Manifest: Missing}
	slices.Sort(s.ranks)
	var want []format.ManifestRank
	var m format.Manifest
	if s.manifest {
		m, out.Manifest, out.ManifestWhy = l.manifest(dir, s)
		want = m.Ranks
	}
	ranks := s.ranks
	if out.Manifest == OK { // all ranks that the manifest lists, present or not
		ranks, out.Ranks, out.Branch = nil, len(want), m.Branch
		for rank := range want {
			ranks = append(ranks, uint32(rank))
		}
		for _, rank := range s.ranks {
			if int(rank) >= len(want) {
				ranks = append(ranks, rank)
			}
		}
	}
	for _, rank := range ranks {
		if l.ctx.Err() != nil {
			return out
		}
		if l.files == 0 {
			out.Unlooked++
			continue
		}
		l.files--
		f := l.rank(dir, s, rank, want, &out)
		if f.Status == Missing && out.Manifest != OK {
			continue // the file was removed after its name was read
		}
		l.add(&out, f)
	}
	if out.Unlooked > 0 {
		l.notef("step %d of generation %d: %d files; %d in all are looked at", s.step, s.generation, out.Unlooked, maxEntries)
	}
	if s.manifest && !out.Complete() {
		_, err := dir.Lstat(format.ManifestName(s.step))
		out.Removed = errors.Is(err, fs.ErrNotExist) // a manifest is removed first
	}
	return out
}

// add adds a file's status to the result.
func (l *look) add(out *Step, f Run) {
	out.Bytes += f.Bytes
	if f.Status == OK {
		out.Good++
	} else {
		out.Bad++
	}
	if n := len(out.Files); n > 0 && out.Files[n-1].joins(f) {
		out.Files[n-1].Ranks++
		out.Files[n-1].Bytes += f.Bytes
		return
	}
	if len(out.Files) >= maxRuns || l.runs == 0 {
		out.Untold++
		return
	}
	l.runs--
	out.Files = append(out.Files, f)
}

// manifest reads the manifest of a step.
func (l *look) manifest(dir *os.Root, s *found) (format.Manifest, Status, string) {
	in, info, status, why := open(dir, format.ManifestName(s.step))
	if in == nil {
		return format.Manifest{}, status, why
	}
	defer in.Close()
	if info.Size() > format.MaxManifest {
		return format.Manifest{}, Torn, fmt.Sprintf("%d bytes, more than any manifest has", info.Size())
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(in, b); err != nil {
		return format.Manifest{}, Unreadable, reason(err)
	}
	if n := bytes.Count(b, []byte("{")); n > maxEntries {
		return format.Manifest{}, Torn, fmt.Sprintf("it names more than %d ranks", maxEntries)
	}
	m, err := format.DecodeManifest(b)
	switch {
	case errors.Is(err, format.ErrVersion):
		return m, OtherVersion, err.Error()
	case err != nil:
		return m, Torn, err.Error()
	case m.Step != s.step || m.Generation != s.generation:
		return m, Mismatch, fmt.Sprintf("it is of step %d, generation %d", m.Step, m.Generation)
	}
	return m, OK, ""
}

// rank inspects one rank's file; the first complete header sets the step's number of ranks and branch.
func (l *look) rank(dir *os.Root, s *found, rank uint32, want []format.ManifestRank, of *Step) Run {
	out := Run{Rank: rank, Ranks: 1}
	in, info, status, why := open(dir, format.RankFileName(s.step, rank))
	if in == nil {
		out.Status, out.Why = status, why
		return out
	}
	defer in.Close()
	out.Bytes = info.Size()
	var f format.RankFile
	if f, out.Status, out.Why = header(in, info); out.Status != OK {
		return out
	}
	if of.Ranks == 0 {
		of.Ranks, of.Branch = int(f.WorldSize), f.Branch
	}
	switch has := uint64(info.Size()) - format.RankFileData; {
	case f.Step != s.step || f.Generation != s.generation || f.Rank != rank:
		out.Status, out.Why = Mismatch, fmt.Sprintf("its header says rank %d, step %d, generation %d", f.Rank, f.Step, f.Generation)
	case want != nil && f.Branch != of.Branch:
		out.Status, out.Why = Mismatch, fmt.Sprintf("its header says branch %d, the manifest %d", f.Branch, of.Branch)
	case want != nil && int(rank) >= len(want):
		out.Status, out.Why = Mismatch, fmt.Sprintf("the manifest names %d ranks", len(want))
	case want != nil && (f.Length != want[rank].Length || f.Checksum != want[rank].Checksum):
		out.Status = Mismatch
		out.Why = fmt.Sprintf("%d bytes with checksum %08x, the manifest says %d with %08x", f.Length, f.Checksum, want[rank].Length, want[rank].Checksum)
	case has != f.Length:
		out.Status, out.Why = Torn, fmt.Sprintf("%d bytes of data, its header says %d", has, f.Length)
	case l.options.Deep:
		out.Status, out.Why = l.read(in, f)
	}
	return out
}

// header reads a rank file's header.
func header(in io.Reader, info fs.FileInfo) (f format.RankFile, status Status, why string) {
	b := make([]byte, format.RankFileData)
	n, err := io.ReadFull(in, b)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return f, Torn, fmt.Sprintf("%d bytes, shorter than its header of %d", n, len(b))
	case err != nil:
		return f, Unreadable, reason(err)
	}
	f, err = format.DecodeRankFile(b)
	switch {
	case errors.Is(err, format.ErrVersion):
		return f, OtherVersion, err.Error()
	case err != nil:
		return f, Torn, err.Error()
	case info.Size() < format.RankFileData: // the file has grown since Stat
		return f, Unreadable, "it changed while it was read"
	}
	return f, OK, ""
}

// read reads all data of a rank's file.
func (l *look) read(in io.Reader, f format.RankFile) (Status, string) {
	sum, buf := format.NewChecksum(), make([]byte, 1<<20)
	for left := f.Length; left > 0; {
		if err := l.ctx.Err(); err != nil {
			return Unreadable, err.Error()
		}
		n, err := in.Read(buf[:min(left, uint64(len(buf)))])
		_, _ = sum.Write(buf[:n])
		if left -= uint64(n); left == 0 {
			break
		}
		switch {
		case errors.Is(err, io.EOF):
			return Torn, fmt.Sprintf("it ends %d bytes early", left)
		case err != nil:
			return Unreadable, reason(err)
		}
	}
	if sum.Sum32() != f.Checksum {
		return WrongChecksum, fmt.Sprintf("its data has %08x, its header says %08x", sum.Sum32(), f.Checksum)
	}
	return OK, ""
}
