//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/store"
)

func TestCkptAnswersAboutItsJobAlone(t *testing.T) {
	claim, state := t.TempDir(), []byte("a state")
	for _, folder := range []string{"train-uid", "other-uid"} {
		f := format.RankFile{WorldSize: 1, Step: 5, Generation: 1, Length: uint64(len(state)), Checksum: format.Checksum(state)}
		s := store.New(store.OS{}, filepath.Join(claim, folder), "w")
		if err := s.Put(t.Context(), f, bytes.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		if err := s.PutManifest(format.Manifest{
			Step:       5,
			Generation: 1,
			Ranks:      []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{proc.EnvStorage: claim, proc.EnvGang: "train", proc.EnvJobUID: "uid"}
	ask := func(in io.Reader, args ...string) (inspect.Storage, error) {
		var out bytes.Buffer
		if err := ckpt(args, func(name string) string { return env[name] }, in, &out); err != nil {
			return inspect.Storage{}, err
		}
		var got inspect.Storage
		dec := json.NewDecoder(&out)
		dec.DisallowUnknownFields()
		return got, dec.Decode(&got)
	}
	open, hold := io.Pipe() // an input that does not end
	defer hold.Close()
	for _, args := range [][]string{{"ls"}, {"verify"}, {"verify", "5"}} {
		got, err := ask(open, args...)
		if err != nil || got.Verified != (args[0] == "verify") || len(got.Folders) != 1 || got.Folders[0].Name != "train-uid" ||
			!got.Folders[0].Steps[0].Complete() {
			t.Errorf("%v: %+v, %v", args, got, err)
		}
	}
	if got, err := ask(open, "verify", "6"); err != nil || len(got.Folders) != 1 || got.Folders[0].Steps != nil {
		t.Errorf("a step that is not there: %+v, %v", got, err)
	}
	for want, args := range map[string][]string{"ckpt verify STEP": {"rm"}, `"x" is not a step`: {"verify", "x"}, `"0" is not a step`: {"verify", "0"}} {
		if _, err := ask(open, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	env[proc.EnvStorage] = ""
	if _, err := ask(open, "ls"); err == nil || !strings.Contains(err.Error(), "holdfast.dev/storage-claim") {
		t.Errorf("without storage: %v", err)
	}
}

// TestVerifyEndsWithItsInput: when the caller has ended, verify stops in the middle of a file that would take hours.
func TestVerifyEndsWithItsInput(t *testing.T) {
	claim := t.TempDir()
	dir := filepath.Join(claim, "train-uid", format.GenerationFolder(1))
	name := filepath.Join(dir, format.RankFileName(5, 0))
	const length = 1 << 42
	header := format.RankFile{WorldSize: 1, Step: 5, Generation: 1, Length: length}.Encode()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, header, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, format.RankFileData+length); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{proc.EnvStorage: claim, proc.EnvGang: "train", proc.EnvJobUID: "uid"}
	var out bytes.Buffer
	if err := ckpt([]string{"verify"}, func(name string) string { return env[name] }, strings.NewReader(""), &out); err == nil || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}
