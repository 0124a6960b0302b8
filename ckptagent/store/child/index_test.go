//go:build linux

package child

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

// stateOf is a rank's data with no tensors.
func stateOf(tree string) []byte {
	const layout = `{"v":1,"tensors":[]}`
	b := append([]byte("HFSTATE1"), make([]byte, 56)...)
	for i, n := range []int{64, len(layout), 64 + len(layout), len(tree), 64 + len(layout) + len(tree), 0} {
		binary.LittleEndian.PutUint64(b[8+8*i:], uint64(n))
	}
	return append(append(b, layout...), tree...)
}

// stored puts a step of one rank into a job's folder.
func stored(t *testing.T, data []byte) (dir string, m format.Manifest) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "job")
	f := format.RankFile{WorldSize: 1, Step: 2, Generation: 1, Length: uint64(len(data)), Checksum: format.Checksum(data)}
	if err := store.New(store.OS{}, dir, "w").Put(context.Background(), f, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	return dir, format.Manifest{Step: 2, Generation: 1, Ranks: []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}}}
}

func indexProcess() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asChild+"=index")
	return cmd
}

// TestIndexByAProcess: the folder is there, or the reason why not comes back.
func TestIndexByAProcess(t *testing.T) {
	dir, m := stored(t, stateOf(`{"a":1}`))
	if err := Index(indexProcess, dir, "w", m); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".metadata", "values"} {
		if b, err := os.ReadFile(filepath.Join(dir, "gen-1", "step-2.dcp", name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	dir, m = stored(t, stateOf(`{"a":`))
	if err := Index(indexProcess, dir, "w", m); err == nil || !strings.Contains(err.Error(), "rank 0: it cannot be named: its tree is no JSON") {
		t.Errorf("a torn tree: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "gen-1", "step-2.dcp")); !os.IsNotExist(err) {
		t.Errorf("a folder for it: %v", err)
	}
}

// TestAnIndexEndsAlone: whatever becomes of the process is an error and nothing else, and the kernel ends it before anything else of the pod.
func TestAnIndexEndsAlone(t *testing.T) {
	for script, want := range map[string]string{
		"kill -9 $$": "or was killed: signal: killed",
		"exit 2":     "exit status 2",
		"until grep -q 1000 /proc/$$/oom_score_adj; do sleep 0.01; done; nice": "19",
		"yes | head -c 100000": "y\ny",
	} {
		err := Index(func() *exec.Cmd { return exec.Command("sh", "-c", script) }, "/nowhere", "w", format.Manifest{Step: 1, Generation: 1, Ranks: []format.ManifestRank{{}}})
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > maxSaid {
			t.Errorf("%s: %.200v, want %s", script, err, want)
		}
	}
}
