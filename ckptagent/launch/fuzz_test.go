package launch

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// words returns the words of a fuzzed text: one per line.
func words(text string) []string { return strings.Split(text, "\n") }

// FuzzParse reads lines as a launcher's command line, and lines PET_*=value before it as variables. An accepted command line can be
// started. For any other the error names the flag as it was written, with a reason and a remedy.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"torchrun train.py", "torchrun\n--nproc-per-node=2\n--nnodes\n2\ntrain.py\n--lr\n1", "PET_NNODES=2\nPET_TEE=0:3,1:1\ntorchrun\n-mr\n0\npkg", "python3\n-u\n-X\ndev\n-m\ntorch.distributed.run\n--standalone\n--\nt.py\n--",
		"python\n-m\ntorch.distributed.launch\n--use-env\n--no-python\nx", "torchrun\n--nproc-per-node=\x00\nt.py", "torchrun\n\x00\nt.py", "torch.distributed.launcher.api\n{\"min_nodes\":1,\"max_nodes\":1,\"nproc_per_node\":2}\npython\n-u\nt.py",
		"python\n-m\ndeepspeed.launcher.launch\n--world_info=eyJhIjpbMCwxXX0=\n--node_rank=0\nt.py", "deepspeed\n--hostfile\nh\nt.py", "torchrun\n--shutdown-timeout=99999999999\n--max-restarts=-1\nt.py", "torchrun\n--nproc-per-node=9999999999\nt.py",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		argv, env := words(text), map[string]string{}
		for len(argv) > 1 && strings.HasPrefix(argv[0], "PET_") {
			name, v, _ := strings.Cut(argv[0], "=")
			env[name], argv = v, argv[1:]
		}
		s, err := Parse(argv, env)
		again, same := Parse(argv, env)
		if !reflect.DeepEqual(s, again) || !reflect.DeepEqual(err, same) {
			t.Fatal("read twice, read differently")
		}
		var r *Refusal
		switch {
		case err != nil && !errors.As(err, &r):
			t.Fatalf("refused without a flag: %v", err)
		case err != nil && (r.Flag == "" || r.Why == "" || r.Remedy == ""):
			t.Fatalf("refused without a flag, a reason or a remedy: %+v", r)
		case err != nil && len(err.Error()) > 8*len(text)+2000:
			t.Fatalf("a refusal of %d bytes for %d", len(err.Error()), len(text))
		case err != nil:
			return
		}
		started(t, s)
	})
}

// started does with the parsed command line what an agent does.
func started(t *testing.T, s Spec) {
	t.Helper()
	if s.Ranks < 0 || s.Ranks > protocol.MaxRanks || s.Ranks == RanksAuto && s.RanksFrom == "" || s.Nodes < 0 || s.MaxRestarts < 0 ||
		s.ShutdownTimeout < 0 {
		t.Fatalf("taken: %+v", s)
	}
	if s.Module && s.NoPython {
		t.Fatalf("both a module and a program: %+v", s)
	}
	s, err := s.Resolve(0, 4)
	if err != nil {
		return
	}
	for local := range min(s.Ranks, 3) {
		args := s.RankArgs(local)
		if extra := len(args) - len(s.Args); extra < 0 || extra > 1 {
			t.Fatalf("%d arguments become %d", len(s.Args), len(args))
		}
	}
	_ = s.StartsPython()
	s.Ranks = min(s.Ranks, 3)
	files := s.Files(Attempt{ID: "0123456789abcdef", Temp: "/tmp"})
	if len(files.Rank) != s.Ranks {
		t.Fatalf("files of %d ranks for %d", len(files.Rank), s.Ranks)
	}
	_ = s.CheckNodes(1)
}

// FuzzPlain: any shell text is parsed to its end. The words consist of its letters. If the text has no quotes and no expansions, its words
// are those between spaces and operators.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"a && b 'c' \"$d\" $(e) `f` ${g} 2>&1 # h\n\\", "cd /w; exec torchrun --nproc-per-node=$N t.py >log 2>&1 &", "A=1 B='x y' python -m x", "if a; then b; fi", "a \\\n b", "x<<E\ny\nE", "$((1))", "${a", "a $(b (c) d) e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first := Plain([]string{"sh", "-c", text})
		if !reflect.DeepEqual(first, Plain([]string{"sh", "-c", text})) {
			t.Fatal("read twice, read differently")
		}
		bytes := 0
		for _, command := range first {
			if len(command) == 0 {
				t.Fatal("a command without a word")
			}
			for _, word := range command {
				bytes += len(word)
				if !strings.ContainsAny(text, "'\"\\$`\x00") && (!strings.Contains(text, word) || strings.ContainsAny(word, " \t\r\n;&|<>()")) {
					t.Fatalf("%q is no word of %q", word, text)
				}
			}
			if IsDeepSpeed(command) {
				_ = CheckDeepSpeed(command, 2, false)
			}
		}
		if bytes > len(text) {
			t.Fatalf("%d bytes of words from %d", bytes, len(text))
		}
		_ = CommandTimeout([]string{"sh", "-c", text}, text)
	})
}
