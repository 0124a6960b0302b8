//go:build linux

package inspect

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
)

// TestEveryDamagedByteOfAManifest changes one byte of a manifest. The manifest is then incomplete, or of another step, or does not match
// the files. Only a step whose manifest is as it was written is reported as complete.
func TestEveryDamagedByteOfAManifest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 3, 7, 0, 1, 2, 3)
	name := filepath.Join(dir, "gen-3", "step-7.manifest.json")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	was, err := format.DecodeManifest(whole)
	if err != nil {
		t.Fatal(err)
	}
	complete := 0
	for at := range whole {
		for _, x := range []byte{0x01, 0x20, 0xff} {
			damaged := bytes.Clone(whole)
			damaged[at] ^= x
			if err := os.WriteFile(name, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			if step := only(t, lookAt(t, dir, Options{})); !step.Complete() {
				continue
			}
			complete++
			if now, err := format.DecodeManifest(damaged); err != nil || !reflect.DeepEqual(now, was) {
				t.Fatalf("byte %d is changed by %02x: the step is complete, and its manifest %+v, %v", at, x, now, err)
			}
		}
	}
	t.Logf("%d changes of %d bytes say the same", complete, len(whole))
}
