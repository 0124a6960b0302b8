//go:build linux

package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestTails: what is teed is shown once with its prefix, to the last letter, also where another agent goes on.
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
	j := Job{Root: root, Spec: launch.Spec{Ranks: 1, Role: "r", RunID: "id", Logs: launch.Logs{Dir: "logs", Tee: launch.Streams{All: 1}, OutFilters: []string{"b", "d"}}},
		Launch: &Launch{ID: "0123456789abcdef", Dir: dir, Files: [3]*os.File{nil, console, console}}}
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
	shows("[r0]:a\n[r0]:b\n[r0]:c") // the beginning of a line waits a second
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

// TestFolderForLogs: one that was asked for and cannot be made is refused; where none was asked for there are none.
func TestFolderForLogs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := func(argv ...string) *Launch {
		return &Launch{ID: "0123456789abcdef", Dir: dir, Argv: argv, Env: map[string]string{"TMPDIR": filepath.Join(dir, "file")}}
	}
	_, err := NewJob("/r", "m", l("python3", "-m", "torch.distributed.run", "--log-dir=file/x", "t.py"))
	if err == nil || !strings.HasPrefix(err.Error(), "--log-dir=file/x: the folder for logs cannot be made") {
		t.Error(err)
	}
	j, err := NewJob("/r", "m", l("python3", "-m", "torch.distributed.run", "t.py"))
	if err != nil || j.logsEnv(protocol.Run{}, 0)["TORCHELASTIC_ERROR_FILE"] != "" {
		t.Errorf("%v, %v", err, j.logsEnv(protocol.Run{}, 0))
	}
}

// TestOutputOfColdRanks: a rank that is started cold has its files from the beginning, and is not told to open them.
func TestOutputOfColdRanks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	env := map[string]string{EnvStdout: path, EnvStderr: os.DevNull, "A": "b"}
	files := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	opened, err := takeOutput(env, &files)
	if err != nil || len(opened) != 2 || files[1].Name() != path || files[2].Name() != os.DevNull || files[0] != os.Stdin {
		t.Errorf("%v, %v", files, err)
	}
	if len(env) != 1 {
		t.Errorf("environment %v", env)
	}
}
