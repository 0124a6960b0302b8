//go:build linux

package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

func TestWholeLines(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "", "a\n": "a\n", "a\nb": "a\n", "a\rb": "a\r", "a\r": "", "a\r\n": "a\r\n", "a\nb\r": "a\n", "\r": "",
	} {
		if got := text[:wholeLines([]byte(text), false)]; got != want {
			t.Errorf("%q has the whole lines %q, want %q", text, got, want)
		}
	}
}

// TestTails: teed output is shown once, with its prefix and completely, also if the agent restarts.
func TestTails(t *testing.T) {
	dir := t.TempDir()
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	root := Root(filepath.Join(dir, "root"))
	if err := os.MkdirAll(root.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	j := Job{
		Root: root,
		Spec: launch.Spec{
			Ranks: 1,
			Role:  "r",
			RunID: "id",
			Logs:  launch.Logs{Dir: "logs", Tee: launch.Streams{All: 1}, OutFilters: []string{"b", "d"}},
		},
		Launch: &Launch{ID: "0123456789abcdef", Dir: dir, Files: [3]*os.File{nil, console, console}},
	}
	run := protocol.Run{Number: 3}
	if j.Tail(run, true) != nil {
		t.Fatal("goes on where nobody has begun")
	}
	if err := j.MakeLogs(run); err != nil {
		t.Fatal(err)
	}
	env := j.logsEnv(run, 0)
	if want := "logs/id_01234567/attempt_0/0/error.json"; env["TORCHELASTIC_ERROR_FILE"] != want {
		t.Errorf("TORCHELASTIC_ERROR_FILE=%s, want %s", env["TORCHELASTIC_ERROR_FILE"], want)
	}
	rank, err := os.Create(env[EnvStdout])
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want string) {
		t.Helper()
		eventually.Holds(t, fmt.Sprintf("the console shows %q", want), func() (bool, any) {
			got, err := os.ReadFile(console.Name())
			return string(got) == want, fmt.Sprintf("%q, %v", got, err)
		})
	}
	write := func(text string) {
		if _, err := rank.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	first := j.Tail(run, false)
	write("a\nb\rc")
	shows("[r0]:a\n[r0]:b\n[r0]:c") // an incomplete line is shown after a second
	write("\n")
	shows("[r0]:a\n[r0]:b\n[r0]:c[r0]:\n")
	first.Finish()
	first.Wait(time.Minute)
	write("d\xff\nrest")
	second := j.Tail(run, true)
	second.Finish()
	second.Wait(time.Minute)
	shows("[r0]:a\n[r0]:b\n[r0]:c[r0]:\n[r0]:d\uFFFD\n[r0]:rest")
	filtered, _ := os.ReadFile(filepath.Join(dir, "logs/id_01234567/attempt_0/filtered_stdout.log"))
	if want := "[r0]:b\n[r0]:d\uFFFD\n"; string(filtered) != want {
		t.Errorf("filtered are %q, want %q", filtered, want)
	}
	if err := j.MakeLogs(run); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(env[EnvStdout]); err == nil {
		t.Error("an attempt of the same number begins with another one's output")
	}
}

// TestFolderForLogs: if a requested folder cannot be created, the launcher is refused. If no folder was requested, there are no logs.
func TestFolderForLogs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := func(argv ...string) *Launch {
		return &Launch{ID: "0123456789abcdef", Dir: dir, Argv: argv, Env: map[string]string{"TMPDIR": filepath.Join(dir, "file")}}
	}
	_, err := NewJob("/r", "m", l("python3", "-m", "torch.distributed.run", "--log-dir=file/x", "t.py"))
	if err == nil || !strings.HasPrefix(err.Error(), "--log-dir=file/x: the folder for logs cannot be created") {
		t.Error(err)
	}
	j, err := NewJob("/r", "m", l("python3", "-m", "torch.distributed.run", "t.py"))
	if err != nil || j.logsEnv(protocol.Run{}, 0)["TORCHELASTIC_ERROR_FILE"] != "" {
		t.Errorf("%v, %v", err, j.logsEnv(protocol.Run{}, 0))
	}
}

// TestOutputOfColdRanks: a rank that starts cold has its files open from the beginning, and receives no names of files.
func TestOutputOfColdRanks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	env := map[string]string{EnvStdout: path, EnvStderr: os.DevNull, "A": "b"}
	files := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	opened, err := Job{Launch: &Launch{Limits: inherited()}}.takeOutput(env, &files)
	if err != nil || len(opened) != 2 || files[1].Name() != path || files[2].Name() != os.DevNull || files[0] != os.Stdin {
		t.Errorf("%v, %v", files, err)
	}
	if len(env) != 1 {
		t.Errorf("environment %v", env)
	}
}

// TestLogsWithTheLaunchersRights: if the agent is root and the launcher is not, folders for logs are used with the rights of the launcher's
// user.
func TestLogsWithTheLaunchersRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can use files as another user")
	}
	dir := t.TempDir()
	secret, theirs := filepath.Join(dir, "root"), filepath.Join(dir, "theirs")
	own, err := identityOf(os.Getpid())
	if err = errors.Join(
		err,
		os.MkdirAll(
			secret,
			0o700,
		),
		os.WriteFile(filepath.Join(secret, "file"), []byte("kept"), 0o600),
		os.Mkdir(theirs, 0o755),
		os.Chown(theirs, 65534, 65534),
		os.Chmod(dir, 0o755),
		os.Chmod(filepath.Dir(dir), 0o755),
		os.Symlink(secret, filepath.Join(theirs, "link")),
		os.Symlink(filepath.Join(secret, "file"), filepath.Join(theirs, "file")),
	); err != nil {
		t.Fatal(err)
	}
	l := &Launch{ID: "0123456789abcdef", Dir: theirs, Env: map[string]string{}, Limits: Limits{Identity: Identity{UID: 65534, GID: 65534}}}
	for _, folder := range []string{"link", secret, "link/new"} {
		j := Job{Launch: l, Spec: launch.Spec{Ranks: 1, RunID: "id", Logs: launch.Logs{Dir: folder}}}
		_, _ = j.logsFolder(), j.MakeLogs(protocol.Run{})
	}
	j := Job{Launch: l, Spec: launch.Spec{Ranks: 1, RunID: "id", Logs: launch.Logs{Dir: "logs"}}}
	if err := errors.Join(j.logsFolder(), j.MakeLogs(protocol.Run{})); err != nil {
		t.Error(err)
	}
	for _, flags := range []int{os.O_RDONLY, os.O_WRONLY | os.O_CREATE | os.O_TRUNC} {
		if f, err := j.open(filepath.Join(theirs, "file"), flags); err == nil {
			f.Close()
			t.Errorf("a link to a file of root's was opened, flags %x", flags)
		}
	}
	inside, _ := os.ReadDir(secret)
	raw, _ := os.ReadFile(filepath.Join(secret, "file"))
	st, err := os.Stat(secret)
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 || len(inside) != 1 || string(raw) != "kept" {
		t.Errorf("root's folder is %v, %v, holds %v, and its file %q", st, err, inside, raw)
	}
	made, err := filepath.Glob(filepath.Join(theirs, "logs/id_*/attempt_0/0"))
	if err != nil || len(made) != 1 {
		t.Fatal(made, err)
	}
	if st, err = os.Stat(made[0]); err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("the folder for logs is not the launcher's: %v, %v", st, err)
	}
	if now, err := identityOf(os.Getpid()); err != nil || !now.equal(own) {
		t.Errorf("this process runs as %+v, %v, and did as %+v", now, err, own)
	}
}
