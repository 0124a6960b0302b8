package launch

import (
	"slices"
	"testing"
	"time"
)

func TestCommandTimeout(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		text string
		want time.Duration
	}{
		{argv: nil, want: NeverWhole},
		{argv: []string{"torchrun", "train.py"}, want: NeverWhole},
		{argv: []string{"python3", "-m", "torch.distributed.run", "train.py"}, want: NeverWhole},
		{argv: []string{"bash", "-c", "pip install -r r.txt && torchrun train.py"}, want: NeverWhole},
		{argv: []string{"bash", "-c", "exec /opt/venv/bin/torchrun train.py"}, want: NeverWhole},
		{argv: []string{"bash", "-c", "prep; accelerate  launch train.py"}, want: NeverWhole},
		{argv: []string{"nsys", "profile", "torchrun", "train.py"}, want: NeverWhole},
		{argv: []string{"/app/run.sh"}, text: "set -e\nprep\n  torchrun \\\n  train.py\n", want: NeverWhole},
		{argv: []string{"/app/run.sh"}, text: "# like torchrun\nmpirun -n 2 train\n", want: time.Minute},
		{argv: []string{"bash", "-c", "python train.py"}, want: time.Minute},
		{argv: []string{"bash", "-c", "python torchrunner.py --log my-torchrun"}, want: time.Minute},
		{argv: []string{"python3", "-u", "train.py", "--epochs", "3"}, want: time.Minute},
		{argv: []string{"python3", "-m", "mypackage.train"}, want: time.Minute},
		{argv: []string{"python3", "train.py", "--strategy", "deepspeed"}, want: time.Minute},
		{argv: []string{"/opt/trainer"}, want: time.Minute},
		{argv: []string{"/usr/bin/mpirun", "-n", "2", "/opt/trainer"}, want: 0},
		{argv: []string{"composer", "train.py"}, want: 0},
		{argv: []string{"accelerate", "launch", "train.py"}, want: 5 * time.Minute},
		{argv: []string{"python3", "-W", "error", "-m", "accelerate.commands.launch", "train.py"}, want: 5 * time.Minute},
	} {
		if got := CommandTimeout(tt.argv, tt.text); got != tt.want {
			t.Errorf("%q %q: %s, want %s", tt.argv, tt.text, got, tt.want)
		}
	}
}

func TestShellScripts(t *testing.T) {
	for _, tt := range []struct{ argv, want []string }{
		{[]string{"bash", "run.sh", "a"}, []string{"run.sh"}},
		{[]string{"sh", "-e", "/app/run.sh"}, []string{"/app/run.sh"}},
		{[]string{"./run", "--x"}, nil},
		{[]string{"tini", "--", "bash", "start"}, []string{"start"}},
		{[]string{"bash", "-c", "true"}, nil},
		{[]string{"bash", "--norc", "run.sh"}, []string{"run.sh"}},
		{[]string{"bash", "-euo", "pipefail", "run.sh"}, []string{"run.sh"}},
	} {
		if got := ShellScripts(tt.argv); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.argv, got, tt.want)
		}
	}
}

func TestIsPythonScript(t *testing.T) {
	for argv, want := range map[*[]string]bool{
		{"python3", "train.py"}: true, {"/usr/bin/python3.11", "-u", "-m", "train"}: true, {"python3"}: false, {"bash", "x"}: false,
		{"python", "-m", "torch.distributed.run", "train.py"}: false,
	} {
		if got := IsPythonScript(*argv); got != want {
			t.Errorf("%q: %v", *argv, got)
		}
	}
}

// TestPythonModule: the module is a word of its own, or the rest of the word with the flag, or is missing. Flags before it may take a word.
func TestPythonModule(t *testing.T) {
	for _, tt := range []struct {
		argv   []string
		module string
		ok     bool
	}{
		{[]string{"python3", "-m", "train", "x"}, "train", true},
		{[]string{"/usr/bin/python3.12", "-um", "train"}, "train", true},
		{[]string{"python", "-mtrain"}, "train", true},
		{[]string{"python", "-W", "ignore", "-m", "train"}, "train", true},
		{[]string{"python", "-m"}, "", true},
		{[]string{"python", "-c", "import x", "-m", "train"}, "-c", false}, // a program, not a module
		{[]string{"python", "train.py", "-m", "x"}, "", false},
		{[]string{"perl", "-m", "train"}, "", false},
		{nil, "", false},
	} {
		if module, ok := pythonModule(tt.argv); module != tt.module || ok != tt.ok {
			t.Errorf("%q: %q %v, want %q %v", tt.argv, module, ok, tt.module, tt.ok)
		}
	}
}
