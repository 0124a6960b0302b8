//go:build linux

package proc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
)

// files returns the log files of one generation. Paths are absolute, except in ranks' variables, which use the launcher's spelling.
func (j Job) files(run protocol.Run) launch.Files {
	host, _ := os.Hostname()
	env := j.Launch.Env
	temp := cmp.Or(env["TMPDIR"], env["TEMP"], env["TMP"], "/tmp")
	return j.Spec.Files(
		launch.Attempt{ID: fmt.Sprintf("%-16s", j.Launch.ID), Temp: temp, Hostname: host, Restarts: run.RestartCount, FirstRank: run.BaseRank},
	)
}

func (j Job) abs(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(j.Launch.Dir, path)
}

// logsFolder creates the folder of all attempts. If that fails and the user set no option about logs, there are no logs.
func (j *Job) logsFolder() error {
	f := j.files(protocol.Run{})
	if f.Run == "" {
		return nil
	}
	err := j.as(func() error { return os.MkdirAll(j.abs(f.Run), 0o755) })
	if err == nil {
		return nil
	}
	if j.Spec.Logs.Asked() {
		return &launch.Refusal{Flag: cmp.Or(j.Spec.Logs.DirFlag, "--log-dir"), Why: "the folder for logs cannot be created: " + err.Error(),
			Remedy: "name one with --log-dir that the container's user can write"}
	}
	j.Spec.Logs.Dir = os.DevNull
	return nil
}

// MakeLogs creates the folders of one generation's logs. Like torch, it removes what an earlier generation of the same name left.
func (j Job) MakeLogs(run protocol.Run) error {
	f := j.files(run)
	if f.Dir == "" {
		return nil
	}
	return j.as(func() error {
		if err := os.RemoveAll(j.abs(f.Dir)); err != nil {
			return fmt.Errorf("removing logs of an earlier attempt: %w", err)
		}
		for _, r := range f.Rank {
			if err := os.MkdirAll(j.abs(r.Dir), 0o755); err != nil {
				return fmt.Errorf("making the folder for logs: %w", err)
			}
		}
		return nil
	})
}

// as runs do with the launcher's rights on files, because the launcher chose their names.
func (j Job) as(do func() error) error { return j.Launch.Limits.Identity.as(do) }

// open opens a file that the launcher named.
func (j Job) open(path string, flags int) (f *os.File, err error) {
	err = j.as(func() (err error) {
		f, err = os.OpenFile(path, flags, 0o644)
		return err
	})
	return f, err
}

// logsEnv returns a rank's variables for logs: its error file, and the files of its output if not the console.
func (j Job) logsEnv(run protocol.Run, local int) map[string]string {
	files := j.files(run).Rank
	if local >= len(files) {
		return nil
	}
	f := files[local]
	env := map[string]string{"TORCHELASTIC_ERROR_FILE": f.Error}
	if f.Stdout != "" {
		env[EnvStdout] = j.abs(f.Stdout)
	}
	if f.Stderr != "" {
		env[EnvStderr] = j.abs(f.Stderr)
	}
	return env
}

// takeOutput opens the files of a rank's output and removes their names from its environment: a cold rank has the files from the beginning,
// a standby opens them by name when it becomes the rank.
func (j Job) takeOutput(env map[string]string, files *[3]*os.File) (opened []*os.File, err error) {
	for fd, name := range map[int]string{1: EnvStdout, 2: EnvStderr} {
		path := env[name]
		delete(env, name)
		if path == "" {
			continue
		}
		f, err := j.open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
		if err != nil {
			return opened, fmt.Errorf("opening a rank's output: %w", err)
		}
		files[fd] = f
		opened = append(opened, f)
	}
	return opened, nil
}

// ErrorFile returns the file in which torch's error handler writes a rank's exception.
func (j Job) ErrorFile(run protocol.Run, local int) string {
	if local >= j.Spec.Ranks {
		return ""
	}
	return j.abs(j.files(run).Rank[local].Error)
}

// Settings of tails.
const (
	tailEvery = 100 * time.Millisecond
	// tailTimeout is how long an incomplete line waits for its end.
	tailTimeout = time.Second
	tailChunk   = 64 << 10
)

// Tails copies the files of one generation's output to the console, with a prefix before each line. A file records the position of each,
// from which the next agent continues.
type Tails struct {
	done     chan struct{}
	finish   sync.Once
	running  sync.WaitGroup
	position *os.File
	open     func(path string, flags int) (*os.File, error)
}

// tail is one file that is copied.
type tail struct {
	path, prefix string
	console      *os.File
	filtered     *os.File // nil: no filters
	filters      []string
	slot         int64 // of the position; odd for standard error
	tails        *Tails
}

// Tail starts to copy the output of a generation, or continues after an earlier agent; nil if no output is copied.
func (j Job) Tail(run protocol.Run, again bool) *Tails {
	f := j.files(run)
	t := &Tails{done: make(chan struct{}), open: j.open}
	var all []*tail
	for local, r := range f.Rank {
		show := func(path string, console *os.File, filters []string, slot int64) {
			all = append(all, &tail{
				path:    j.abs(path),
				prefix:  r.Prefix,
				console: console,
				filters: filters,
				slot:    slot,
				tails:   t,
			})
		}
		if r.TeeStdout {
			show(r.Stdout, j.Launch.Files[1], j.Spec.Logs.OutFilters, int64(local)*16)
		}
		if r.TeeStderr {
			show(r.Stderr, j.Launch.Files[2], j.Spec.Logs.ErrFilters, int64(local)*16+8)
		}
	}
	if len(all) == 0 {
		return nil
	}
	flags, name := os.O_RDWR|os.O_CREATE|os.O_TRUNC, j.Root.TailFile(run.Number)
	if again {
		flags = os.O_RDWR
	} else {
		old, _ := filepath.Glob(j.Root.join("run", "tail-*"))
		for _, o := range old {
			_ = os.Remove(o)
		}
	}
	var err error
	if t.position, err = os.OpenFile(name, flags, 0o600); err != nil && again {
		return nil // the previous agent had not started on this generation
	}
	out, errs := j.openFiltered(j.abs(f.FilteredOut), again), j.openFiltered(j.abs(f.FilteredErr), again)
	for _, one := range all {
		one.filtered = out
		if one.slot%16 != 0 {
			one.filtered = errs
		}
		t.running.Go(one.show)
	}
	return t
}

func (j Job) openFiltered(path string, again bool) *os.File {
	if path == "" {
		return nil
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if !again {
		flags |= os.O_TRUNC
	}
	f, err := j.open(path, flags)
	if err != nil {
		return nil
	}
	return f
}

// Finish declares that all ranks have ended: the files are copied to their end.
func (t *Tails) Finish() {
	if t != nil {
		t.finish.Do(func() { close(t.done) })
	}
}

// Wait waits until all is copied after Finish, up to a time limit: a console without a reader must not block the end.
func (t *Tails) Wait(atMost time.Duration) {
	if t == nil {
		return
	}
	shown := make(chan struct{})
	go func() {
		t.running.Wait()
		close(shown)
	}()
	select {
	case <-shown:
	case <-time.After(atMost):
	}
}

func (t *tail) show() {
	offset := t.from()
	var f *os.File
	var pending []byte // read and not yet written
	grown := time.Now()
	buf := make([]byte, tailChunk)
	for {
		over := false
		select {
		case <-t.tails.done: // checked before the file, so that its last lines are not missed
			over = true
		default:
		}
		n := 0
		if f == nil {
			f, _ = t.tails.open(t.path, os.O_RDONLY)
		}
		if f != nil {
			n, _ = f.ReadAt(buf, offset+int64(len(pending)))
		}
		if n > 0 {
			pending, grown = append(pending, buf[:n]...), time.Now()
		}
		shown := wholeLines(pending, n == 0 && (over || time.Since(grown) > tailTimeout) || len(pending) > tailChunk)
		if shown > 0 {
			t.write(pending[:shown])
			offset += int64(shown)
			pending = append(pending[:0], pending[shown:]...)
			t.keep(offset)
		}
		switch {
		case n > 0:
		case over:
			if f != nil {
				f.Close()
			}
			return
		default:
			select {
			case <-t.tails.done:
			case <-time.After(tailEvery):
			}
		}
	}
}

// wholeLines returns the length of the complete lines in text, or of all of it. A carriage return ends a line, as in torch; at the end of
// text it may be half of a line end.
func wholeLines(text []byte, all bool) int {
	if all {
		return len(text)
	}
	end := bytes.LastIndexAny(text, "\r\n")
	if end == len(text)-1 && end >= 0 && text[end] == '\r' {
		end = bytes.LastIndexAny(text[:end], "\r\n")
	}
	return end + 1
}

// write writes lines to the console. Errors are dropped: the console would be the place to report them.
func (t *tail) write(text []byte) {
	lines := strings.ReplaceAll(strings.ReplaceAll(strings.ToValidUTF8(string(text), "\uFFFD"), "\r\n", "\n"), "\r", "\n")
	var console, filtered strings.Builder
	for line := range strings.Lines(lines) {
		console.WriteString(t.prefix + line)
		for _, needle := range t.filters {
			if strings.Contains(line, needle) {
				filtered.WriteString(t.prefix + line)
				break
			}
		}
	}
	_, _ = t.console.WriteString(console.String())
	if t.filtered != nil && filtered.Len() > 0 {
		_, _ = t.filtered.WriteString(filtered.String())
	}
}

func (t *tail) from() int64 {
	var raw [8]byte
	if t.tails.position == nil {
		return 0
	}
	if _, err := t.tails.position.ReadAt(raw[:], t.slot); err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(raw[:]))
}

func (t *tail) keep(offset int64) {
	var raw [8]byte
	binary.LittleEndian.PutUint64(raw[:], uint64(offset))
	if t.tails.position != nil {
		_, _ = t.tails.position.WriteAt(raw[:], t.slot)
	}
}
