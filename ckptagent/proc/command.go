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

// Command is the container's command that init started.
type Command struct {
	Argv []string `json:"argv"`
	File string   `json:"file"` // the path of argv[0]
	// Process is the run that init started, at Began.
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

// withErrorFile makes a command that is a Python script write its traceback and its optimizer steps to files. It does not for a shell: a
// program that a shell runs may fail without the command's failing.
func withErrorFile(env, argv []string, root Root, generation int64) []string {
	if !launch.IsPythonScript(argv) {
		return env
	}
	set := map[string]string{EnvErrorFile: root.ErrorFile(generation, 0)}
	if page.Prepare(root.PageFile(0)) == nil { // without a page it reports no steps
		set[EnvPage], set[EnvLooks] = root.PageFile(0), root.LooksFile(0)
	}
	return setEnv(env, set)
}

// keepCommand writes the started command to a file, for each agent.
func (i *initProcess) keepCommand(argv []string, file string) error {
	st, err := readStat(i.user) // our child, not yet reaped
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

// ReadCommand returns the command that init started in this container; ok is false if there is no init.
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

// maxScript is how much of a shell script is searched for a launcher, in bytes.
const maxScript = 256 << 10

// Timeout returns how long the command may run without a launcher before it counts as a rank. EnvTimeout sets it in seconds; an invalid
// value is an error.
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

// Start runs the command again, for a generation, in its own session and with the limits of its first run.
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

// EndBelow ends all descendants of init except this process. These are all that the command has started: init adopts orphans. With grace,
// the command, or the processes below a shell that handle SIGTERM, get SIGTERM first and are waited for. byInit: init has already sent it
// to the command. waited reports that some process was waited for.
//
// init is the pid of the process that started this one. If that has ended, nothing is killed: this process is then the child of another
// reaper, whose descendants may include other containers of the pod.
func EndBelow(init int, command Process, byInit bool, grace time.Duration) (waited bool) {
	if init <= 0 {
		return false // not started by init
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

// below returns the living descendants of the ancestor, except spared, which is its child; the descendants of spared count. ok is false if
// spared is no longer its child: the ancestor has ended and its pid may have been reused.
func below(ancestor, spared int) (found []int, ok bool) {
	parents := map[int]int{}
	living, ok := find(func(pid int, st stat) (bool, error) {
		parents[pid] = st.parent
		return true, nil
	})
	st, err := readStat(spared) // read last: the ancestor lived until then
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

// Running returns, in one line, what the command runs now: itself or, if it is a shell, its newest descendant; "" if it has ended.
func (c Command) Running() string {
	pid := c.Process.PID
	for range 16 { // nested shells
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

// PassedBy returns the command line of a running Python launcher that the site hook did not turn into a shim; "": there is none.
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

// maxLine is the most of a command line that is shown.
const maxLine = 120

// Line formats a command line for users: words with blanks in quotes, cut at maxLine.
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
