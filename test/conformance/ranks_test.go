//go:build linux

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

// facts are what a rank observed: a path such as env.RANK, and the value in JSON.
type facts map[string]string

func readFacts(t *testing.T, folder string, rank, attempt int) facts {
	t.Helper()
	file := filepath.Join(folder, fmt.Sprintf("seen-%d-%d", rank, attempt))
	raw, err := os.ReadFile(file)
	var all map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		t.Fatalf("what rank %d saw in attempt %d: %v", rank, attempt, err)
	}
	f := facts{}
	f.add("", all)
	return f
}

func (f facts) add(at string, all map[string]any) {
	for name, v := range all {
		if inner, ok := v.(map[string]any); ok {
			f.add(at+name+".", inner)
			continue
		}
		raw, _ := json.Marshal(v)
		f[at+name] = string(raw)
	}
}

// older begins the reasons of entries that only an older PyTorch needs.
const older = "an older PyTorch: "

// allowance is an allowed difference: its path, the value under the agent (in JSON), and the reason.
type allowance struct {
	path, ours *regexp.Regexp
	reason     string
}

// allowed are the facts that may differ between a rank under the agent and one under torchrun.
var allowed = []allowance{
	{is(`env\.HOLDFAST_\w+`), is(`".*"`), "variables of the client and the site hook"},
	{is(`env\.PATH`), is(`".*/shims:.*"`), "our shims stand first"},
	{is(`env\.PYTHONPATH`), is(`".*/python"`), "the client and the site hook are there"},
	{is(`path`), is(`\["[^"]*/scripts","[^"]*/h/python",.*`), "the client and the site hook are there"},
	{is(`env\.MASTER_(ADDR|PORT)`), is(`".*"`), "the coordinator decides; a port is used for one generation"},
	{is(`env\.TORCHELASTIC_USE_AGENT_STORE`), is(`"False"`), "rank 0's own process serves the store: one of the launcher's would outlive the generation"},
	{is(`env\.TORCHELASTIC_RUN_ID`), is(`"none"`), "torchrun makes one up for each launch on one node; here all pods and their successors have the same"},
	{is(`env\.TORCHELASTIC_ERROR_FILE`), is(`".*/torchelastic_\w{8}/none_\w{8}/attempt_\d/\d/error.json"`), "the names of the folders hold the run's id and random letters"},
	{is(`env\.TORCHINDUCTOR_CACHE_DIR`), is(`".*"`), "torch sets it when the script imports it, which a standby has done already"},
	{is(`hooks`), is(`\[false,true,true,true\]`), "sys.excepthook also writes the traceback for the agent"},
	{is(`descriptors\.\d+`), is(`".*/run/page-\d closed .*"`), "the page on which the rank reports steps and imports; children do not inherit it"},
	{is(`oom`), is(`"100\\n"`), "if memory is short, the kernel kills a rank before the agent"},
	{is(`state\.finders`), is(`\["Finder",.*`), "the site hook sees which modules a rank imports, for standbys"},
	{is(`state\.modules\._holdfast_(site|imports|page|steps|watch)`), is(`true`), "the site hook; a standby's own modules are gone"},
	{is(`handlers\.SIGUSR1|status\.SigIgn`), is(`.*`), "the Go runtime of the stand-in takes all signals over before it can be seen which ones a shell had ignored"},
	{is(`env\.TORCHELASTIC_SIGNALS_TO_HANDLE`), is(`"SIGTERM,SIGINT,SIGHUP,SIGQUIT"`), older + "newer ones set it"},
}

// is returns a pattern that matches a whole text.
func is(text string) *regexp.Regexp { return regexp.MustCompile(`(?s)^(` + text + `)$`) }

// compare lists the differences that no allowance covers.
func compare(ours, theirs facts, allowed []allowance, used map[string]bool) (out []string) {
	all := maps.Clone(ours)
	maps.Copy(all, theirs)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		a, b := ours[at], theirs[at]
		if a == b {
			continue
		}
		ok := false
		for _, d := range allowed {
			if d.path.MatchString(at) && d.ours.MatchString(a) {
				ok, used[d.path.String()] = true, true
			}
		}
		if !ok {
			out = append(out, fmt.Sprintf("%s: %s, under torchrun %s", at, a, b))
		}
	}
	return out
}

// shell is a user's shell that changes process attributes before it runs the launcher.
const shell = `trap '' USR1; umask 027; ulimit -c 12; ulimit -S -n 777; ulimit -l 64; mkdir -p "$1/sub"; cd "$1/sub"; exec 7>"$1/open"; export MINE='a b' LANG=C.UTF-8; exec nice -n 3 ` +
	`python3 -c 'import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.execvp("torchrun", sys.argv[1:])' torchrun "${@:2}" <"$1/in"`

func environment(folder, python string) map[string]string {
	return map[string]string{"PATH": filepath.Dir(python) + ":/usr/local/bin:/usr/bin:/bin", "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder, "LONE": ""}
}

func command(t *testing.T, folder string) []string {
	t.Helper()
	file := filepath.Join(folder, "in")
	if err := os.WriteFile(file, []byte("input\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"bash", "-c", shell, "bash", folder, "--standalone", "--nproc-per-node=2", "--max-restarts=1", script(t, "observe.py"), folder, "--name", "a b", "é\n\"'$x", "${local_rank}", ""}
}

// underTorchrun makes the installed torchrun start the ranks twice.
func underTorchrun(t *testing.T, folder string) {
	t.Helper()
	file(t, filepath.Join(folder, "go"))
	argv := command(t, folder)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = folder
	for name, v := range environment(folder, python(t)) {
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("torchrun: %v\n%s", err, out)
	}
}

// newAgent returns a container whose agent is not started yet, and its coordinator.
func newAgent(t *testing.T, folder, standbys string) (*coordtest.Coordinator, *proctest.Container) {
	t.Helper()
	c := coordtest.Start(t)
	p := proctest.New(t, "a")
	p.Dir = folder
	p.Coordinator(c.Address(), c.CA)
	p.Env["HOLDFAST_STANDBYS"] = standbys
	maps.Copy(p.Env, environment(folder, python(t)))
	c.Lead("a")
	return c, p
}

// underAgent starts ranks cold, and then from standbys.
func underAgent(t *testing.T, folder string) {
	t.Helper()
	c, p := newAgent(t, folder, "auto")
	p.Start(command(t, folder)...)
	c.Await(t, "a", "has standbys", func(r *v1.Report) bool {
		return len(r.Rank) == 2 && r.Rank[0].StandbyReady && r.Rank[1].StandbyReady
	})
	file(t, filepath.Join(folder, "go"))
	second := c.Await(t, "a", "runs again", func(r *v1.Report) bool {
		return r.Generation == 2 && len(r.Rank) == 2 && r.Rank[0].Pid != 0 && r.Rank[1].Pid != 0
	})
	for local, rank := range second.Rank {
		if !rank.FromStandby {
			t.Errorf("rank %d was started cold again", local)
		}
	}
	if code := p.Wait(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
}

func file(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRanks: what a rank can observe of its start, and what its imports left in the process, is the same under torchrun and under the
// agent, cold and from a standby, except for the listed differences; and no two ranks of one or two generations draw the same random
// numbers.
func TestRanks(t *testing.T) {
	python(t)
	used := map[string]bool{}
	top := t.TempDir()
	folder := map[bool]string{}
	for _, agent := range []bool{false, true} {
		folder[agent] = filepath.Join(top, map[bool]string{false: "them", true: "ours"}[agent])
		if err := os.Mkdir(folder[agent], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	left, err := syscall.Dup(1) // a container's first process may have this descriptor: no rank gets it
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(left)
	underTorchrun(t, folder[false])
	underAgent(t, folder[true])
	drawn := map[string]string{}
	for attempt, how := range []string{"cold", "from a standby"} {
		for rank := range 2 {
			ours, theirs := readFacts(t, folder[true], rank, attempt), readFacts(t, folder[false], rank, attempt)
			for at, v := range ours {
				if !strings.HasPrefix(at, "draws.") {
					continue
				}
				me := fmt.Sprintf("rank %d, %s", rank, how)
				if other, both := drawn[at+v]; both {
					t.Errorf("%s and %s: both draw %s %s", other, me, at, v)
				}
				drawn[at+v] = me
				delete(ours, at)
				delete(theirs, at)
			}
			for at, v := range ours {
				ours[at] = strings.ReplaceAll(v, folder[true], folder[false])
			}
			for _, d := range compare(ours, theirs, allowed, used) {
				t.Errorf("rank %d, %s: %s", rank, how, d)
			}
		}
	}
	for _, d := range allowed {
		if !used[d.path.String()] && !strings.HasPrefix(d.reason, older) && asIs() {
			t.Errorf("%s (%s) is no longer a difference", d.path, d.reason)
		}
	}
}
