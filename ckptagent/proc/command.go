//go:build linux

package proc

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/internal/protocol"
)

// Command is the container's own command, as init began it.
type Command struct {
	Argv []string `json:"argv"`
	File string   `json:"file"` // where argv[0] was found
	// Process is the run that init began, at Began.
	Process Process   `json:"process"`
	Began   time.Time `json:"began"`
	env     []string
}

// commandEnv is the environment of everything below init.
func commandEnv(root Root, inherited []string, container, path string) []string {
	python := root.Python()
	for _, kv := range inherited {
		if old, ok := strings.CutPrefix(kv, "PYTHONPATH="); ok && old != "" {
			python += ":" + old
		}
	}
	return setEnv(inherited, map[string]string{
		EnvRoot: string(root), EnvContainer: container, "PATH": root.Shims() + ":" + path, "PYTHONPATH": python,
	})
}

// withErrorFile has a command that is a Python script leave its traceback, and tell its optimizer steps. What a shell runs may
// fail without the command's failing.
func withErrorFile(env, argv []string, root Root, generation int64) []string {
	if !launch.IsPythonScript(argv) {
		return env
	}
	set := map[string]string{EnvErrorFile: root.ErrorFile(generation, 0)}
	if page.Prepare(root.PageFile(0)) == nil { // without one no steps are told
		set[EnvPage] = root.PageFile(0)
	}
	return setEnv(env, set)
}

// keepCommand writes down what was begun, for each agent.
func (i *initProcess) keepCommand(argv []string, file string) error {
	st, err := readStat(i.user) // it is our child and not yet reaped
	if err != nil {
		return fmt.Errorf("looking at the command that was started: %w", err)
	}
	raw, err := json.Marshal(Command{Argv: argv, File: file, Process: Process{PID: i.user, Start: st.start}, Began: time.Now()})
	if err == nil {
		err = Replace(i.root.CommandFile(), raw)
	}
	if err != nil {
		return fmt.Errorf("writing down the command: %w", err)
	}
	return nil
}

// ReadCommand reads what init began in this container; ok is false where no init did.
func ReadCommand(root Root, container string) (c Command, ok bool) {
	raw, err := os.ReadFile(root.CommandFile())
	if container == "" || err != nil || json.Unmarshal(raw, &c) != nil || len(c.Argv) == 0 {
		return Command{}, false
	}
	path := os.Getenv("PATH")
	if path == "" {
		path = defaultPath
	}
	c.env = commandEnv(root, os.Environ(), container, path)
	return c, true
}

// maxScript is how much of a shell script is read for the name of a launcher.
const maxScript = 256 << 10

// Timeout is how long the command may run without a launcher until it counts as a rank. EnvTimeout sets it in seconds; the
// error says why it does not.
func (c Command) Timeout() (time.Duration, error) {
	given := os.Getenv(EnvTimeout)
	if n, err := strconv.ParseUint(given, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	var err error
	if given != "" {
		err = fmt.Errorf("%s=%s is not a number of seconds and is ignored; write a whole number, or leave it out", EnvTimeout, given)
	}
	var texts []string
	scripts := launch.ShellScripts(c.Argv)
	if c.File != "" && isShellScript(c.File) {
		scripts = append(scripts, c.File)
	}
	for _, file := range scripts {
		if f, err := os.Open(file); err == nil {
			raw, _ := io.ReadAll(io.LimitReader(f, maxScript))
			f.Close()
			texts = append(texts, string(raw))
		}
	}
	return launch.CommandTimeout(c.Argv, texts...), err
}

func isShellScript(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 128)
	n, _ := f.Read(head)
	first, _, _ := strings.Cut(string(head[:n]), "\n")
	return strings.HasPrefix(first, "#!") && slices.ContainsFunc(strings.Fields(first[2:]), func(w string) bool { return launch.IsShell(w) })
}

// Start runs the command again, for a generation. It has a session of its own, and what init gave to its first run.
func (c Command) Start(root Root, mark string, run protocol.Run) (Process, error) {
	file := c.File
	if !filepath.IsAbs(file) && strings.Contains(file, "/") {
		if dir, err := os.Getwd(); err == nil {
			file = filepath.Join(dir, file)
		}
	}
	list := setEnv(
		withErrorFile(c.env, c.Argv, root, run.Number),
		map[string]string{EnvMark: mark, EnvGeneration: strconv.FormatInt(run.Number, 10)},
	)
	return start(command{file: file, argv: c.Argv, env: list, files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}})
}

// EndBelow ends all descendants of init but this process, which are all that the command has started: a process that lost its parent is a
// child of init. With grace the command, or where it is a shell the processes below it that handle SIGTERM, receive SIGTERM first, and
// are waited for; the command itself does not receive it again where init has sent it. waited reports that some process was waited for.
//
// init is the pid of the process that started this one. Where that has ended nothing is killed: this process is then the child of
// some other reaper, below which other containers of the pod may run.
func EndBelow(init int, command Process, byInit bool, grace time.Duration) (waited bool) {
	if init <= 0 {
		return false // no init began this process
	}
	if grace > 0 {
		deadline, living := time.Now().Add(grace), map[int]stat{}
		pids, _ := below(init, os.Getpid())
		for _, pid := range pids {
			if st, err := readStat(pid); err == nil && !st.dead() {
				living[pid] = st
			}
		}
		who := asked(command.PID, living)
		waited = len(who) > 0
		if byInit {
			who = slices.DeleteFunc(who, func(pid int) bool { return pid == command.PID })
			if command.Alive() {
				awaitAll([]int{command.PID}, grace)
			}
		}
		ask(who, time.Until(deadline))
	}
	killUntilNone(func() ([]int, bool) { return below(init, os.Getpid()) })
	return waited
}

// below lists the living processes that descend from the ancestor, but for one, its child. What that has started counts. Where the
// spared one is no longer the ancestor's child, the ancestor has ended and there are none: its pid may be anybody's.
func below(ancestor, spared int) (found []int, ok bool) {
	parents := map[int]int{}
	living, ok := find(func(pid int, st stat) (bool, error) {
		parents[pid] = st.parent
		return true, nil
	})
	st, err := readStat(spared) // looked at last: so long the ancestor lived
	if err != nil || st.parent != ancestor {
		return nil, !isForNow(err)
	}
	parents[spared] = ancestor
	descends := func(pid int) bool {
		for hops := 0; hops <= len(parents); hops++ {
			parent, known := parents[pid]
			if !known || parent == ancestor {
				return known
			}
			pid = parent
		}
		return false
	}
	return slices.DeleteFunc(living, func(pid int) bool { return pid == spared || pid == ancestor || !descends(pid) }), ok
}

// Running says in one line what the command runs now: itself or, where that is a shell, what that has started last; "" where
// it has ended.
func (c Command) Running() string {
	pid := c.Process.PID
	for range 16 { // shells in shells
		argv := commandLine(pid)
		if len(argv) == 0 || !launch.IsShell(argv[0]) && !isShellScript(argv[0]) {
			return Line(argv)
		}
		newest, at := 0, uint64(0)
		_, _ = find(func(child int, st stat) (bool, error) {
			if st.parent == pid && st.start >= at {
				newest, at = child, st.start
			}
			return false, nil
		})
		if newest == 0 {
			return Line(argv)
		}
		pid = newest
	}
	return Line(commandLine(pid))
}

// PassedBy is the command line of a Python launcher that runs without having become our shim; "" where none does.
func PassedBy() (line string) {
	_, _ = find(func(pid int, _ stat) (bool, error) {
		argv := commandLine(pid)
		if len(argv) > 0 && strings.HasPrefix(filepath.Base(argv[0]), "python") && launch.IsLauncher(argv) {
			line = Line(argv)
		}
		return false, nil
	})
	return line
}

func commandLine(pid int) []string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
}

// maxLine is how much of a command line is shown to people.
const maxLine = 120

// Line is a command line for people: words that hold blanks in quotes, and not without end.
func Line(argv []string) string {
	var words []string
	for _, w := range argv {
		if strings.ContainsAny(w, " \t\n'\"$&|;<>") {
			w = "'" + strings.Join(strings.Fields(w), " ") + "'"
		}
		words = append(words, w)
	}
	line := []rune(strings.ToValidUTF8(strings.Join(words, " "), "?"))
	if len(line) > maxLine {
		return string(line[:maxLine-1]) + "…"
	}
	return string(line)
}
