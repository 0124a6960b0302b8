//go:build linux

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
)

// end is the end of a launcher with one rank.
type end struct {
	// code is the launcher's exit code, rank its rank's; below zero: a signal.
	code, rank int
	// out, errs and raised are the rank's output, and the report of torch's error handler.
	out, errs, raised string
}

// inSummary matches the rank's exit code in torchrun's final message.
var inSummary = regexp.MustCompile(`exitcode\s*: (-?\d+)`)

// volatile matches what differs from process to process.
var volatile = regexp.MustCompile(`"timestamp": ?"\d+"|, line \d+, in wrapper|0x[0-9a-f]+`)

// logs reads the ranks' log files.
func (e *end) logs(t *testing.T, folder, attempt string) {
	t.Helper()
	for name, into := range map[string]*string{"stdout.log": &e.out, "stderr.log": &e.errs, "error.json": &e.raised} {
		files, _ := filepath.Glob(filepath.Join(folder, "logs", "*", "attempt_"+attempt, "0", name))
		if len(files) != 1 {
			if name != "error.json" {
				t.Errorf("%s: %d files", name, len(files))
			}
			continue
		}
		raw, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		*into = volatile.ReplaceAllString(string(raw), "")
	}
}

func endCommand(t *testing.T, folder string, how []string) []string {
	return append([]string{"torchrun", "--standalone", "--nproc-per-node=1", "--log-dir=" + filepath.Join(folder, "logs"), "--redirects=3", script(t, "end.py")}, how...)
}

func endUnderTorchrun(t *testing.T, how []string) (e end) {
	t.Helper()
	folder := t.TempDir()
	argv := endCommand(t, folder, how)
	cmd := exec.Command(filepath.Join(filepath.Dir(python(t)), argv[0]), argv[1:]...)
	for name, v := range environment(folder, python(t)) {
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	e.code = cmd.ProcessState.ExitCode()
	if m := inSummary.FindStringSubmatch(string(said)); m != nil {
		e.rank, _ = strconv.Atoi(m[1])
	}
	e.logs(t, folder, "0")
	return e
}

// endUnderAgent ends a rank that was started cold, or from a standby in the second attempt.
func endUnderAgent(t *testing.T, how []string, warm bool) (e end) {
	t.Helper()
	folder := t.TempDir()
	standbys, attempt := "off", "0"
	if warm {
		standbys, attempt = "auto", "1"
	}
	c, p := newAgent(t, folder, standbys)
	if warm {
		p.Env["HOLD"], p.Env["HOLDFAST_RANKS"], p.Env["HOLDFAST_STATE_BYTES"] = folder, "1", "4096"
	}
	p.Start(append([]string{"bash", "-c", `"$@"; echo "after $?"`, "bash"}, endCommand(t, folder, how)...)...)
	if warm {
		c.Await(t, "a", "has a standby", func(r *v1.Report) bool { return len(r.Rank) == 1 && r.Rank[0].StandbyReady })
		file(t, filepath.Join(folder, "go"))
		again := c.Await(t, "a", "runs again", func(r *v1.Report) bool { return r.Generation == 2 && len(r.Rank) == 1 && r.Rank[0].Pid != 0 })
		if !again.Rank[0].FromStandby {
			t.Error("the rank was started cold again")
		}
		file(t, filepath.Join(folder, "end"))
	}
	p.Wait()
	if _, err := fmt.Sscanf(p.Out.String(), "after %d", &e.code); err != nil {
		t.Fatalf("the launcher did not return: %q", p.Out)
	}
	if r := c.Report("a"); len(r.Rank) == 1 && r.Rank[0].Exit != nil {
		e.rank = int(r.Rank[0].Exit.Code)
		if s := r.Rank[0].Exit.Signal; s != 0 {
			e.rank = -int(s)
		}
	}
	e.logs(t, folder, attempt)
	return e
}

// TestEnds: however a rank ends, started cold or from a standby, its exit code, output and error file are those of torchrun. The launcher's
// exit code is the rank's, or 128 plus the signal: torchrun's is 1 for every failure, which tells less.
func TestEnds(t *testing.T) {
	python(t)
	ends := []string{"plain 0", "plain 1", "plain 3", "plain killed", "plain text", "plain exception", "record text", "record exception"}
	if !asIs() {
		ends = append(ends, "plain at once", "plain terminated", "plain aborted", "record 3")
	}
	for _, how := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			first, rest, _ := strings.Cut(how, " ")
			theirs := endUnderTorchrun(t, []string{first, rest})
			if recorded := how == "record exception"; theirs.out != "begins\n" || recorded != strings.Contains(theirs.raised, "callstack") {
				t.Fatalf("under torchrun it leaves %+v", theirs)
			}
			for warm, name := range map[bool]string{false: "cold", true: "from a standby"} {
				t.Run(name, func(t *testing.T) { sameEnd(t, endUnderAgent(t, []string{first, rest}, warm), theirs) })
			}
		})
	}
}

func sameEnd(t *testing.T, ours, theirs end) {
	t.Helper()
	want := theirs.rank
	if want < 0 {
		want = 128 - want
	}
	if ours.code != want || (theirs.code == 0) != (want == 0) || theirs.code > 1 {
		t.Errorf("the launcher ends with %d, torchrun with %d for a rank that ended with %d", ours.code, theirs.code, theirs.rank)
	}
	ours.code, theirs.code = 0, 0
	if ours != theirs {
		a, _ := json.MarshalIndent(fmt.Sprintf("%+v", ours), "", " ")
		b, _ := json.MarshalIndent(fmt.Sprintf("%+v", theirs), "", " ")
		t.Errorf("ends as\n%s\nunder torchrun as\n%s", a, b)
	}
}
