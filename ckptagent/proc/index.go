//go:build linux

package proc

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	client "holdfast.dev/holdfast/ckptagent/python"
)

// The content of a state decides how much work its index is; the index process is limited to this.
const (
	indexProcessor = 60 // seconds
	indexMemory    = 512 << 20
	// indexNice yields to training, but still makes progress if training uses every core.
	indexNice = 10
)

// Index returns the command that computes stock torch's index of the files of that many ranks; the rank is appended to the path files. It
// is the Python client, run by the ranks' interpreter and as their user, with only the standard library.
func (j Job) Index(files string, ranks int) (*exec.Cmd, error) {
	if j.Launch == nil {
		return nil, errors.New("no launcher has attached to this pod's agent yet, so the interpreter is unknown")
	}
	interpreter, err := j.Launch.python(j.Spec)
	if err != nil {
		return nil, err
	}
	limits := j.Launch.Limits
	limits.Resource = maps.Clone(limits.Resource)
	for what, most := range map[int]uint64{unix.RLIMIT_CPU: indexProcessor, unix.RLIMIT_DATA: indexMemory} {
		limits.Resource[what] = [2]uint64{most, most}
	}
	limits.Identity.Policy, limits.Identity.Priority, limits.Identity.Nice = 0, 0, max(limits.Identity.Nice, indexNice)
	raw, err := json.Marshal(limits)
	if err != nil {
		return nil, err
	}
	argv := slices.Concat([]string{"exec", string(raw), "--"}, interpreter, client.IndexArgs(j.Root.Python(), files, ranks))
	cmd := exec.Command(j.Root.Binary(), argv...)
	cmd.Dir, cmd.Env = j.Launch.Dir, j.Launch.environ(nil)
	return cmd, nil
}
