// Package trainer has the training scripts of the tests: a small one without torch, whose state shows whether it is
// whole, and one with torch, whose losses show it.
package trainer

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"
)

// Script needs nothing but the standard library and the client, and PyTorch where TRAINER_KEEPS asks for it:
// trainer.py PAUSE STATE_BYTES [LOG].
//
//go:embed trainer.py
var Script string

// Torch needs PyTorch, and takes the client only where there is one: torch_trainer.py LOG [LAST [PAUSE]].
//
//go:embed torch_trainer.py
var Torch string

// Spawn needs PyTorch, starts its own processes and knows nothing of us: spawn.py FOLDER PORT PAUSE.
//
//go:embed spawn.py
var Spawn string

// File is a script as a file of its own, which ends with the test.
func File(t testing.TB, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trainer.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
