//go:build linux

package proc

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// TestIndexCommand: the ranks' interpreter runs the index program as the ranks' user, with bounds of its own, and loads no code of the
// user.
func TestIndexCommand(t *testing.T) {
	l := &Launch{Dir: "/app", Env: map[string]string{"PYTHONPATH": "/app/lib", "LD_LIBRARY_PATH": "/lib"}, Limits: inherited()}
	for nice, want := range map[int]int{0: indexNice, 15: 15} {
		l.Limits.Identity.Nice, l.Limits.Identity.Policy, l.Limits.Identity.Priority = nice, unix.SCHED_RR, 3
		cmd, err := Job{Root: "/run/holdfast", Launch: l, Spec: launch.Spec{Python: []string{"./venv/bin/python", "-X", "utf8"}}}.Index("/claim/job/gen-1/step-2.rank-", 16)
		if err != nil {
			t.Fatal(err)
		}
		var limits Limits
		if err := json.Unmarshal([]byte(cmd.Args[2]), &limits); err != nil {
			t.Fatal(err)
		}
		const memory, processor = indexMemory, indexProcessor
		if r := limits.Resource; r[unix.RLIMIT_DATA] != [2]uint64{memory, memory} || r[unix.RLIMIT_CPU] != [2]uint64{processor, processor} {
			t.Errorf("it may take %v", r)
		}
		if i := limits.Identity; i.UID != uint32(os.Geteuid()) || i.Nice != want || i.Policy != 0 || i.Priority != 0 {
			t.Errorf("it runs as %+v, want nice %d", i, want)
		}
		args := append(slices.Clone(cmd.Args[:2]), cmd.Args[3:]...)
		if line := strings.Join(args, " "); !strings.HasPrefix(line, "/run/holdfast/bin/holdfast-agent exec -- ./venv/bin/python -X utf8 -I -S -c import") ||
			!strings.HasSuffix(line, "main() /run/holdfast/python /claim/job/gen-1/step-2.rank- 16") || cmd.Dir != "/app" || !slices.Contains(cmd.Env, "LD_LIBRARY_PATH=/lib") {
			t.Errorf("%s\nin %s, %v", line, cmd.Dir, cmd.Env)
		}
	}
	if own := l.Limits.Resource[unix.RLIMIT_DATA]; own == [2]uint64{indexMemory, indexMemory} {
		t.Error("ranks are bound as well")
	}
	if _, err := (Job{}).Index("", 1); err == nil || !strings.Contains(err.Error(), "the interpreter is unknown") {
		t.Errorf("no launcher: %v", err)
	}
}
