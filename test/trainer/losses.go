package trainer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// At is a step of a rank.
type At struct{ Step, Rank int64 }

// Losses parses Torch's log, lines "<generation> <rank> done <step> <loss>": the bits of each loss, and the newest generation in which each
// rank has finished a step. A repeated step must have the same loss.
func Losses(log string) (losses map[At]string, newest map[int64]int64, err error) {
	losses, newest = map[At]string{}, map[int64]int64{}
	for line := range strings.Lines(log) {
		words := strings.Fields(line)
		if len(words) != 5 || words[2] != "done" || !strings.HasSuffix(line, "\n") {
			continue
		}
		var generation int64
		var at At
		if n, _ := fmt.Sscan(words[0]+" "+words[1]+" "+words[3], &generation, &at.Rank, &at.Step); n < 3 {
			continue // a kill may cut a line, and the next rank continues there
		}
		bits := words[4]
		if before, ok := losses[at]; ok && before != bits {
			return nil, nil, fmt.Errorf("step %d of rank %d was computed again with loss %s, before %s", at.Step, at.Rank, bits, before)
		}
		losses[at] = bits
		newest[at.Rank] = max(newest[at.Rank], generation)
	}
	if len(losses) == 0 {
		err = fmt.Errorf("the log has no losses")
	}
	return losses, newest, err
}

// Compare returns an error unless each loss of a run equals, bit for bit, that of an undisturbed one.
func Compare(disturbed, undisturbed map[At]string) error {
	for at, loss := range disturbed {
		if undisturbed[at] != loss {
			return fmt.Errorf("step %d of rank %d: loss %s, undisturbed %q", at.Step, at.Rank, loss, undisturbed[at])
		}
	}
	return nil
}

// Undisturbed runs Torch under plain torchrun on this machine, without Holdfast, and returns the losses up to a step.
func Undisturbed(ctx context.Context, python string, ranks int, last int64) (map[At]string, error) {
	dir, err := os.MkdirTemp("", "undisturbed")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	script, log := filepath.Join(dir, "trainer.py"), filepath.Join(dir, "log")
	if err := os.WriteFile(script, []byte(Torch), 0o644); err != nil {
		return nil, err
	}
	args := []string{"-m", "torch.distributed.run", "--standalone", fmt.Sprintf("--nproc-per-node=%d", ranks), script, log, fmt.Sprint(last)}
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=", "PYTHONDONTWRITEBYTECODE=1", "HOLDFAST_GENERATION=")
	// torchrun ends its ranks on SIGTERM; killed, it would leave them behind
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 45 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the undisturbed run: %w\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	losses, _, err := Losses(string(text))
	return losses, err
}
