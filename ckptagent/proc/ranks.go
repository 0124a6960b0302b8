//go:build linux

package proc

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
)

// Job is a launcher's request, its options, and how its ranks are started.
type Job struct {
	Root   Root
	Mark   string
	Launch *Launch
	Spec   launch.Spec
	// Arena reports whether each rank has an arena.
	Arena bool
	// Skip are modules that standbys do not import.
	Skip []string
	// Own are the agent's own limits; a rank is started through Exec only if the launcher's differ.
	Own Limits
}

// NewJob parses a launcher's request. The error is for users; a *launch.Refusal if a flag causes it.
func NewJob(root Root, mark string, l *Launch) (Job, error) {
	own := inherited()
	if l.Invalid != nil {
		return Job{}, fmt.Errorf("reading the user of the launcher: %w; start it as one user", l.Invalid)
	}
	if err := l.Limits.Identity.mayStart(own.Identity, effective()); err != nil {
		return Job{}, err
	}
	spec, err := launch.Parse(l.Argv, l.Env)
	if err != nil {
		return Job{}, err
	}
	if spec, err = l.resolve(spec); err != nil {
		return Job{}, err
	}
	if !spec.NoPython {
		if spec.Python, err = l.python(spec); err != nil {
			return Job{}, err
		}
	}
	delete(l.Env, "HOLDFAST_PYTHON")
	if spec.VirtualLocalRank {
		if _, err := spec.OwnDevice(l.Env, spec.Ranks-1); err != nil {
			return Job{}, err
		}
	}
	skip := strings.FieldsFunc(l.Env[EnvStandbySkip], func(r rune) bool { return r == ',' })
	j := Job{Root: root, Mark: mark, Launch: l, Spec: spec, Own: own, Skip: skip}
	return j, j.logsFolder()
}

// python returns the interpreter of ranks: the launcher's own, or the one that the launcher or the job names.
func (l *Launch) python(spec launch.Spec) ([]string, error) {
	if len(spec.Python) > 0 {
		return spec.Python, nil
	}
	if given := l.Env["HOLDFAST_PYTHON"]; given != "" {
		return []string{given}, nil
	}
	python, err := l.interpreter()
	return []string{python}, err
}

// argv returns the command line of a local rank, as torchrun writes it.
func (j Job) argv(local int) []string {
	args := j.Spec.RankArgs(local)
	if j.Spec.NoPython {
		return append([]string{j.Spec.Script}, args...)
	}
	argv := append(append([]string{}, j.Spec.Python...), "-u")
	if j.Spec.Module {
		argv = append(argv, "-m")
	}
	return append(append(argv, j.Spec.Script), args...)
}

// command returns how a program is started as the launcher would start it; env is added to the launcher's environment.
func (j Job) command(argv []string, env map[string]string, extra ...*os.File) (command, error) {
	c := command{dir: j.Launch.Dir, env: j.Launch.environ(env), files: j.Launch.Files, extra: extra}
	if !j.Launch.Limits.equal(j.Own) {
		limits, err := json.Marshal(j.Launch.Limits)
		if err != nil {
			return command{}, err
		}
		c.argv = append([]string{j.Root.Binary(), "exec", string(limits), "--"}, argv...)
		return c, nil
	}
	file := j.Launch.lookPath(argv[0])
	if file == "" {
		return command{}, fmt.Errorf("starting %s: not found on PATH=%s", argv[0], j.Launch.Env["PATH"])
	}
	if !j.Spec.NoPython { // by its full path, as torchrun does
		argv[0] = file
	}
	c.file, c.argv = file, argv
	return c, nil
}

// env returns the variables that a rank gets on top of the launcher's environment.
func (j Job) env(run protocol.Run, local int) map[string]string {
	env := constantEnv(j.Launch.Env, j.Spec, j.Root, local)
	maps.Copy(env, generationEnv(run, j.Root, local))
	if own, err := j.Spec.OwnDevice(j.Launch.Env, local); j.Spec.VirtualLocalRank && err == nil {
		maps.Copy(env, own)
	}
	if j.Spec.DeepSpeed != nil {
		asDeepSpeed(env, j.Spec)
	} else {
		maps.Copy(env, j.logsEnv(run, local))
	}
	if j.Arena {
		env[EnvArena] = j.Root.ArenaFile(local)
	}
	// The user's command line may have removed Holdfast's folder (PYTHONPATH=/app torchrun …, env -i), and with it the client and the site
	// hook.
	path := j.Launch.Env["PYTHONPATH"]
	if !slices.Contains(strings.Split(path, ":"), j.Root.Python()) {
		env["PYTHONPATH"] = strings.TrimSuffix(j.Root.Python()+":"+path, ":")
	}
	return env
}

// later are the variables of one generation, which a standby gets when it becomes the rank.
var later = []string{EnvGeneration, EnvRestoreStep, EnvRestoreBranch, EnvDonor, EnvErrorFile, EnvPage, EnvLooks, EnvArena, EnvStdout,
	EnvStderr, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"}

// sourceEnv returns the environment of a source: what its local ranks have in common, without the variables of one generation. A module
// that reads a variable of a single rank misses it, and the source reports that.
func (j Job) sourceEnv(run protocol.Run, locals []int) map[string]string {
	env := j.env(run, locals[0])
	for _, name := range later {
		delete(env, name)
	}
	if len(locals) > 1 || unsized(run) {
		for _, name := range j.own(run) {
			delete(env, name)
		}
	}
	return env
}

// unsized reports whether the next generation's number of ranks is not known: before the first one, and where a gang may go on with fewer
// pods.
func unsized(run protocol.Run) bool { return run.Number == 0 || run.Slots > 0 }

// own returns the variables that differ among local ranks of the pod, and those that are not known yet.
func (j Job) own(run protocol.Run) []string {
	var names []string
	other, unknown := j.env(run, 1), map[string]bool{}
	if unsized(run) {
		for _, name := range []string{"RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"} {
			unknown[name] = true
		}
	}
	for name, v := range j.env(run, 0) {
		if other[name] != v && j.Spec.Ranks > 1 || unknown[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Start starts a local rank of a generation cold.
func (j Job) Start(run protocol.Run, local int) (Process, error) {
	env := j.env(run, local)
	env[EnvMark] = j.Mark
	output := j.Launch.Files
	opened, err := j.takeOutput(env, &output)
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	if err != nil {
		return Process{}, err
	}
	c, err := j.command(j.argv(local), env)
	if err != nil {
		return Process{}, err
	}
	c.files = output
	return startRank(c)
}

// Traced returns a rank's exit with the traceback that the rank wrote.
func Traced(e protocol.Exit, root Root, generation int64, local int) protocol.Exit {
	if tb, ok := ReadTraceback(root, generation, local); ok && e.Code != 0 {
		e.Traceback = tb.Text
	}
	return e
}

// ReadTraceback reads the uncaught exception that a rank wrote.
func ReadTraceback(root Root, generation int64, local int) (ckptagent.Traceback, bool) {
	// the ranks' user owns the folder
	f, err := os.OpenFile(root.ErrorFile(generation, local), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ckptagent.Traceback{}, false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 || !st.Mode().IsRegular() {
		return ckptagent.Traceback{}, false
	}
	buf := make([]byte, min(st.Size(), protocol.MaxText))
	n, _ := f.ReadAt(buf, st.Size()-int64(len(buf)))
	buf = buf[:n]
	for len(buf) > 0 && !utf8.RuneStart(buf[0]) { // drop a partial character
		buf = buf[1:]
	}
	return ckptagent.Traceback{Text: strings.ToValidUTF8(string(buf), "?"), At: st.ModTime()}, true
}

// Lost is the exit of a rank whose agent died before it could report it.
func Lost(generation int64, local int) ckptagent.Exited {
	return ckptagent.Exited{Generation: generation, Local: local, Exit: lost()}
}
