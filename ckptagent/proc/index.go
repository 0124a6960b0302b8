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

// What a state says decides how much is to be kept and done for its index: the process may take no more than this.
const (
	indexProcessor = 60 // seconds
	indexMemory    = 512 << 20
	// indexNice gives way to training, and ends all the same where training has every core.
	indexNice = 10
)

// Index is the command that names to stock torch what lies in the files of so many ranks, called so up to the rank: the client, by the
// interpreter of the ranks and as their user, with nothing but the standard library.
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
