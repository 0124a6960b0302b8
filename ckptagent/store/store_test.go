//go:build linux

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

const jobFolder = "/claim/llama-uid"

// content returns the state of a rank after a step. Each state has another length.
func content(m protocol.Mark, rank uint32) []byte {
	rnd := rand.New(rand.NewPCG(uint64(m.Step), uint64(m.Generation)<<32|uint64(rank)))
	b := make([]byte, 100+rnd.IntN(100))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

func fileOf(m protocol.Mark, rank uint32) format.RankFile {
	data := content(m, rank)
	return format.RankFile{
		Rank:       rank,
		WorldSize:  2,
		Step:       m.Step,
		Generation: m.Generation,
		Length:     uint64(len(data)),
		Checksum:   format.Checksum(data),
	}
}

func put(s *Store, m protocol.Mark, rank uint32) error {
	return s.Put(context.Background(), fileOf(m, rank), bytes.NewReader(content(m, rank)))
}

func manifestOf(m protocol.Mark) format.Manifest {
	out := format.Manifest{Step: m.Step, Generation: m.Generation}
	for rank := range uint32(2) {
		f := fileOf(m, rank)
		out.Ranks = append(out.Ranks, format.ManifestRank{Length: f.Length, Checksum: f.Checksum})
	}
	return out
}

// get reads a rank's part and checks that it equals what was stored.
func get(s *Store, m protocol.Mark, rank uint32) error {
	var b bytes.Buffer
	_, err := s.Get(context.Background(), m, rank, func(format.RankFile) (io.Writer, error) { return &b, nil })
	if err == nil && !bytes.Equal(b.Bytes(), content(m, rank)) {
		err = errors.New("it is not what was put")
	}
	return err
}

// newStore returns a store in which the index of each step is text.
func newStore(under FS, dir, writer string) *Store {
	s := New(under, dir, writer)
	s.IndexBy(textOf, func(protocol.Mark, error) {})
	return s
}

func textOf(m format.Manifest, files string) (io.ReadCloser, error) {
	values := fmt.Sprintf("values of step %d", m.Step)
	return io.NopCloser(strings.NewReader(fmt.Sprintf("%d\n%s%s: %v", len(values), values, files, m.Ranks))), nil
}

// indexed reports whether stock torch can read a step as it was stored. Unless must is set, the index may also be absent.
func indexed(s *Store, m protocol.Mark, must bool) error {
	dir := path.Join(s.folder(m.Generation), format.IndexFolder(m.Step))
	got, err := readAll(s, path.Join(dir, format.IndexMetadata))
	if errors.Is(err, fs.ErrNotExist) && !must {
		return nil
	}
	values, more := readAll(s, path.Join(dir, format.IndexValues))
	in, _ := textOf(manifestOf(m), fmt.Sprintf("%s/step-%d.rank-", s.folder(m.Generation), m.Step))
	want, _ := io.ReadAll(in)
	if err := errors.Join(err, more, get(s, m, 0), get(s, m, 1)); err != nil {
		return fmt.Errorf("what stock torch finds of step %v: %w", m, err)
	}
	if text := fmt.Sprintf("%d\n%s%s", len(values), values, got); text != string(want) {
		return fmt.Errorf("what stock torch finds of step %v is not what was put: %s", m, text)
	}
	return nil
}

func readAll(s *Store, name string) ([]byte, error) {
	in, err := s.fs.Open(name, 0)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(in)
}

// acknowledged has the operations of a job in storage that returned nil. A history stops at its first error.
type acknowledged struct {
	files     map[protocol.Mark][2]bool
	manifests []protocol.Mark
}

var marks = []protocol.Mark{
	{Step: 10, Generation: 1},
	{Step: 20, Generation: 1},
	{Step: 30, Generation: 1},
	{Step: 25, Generation: 2},
	{Step: 35, Generation: 2},
	{Step: 45, Generation: 2},
	{Step: 45, Generation: 4},
}

func history(s *Store) (ack acknowledged, err error) {
	ack.files = map[protocol.Mark][2]bool{}
	for _, m := range marks {
		for rank := range uint32(2) {
			if err := put(s, m, rank); err != nil {
				return ack, err
			}
			done := ack.files[m]
			done[rank] = true
			ack.files[m] = done
		}
		if m == (protocol.Mark{Step: 30, Generation: 1}) {
			continue // the manifest of this step is never written, because generation 1 ended
		}
		if err := s.PutManifest(manifestOf(m)); err != nil {
			return ack, err
		}
		recorded := ack.manifests[max(0, len(ack.manifests)-2):] // the newest manifest is not recorded yet
		ack.manifests = append(ack.manifests, m)
		if err := s.Prune(recorded...); err != nil {
			return ack, err
		}
	}
	return ack, nil
}

// check checks the rules of the storage format after a crash.
func check(s *Store, ack acknowledged) error {
	complete, err := s.Complete()
	if err != nil {
		return err
	}
	for _, m := range complete {
		for rank := range uint32(2) {
			if err := get(s, m, rank); err != nil {
				return fmt.Errorf("step %v has a manifest, and the file of rank %d: %w", m, rank, err)
			}
		}
	}
	for i, m := range slices.Backward(ack.manifests) {
		if i < len(ack.manifests)-2 {
			break
		}
		if !slices.Contains(complete, m) {
			return fmt.Errorf("step %v was acknowledged and is not complete; %v are", m, complete)
		}
		if err := indexed(s, m, true); err != nil {
			return err
		}
	}
	err = s.walk(func(_, _ string, kind format.FileKind, m protocol.Mark) error {
		if kind == format.FileIndex {
			return indexed(s, m, false)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var last protocol.Mark
	if n := len(ack.manifests); n > 0 {
		last = ack.manifests[n-1]
	}
	for m, ranks := range ack.files {
		for rank, done := range ranks {
			if err := get(s, m, uint32(rank)); done && compare(m, last) > 0 && err != nil {
				return fmt.Errorf("the file of rank %d of step %v was acknowledged: %w", rank, m, err)
			}
		}
	}
	return nil
}

func TestPruneRemovesWhatIsOlderThanTheRecord(t *testing.T) {
	m := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	m.now["/claim/other-job"] = &node{dir: true}
	s := newStore(m, jobFolder, "a")
	if err := s.Probe(); err != nil {
		t.Fatal(err)
	}
	foreign := []string{"/claim/other-job/step-1.rank-0", jobFolder + "/readme", jobFolder + "/gen-01", jobFolder + "/gen-1/notes", jobFolder + "/gen-1/step-01.rank-0"}
	if err := m.MkdirAll(jobFolder + "/gen-1"); err != nil {
		t.Fatal(err)
	}
	for _, f := range foreign {
		if _, err := m.Create(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/gen-1/step-8.dcp", "/gen-1/step-10.dcp", "/gen-1/step-20.dcp"} {
		if err := m.MkdirAll(jobFolder + dir); err != nil {
			t.Fatal(err)
		}
	}
	foreign = append(foreign, jobFolder+"/gen-1/step-10.dcp", jobFolder+"/gen-1/step-10.dcp/mine")
	// left by a pod that is gone
	for _, f := range []string{"step-9.rank-0.x-1.part", "step-20.dcp/values.x-2.part", "step-20.dcp/.metadata.x-3.part", "step-10.dcp/mine"} {
		if _, err := m.Create(jobFolder + "/gen-1/" + f); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := history(s); err != nil {
		t.Fatal(err)
	}
	complete, err := s.Complete()
	if want := []protocol.Mark{{Step: 35, Generation: 2}, {Step: 45, Generation: 2}, {Step: 45, Generation: 4}}; err != nil ||
		!slices.Equal(complete, want) {
		t.Errorf("complete are %v, %v; want %v", complete, err, want)
	}
	for _, f := range foreign {
		if m.now[f] == nil {
			t.Errorf("%s is not ours and is gone", f)
		}
	}
	for p := range m.now {
		if strings.Contains(p, "/gen-1/") && !slices.Contains(foreign, p) {
			t.Errorf("%s is left", p)
		}
	}
}

// TestPruneKeepsWhatIsRecorded: manifests that no record lists, because their generations ended too early, are newer than the recorded
// steps. No writer removes recorded steps because of them.
func TestPruneKeepsWhatIsRecorded(t *testing.T) {
	s := newStore(newMemFS(rand.New(rand.NewPCG(0, 0)), 0), jobFolder, "a")
	for _, m := range []protocol.Mark{
		{Step: 10, Generation: 1},
		{Step: 20, Generation: 1},
		{Step: 25, Generation: 2},
		{Step: 27, Generation: 3},
		{Step: 29, Generation: 4},
	} {
		for rank := range uint32(2) {
			if err := put(s, m, rank); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.PutManifest(manifestOf(m)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ recorded, want []protocol.Mark }{
		{nil, []protocol.Mark{{Step: 10, Generation: 1}, {Step: 20, Generation: 1}, {Step: 25, Generation: 2}, {Step: 27, Generation: 3}, {Step: 29, Generation: 4}}},
		{[]protocol.Mark{{Step: 20, Generation: 1}, {Step: 10, Generation: 1}}, []protocol.Mark{{Step: 10, Generation: 1}, {Step: 20, Generation: 1}, {Step: 25, Generation: 2}, {Step: 27, Generation: 3}, {Step: 29, Generation: 4}}},
		{[]protocol.Mark{{Step: 29, Generation: 4}, {Step: 20, Generation: 1}}, []protocol.Mark{{Step: 20, Generation: 1}, {Step: 25, Generation: 2}, {Step: 27, Generation: 3}, {Step: 29, Generation: 4}}},
	} {
		if err := s.Prune(tt.recorded...); err != nil {
			t.Fatal(err)
		}
		if complete, _ := s.Complete(); !slices.Equal(complete, tt.want) {
			t.Errorf("the record names %v: complete are %v, want %v", tt.recorded, complete, tt.want)
		}
	}
}

// TestPinsOutliveEveryRemoval: an agent dies at each operation of a removal that spares two steps below its line, and so does the next
// agent. The two steps stay complete, and all other older steps are removed at last.
func TestPinsOutliveEveryRemoval(t *testing.T) {
	pins := []protocol.Mark{{Step: 10, Generation: 1}, {Step: 25, Generation: 2}}
	line := protocol.Mark{Step: 45, Generation: 2}
	kept := append(slices.Clone(pins), line, protocol.Mark{Step: 45, Generation: 4})
	fill := func(m *memFS) *Store {
		s := newStore(m, jobFolder, "a")
		for _, of := range marks {
			if err := errors.Join(put(s, of, 0), put(s, of, 1), s.PutManifest(manifestOf(of))); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	whole := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	s, before := fill(whole), whole.ops
	if err := s.PruneBelow(line, kept...); err != nil {
		t.Fatal(err)
	}
	for _, power := range []bool{false, true} {
		for crash := 1; before+crash <= whole.ops; crash++ {
			m := newMemFS(rand.New(rand.NewPCG(uint64(crash), 0)), 0)
			s := fill(m)
			m.crash = m.ops + crash
			if err := s.PruneBelow(line, kept...); err == nil && crash < whole.ops-before { // an empty folder may stay
				t.Fatalf("no crash at %d of %d", crash, whole.ops-before)
			}
			s = newStore(m.reboot(power), jobFolder, "b")
			for _, again := range []bool{false, true} {
				complete, err := s.Complete()
				for _, pin := range pins {
					if err := errors.Join(err, get(s, pin, 0), get(s, pin, 1), indexed(s, pin, true)); err != nil || !slices.Contains(complete, pin) {
						t.Fatalf("power lost %v, crash at %d, removed again %v: step %v: %v, complete are %v", power, crash, again, pin, err, complete)
					}
				}
				for _, m := range marks {
					if err := indexed(s, m, false); err != nil {
						t.Fatalf("power lost %v, crash at %d: %v", power, crash, err)
					}
				}
				if again && !slices.Equal(complete, kept) {
					t.Fatalf("power lost %v, crash at %d: complete are %v, want %v", power, crash, complete, kept)
				}
				if err := s.PruneBelow(line, kept...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.PruneBelow(line); err != nil {
		t.Fatal(err)
	}
	if complete, _ := s.Complete(); len(complete) != len(kept) {
		t.Errorf("nothing is recorded, and %v are left", complete)
	}
}

func TestWhatIsNotWholeIsOfNoUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "llama-uid")
	s := newStore(OS{}, dir, "a")
	if err := s.Probe(); err != nil {
		t.Fatal(err)
	}
	m := protocol.Mark{Step: 7, Generation: 3}
	if err := s.PutManifest(manifestOf(m)); !errors.Is(err, ErrUseless) {
		t.Errorf("a manifest of files that are not there: %v", err)
	}
	for rank := range uint32(2) {
		if err := errors.Join(put(s, m, rank), get(s, m, rank)); err != nil {
			t.Fatal(err)
		}
	}
	other := manifestOf(m)
	other.Ranks[1].Checksum++
	if err := s.PutManifest(other); !errors.Is(err, ErrUseless) {
		t.Errorf("a manifest of another state: %v", err)
	}
	bad := fileOf(protocol.Mark{Step: 8, Generation: 3}, 0)
	if err := s.Put(context.Background(), bad, bytes.NewReader(content(m, 0))); !errors.Is(err, ErrChanged) {
		t.Errorf("a slot that changed: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Put(ctx, fileOf(protocol.Mark{
		Step:       9,
		Generation: 3,
	}, 0), bytes.NewReader(content(protocol.Mark{Step: 9, Generation: 3}, 0))); !errors.Is(
		err,
		context.Canceled,
	) {
		t.Errorf("a copy that nobody wants: %v", err)
	}
	names, err := os.ReadDir(filepath.Join(dir, "gen-3"))
	if err != nil || len(names) != 2 {
		t.Errorf("left in the folder: %v, %v", names, err)
	}
	name := filepath.Join(dir, "gen-3", "step-7.rank-0")
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func([]byte) []byte{
		"a byte of the data":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"a byte of the header": func(b []byte) []byte { b[20] ^= 1; return b },
		"cut":                  func(b []byte) []byte { return b[:len(b)-1] },
		"longer":               func(b []byte) []byte { return append(b, 0) },
		"empty":                func([]byte) []byte { return nil },
		"of another rank":      func(b []byte) []byte { return append(fileOf(m, 1).Encode(), content(m, 1)...) },
		"of another version": func(b []byte) []byte {
			b[8]++
			return b
		},
	} {
		if err := os.WriteFile(name, change(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := get(s, m, 0); !errors.Is(err, ErrUseless) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := get(s, protocol.Mark{Step: 6, Generation: 3}, 0); !errors.Is(err, ErrUseless) {
		t.Errorf("a step that is not there: %v", err)
	}
	if _, err := s.Manifest(m); err == nil {
		t.Error("there is a manifest")
	}
}

// TestWritesOnce: a file that exists is not written again, whichever process wrote it.
func TestWritesOnce(t *testing.T) {
	m := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	if err := put(newStore(m, jobFolder, "a"), protocol.Mark{Step: 1, Generation: 1}, 0); err != nil {
		t.Fatal(err)
	}
	before := m.ops
	if err := put(newStore(m, jobFolder, "b"), protocol.Mark{Step: 1, Generation: 1}, 0); err != nil {
		t.Fatal(err)
	}
	if done := m.trace[before:]; len(done) != 1 || done[0] != "syncdir "+jobFolder+"/gen-1" {
		t.Errorf("did %q", done)
	}
}
