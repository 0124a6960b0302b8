//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
)

// stored writes a step of two ranks into a job's folder, as agents do.
func stored(t *testing.T, dir string, step int64) {
	t.Helper()
	s, m := store.New(store.OS{}, dir, "w"), format.Manifest{Step: step, Generation: 1}
	for rank := range uint32(2) {
		b := bytes.Repeat([]byte{byte(rank)}, 5000)
		f := format.RankFile{Rank: rank, WorldSize: 2, Step: step, Generation: 1, Length: uint64(len(b)), Checksum: format.Checksum(b)}
		if err := s.Put(t.Context(), f, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		m.Ranks = append(m.Ranks, format.ManifestRank{Length: f.Length, Checksum: f.Checksum})
	}
	if err := s.PutManifest(m); err != nil {
		t.Fatal(err)
	}
}

// holdfast runs the plugin and returns what it printed and its exit code.
func holdfast(t *testing.T, args ...string) (out, said string, code int) {
	t.Helper()
	streams, _, stdout, stderr := genericclioptions.NewTestIOStreams()
	cmd := command(streams)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		code = report(stderr, err)
	}
	return stdout.String(), stderr.String(), code
}

func TestCkptOfAFolder(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // no cluster is queried
	t.Setenv("HOME", t.TempDir())
	claim := t.TempDir()
	dir := filepath.Join(claim, "train-u-1")
	stored(t, dir, 10)
	stored(t, dir, 20)
	for _, from := range []string{claim, dir} {
		if out, said, code := holdfast(t, "ckpt", "ls", "--dir", from); code != 0 || said != "" || !strings.Contains(out, "2 steps in storage") || !strings.Contains(out, "20    1           2/2") {
			t.Errorf("ls: code %d, %s\n%s", code, said, out)
		}
		if out, said, code := holdfast(t, "ckpt", "verify", "--dir", from); code != 0 || said != "" || !strings.Contains(out, "is intact") {
			t.Errorf("verify: code %d, %s\n%s", code, said, out)
		}
	}
	name := filepath.Join(dir, "gen-1", "step-20.rank-1")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, code := holdfast(t, "ckpt", "ls", "--dir", claim); code != 0 || strings.Contains(out, "damaged") {
		t.Errorf("ls, which reads headers: code %d\n%s", code, out)
	}
	out, said, code := holdfast(t, "ckpt", "verify", "--dir", claim, "-o", "json")
	var r ckpt.Report
	if err := errors.Join(json.Unmarshal([]byte(out), &r)); err != nil || code != 1 || said != "" || len(r.Wrong) != 1 ||
		r.Folders[0].Steps[0].State != ckpt.Damaged ||
		r.Folders[0].Steps[1].State != ckpt.Complete {
		t.Errorf("verify: code %d, %s, %v\n%s", code, said, err, out)
	}
	if out, _, code := holdfast(t, "ckpt", "verify", "--dir", claim, "--step", "10"); code != 0 || strings.Contains(out, "Step 20") {
		t.Errorf("verify of the other step: code %d\n%s", code, out)
	}
	if out, _, code := holdfast(t, "ckpt", "verify", "--dir", claim, "--step", "11"); code != 1 || !strings.Contains(out, "step 11 is not in storage") {
		t.Errorf("verify of no step: code %d\n%s", code, out)
	}
	for want, at := range map[string]string{"holds no folder of a job": t.TempDir(), "no such file": filepath.Join(claim, "none")} {
		if _, said, code := holdfast(t, "ckpt", "ls", "--dir", at); code != 1 || !strings.Contains(said, want) {
			t.Errorf("of %s: code %d, %s", at, code, said)
		}
	}
	q := question{dir: dir}
	if _, err := q.lookHere(t.Context(), "other-u-2"); err == nil || !strings.Contains(err.Error(), "that of the job is named other-u-2") {
		t.Errorf("of another job's folder: %v", err)
	}
	if s, err := q.lookHere(t.Context(), "train-u-1"); err != nil || len(s.Folders[0].Steps) != 2 {
		t.Errorf("of the job's folder: %+v, %v", s, err)
	}
}
