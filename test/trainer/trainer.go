// Package trainer has the training scripts of the tests: one without torch, which detects a restored state that is torn
// or of another step, and one with torch, whose losses show whether a restore was exact.
package trainer

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"
)

// Script needs only the standard library and the client, and PyTorch if TRAINER_KEEPS requests it: trainer.py PAUSE STATE_BYTES [LOG].
//
//go:embed trainer.py
var Script string

// Torch needs PyTorch, and uses the client only if there is one: torch_trainer.py LOG [LAST [PAUSE]].
//
//go:embed torch_trainer.py
var Torch string

// Spawn is a script that needs PyTorch, starts its own processes and does not use Holdfast: spawn.py FOLDER PORT PAUSE.
//
//go:embed spawn.py
var Spawn string

// File writes a script to a temporary file, which is removed with the test.
func File(t testing.TB, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trainer.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
