//go:build linux

package store

import (
	"bytes"
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// FuzzFolder puts a file of any name and content beside a complete step. The step stays complete. No other step counts unless the file is
// its manifest. A file without one of Holdfast's names survives Prune. Get of a rank's file returns all of it or an error.
func FuzzFolder(f *testing.F) {
	m := protocol.Mark{Step: 3, Generation: 2}
	f.Add("gen-2", "step-4.manifest.json", manifestOf(protocol.Mark{Step: 4, Generation: 2}).Encode())
	f.Add("gen-2", "step-4.manifest.json", manifestOf(m).Encode())
	f.Add("gen-1", "step-9223372036854775807.manifest.json", []byte(`{"version":1,"step":9223372036854775807,"generation":1,"ranks":[{}]}`))
	file := fileOf(protocol.Mark{Step: 1, Generation: 2}, 1)
	f.Add("gen-2", "step-1.rank-1", append(file.Encode(), content(protocol.Mark{Step: 1, Generation: 2}, 1)...))
	f.Add("gen-2", "notes.txt", []byte("mine"))
	f.Add("gen-02", ".step-1.rank-0.x.part", []byte{})
	f.Fuzz(func(t *testing.T, folder, name string, content []byte) {
		if folder == "" || name == "" || strings.ContainsAny(folder+name, "/\x00") || strings.Trim(folder, ".") == "" ||
			strings.Trim(name, ".") == "" ||
			len(folder) > 64 ||
			len(name) > 64 {
			return // not a valid file name
		}
		disk := newMemFS(nil, 0)
		s := newStore(disk, jobFolder, "w")
		for rank := range uint32(2) {
			if err := put(s, m, rank); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.PutManifest(manifestOf(m)); err != nil {
			t.Fatal(err)
		}
		at := path.Join(jobFolder, folder, name)
		if _, ours := disk.now[at]; ours {
			return
		}
		disk.now[path.Join(jobFolder, folder)] = &node{dir: true}
		disk.now[at] = &node{data: content}
		complete(t, s, m, folder, name, content)
		kind, step := format.ParseFileName(name)
		if generation, ok := format.ParseGenerationFolder(folder); ok && kind == format.FileRank {
			var out bytes.Buffer
			got, err := s.Get(
				context.Background(),
				protocol.Mark{Step: step, Generation: generation},
				1,
				func(format.RankFile) (io.Writer, error) { return &out, nil },
			)
			if err == nil && (uint64(out.Len()) != got.Length || got.Length > uint64(len(content)) || format.Checksum(out.Bytes()) != got.Checksum) {
				t.Fatalf("read as a rank's file: %+v, %d bytes of %d", got, out.Len(), len(content))
			}
		}
		if err := s.Prune(m); err != nil {
			t.Fatal(err)
		}
		_, ok := format.ParseGenerationFolder(folder)
		if _, there := disk.now[at]; !there && (!ok || kind == format.FileUnknown) {
			t.Fatalf("%s is not ours and was removed", at)
		}
		for rank := range uint32(2) {
			if err := get(s, m, rank); err != nil {
				t.Fatalf("the step that is recorded is lost: %v", err)
			}
		}
	})
}

func complete(t *testing.T, s *Store, m protocol.Mark, folder, name string, content []byte) {
	t.Helper()
	marks, err := s.Complete()
	if err != nil || !slices.Contains(marks, m) || len(marks) > 2 {
		t.Fatalf("complete are %v, %v", marks, err)
	}
	for _, other := range marks {
		have, err := format.DecodeManifest(content)
		if other != m &&
			(err != nil || have.Step != other.Step || have.Generation != other.Generation || name != format.ManifestName(other.Step) ||
				folder != format.GenerationFolder(other.Generation)) {
			t.Fatalf("%v counts as complete by %s/%s %q", other, folder, name, content)
		}
	}
}
