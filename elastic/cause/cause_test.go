package cause

import (
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"
)

var t0 = time.Unix(1_700_000_000, 0)

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// exit is a rank's end at a time that its node's clock showed.
func exit(rank, code, signal, atMs int, traceback string) Exit {
	return Exit{Rank: rank, Slot: rank / 2, Code: code, Signal: signal, At: t0.Add(time.Duration(atMs) * time.Millisecond), Traceback: traceback}
}

// The tracebacks under testdata were written by PyTorch 2.15 with gloo on three ranks.
func TestFirst(t *testing.T) {
	peer, reset, late := text(t, "raise.0"), text(t, "kill.2"), text(t, "hang.0")
	cases := []struct {
		name    string
		exits   []Exit
		code    Code
		rank    int
		cascade int
		message string
	}{
		{"exception and cascade", []Exit{exit(0, 1, 0, 5, peer), exit(1, 1, 0, 3, text(t, "raise.1")), exit(2, 1, 0, 4, peer)}, RankFailed, 1, 2, "ValueError: loss is nan at step 3"},
		{"clock of the first one's node is late", []Exit{exit(0, 1, 0, 5, peer), exit(1, 1, 0, 9000, text(t, "raise.1"))}, RankFailed, 1, 1, "ValueError"},
		{"kill -9", []Exit{exit(0, 1, 0, 1, reset), exit(1, 137, 9, 4, ""), exit(2, 1, 0, 2, reset)}, RankKilled, 1, 2, "9 (SIGKILL)"},
		{"kill -9 of rank 0", []Exit{exit(0, 137, 9, 0, ""), exit(1, 1, 0, 2, peer)}, RankKilled, 0, 1, "SIGKILL"},
		{"abort", []Exit{exit(0, 1, 0, 1, text(t, "abort.0")), exit(1, 134, 6, 2, "")}, RankFailed, 1, 1, "6 (SIGABRT)"},
		{"sys.exit", []Exit{exit(0, 1, 0, 1, peer), exit(1, 3, 0, 2, "")}, RankFailed, 1, 1, "exit code 3"},
		{"no memory", []Exit{exit(0, 1, 0, 1, peer), exit(1, 1, 0, 2, text(t, "oom.1"))}, RankFailed, 1, 1, "DefaultCPUAllocator"},
		{"a peer hung: who lost patience comes before who lost its peer", []Exit{exit(0, 1, 0, 9, late), exit(1, 1, 0, 1, text(t, "hang.1"))}, RankFailed, 0, 1, "Timed out waiting"},
		{"the store's port was taken", []Exit{exit(0, 1, 0, 9, text(t, "port.0")), exit(1, 1, 0, 1, text(t, "nostore.1"))}, PortConflict, 0, 1, "EADDRINUSE"},
		{"a port of the script is its own bug", []Exit{exit(0, 1, 0, 9, "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    s.bind()\nOSError: [Errno 98] Address already in use")}, RankFailed, 0, 0, "Errno 98"},
		{"only cascade is left: the earliest", []Exit{exit(0, 1, 0, 9, peer), exit(2, 1, 0, 7, reset)}, RankFailed, 2, 1, "reset by peer"},
		{"a download's connection is vague, yet better than a torn collective", []Exit{exit(0, 1, 0, 1, peer), exit(2, 1, 0, 7, "Traceback (most recent call last):\n  File \"data.py\", line 8, in get\n    urlopen(u)\nConnectionResetError: [Errno 104] Connection reset by peer")}, RankFailed, 2, 1, "Errno 104"},
		{"what a handler raised later does not hide the first exception", []Exit{exit(0, 1, 0, 1, peer), exit(1, 1, 0, 8, text(t, "raise.1")+"\n\nDuring handling of the above exception, another exception occurred:\n\n"+peer)}, RankFailed, 1, 1, "ValueError"},
		{"nor is a handler's own exception the first after a torn collective", []Exit{exit(0, 1, 0, 1, peer+"\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"a.py\", line 3, in clean\n    x\nNameError: x"), exit(1, 1, 0, 8, text(t, "raise.1"))}, RankFailed, 1, 1, "ValueError"},
		{"an exit whose traceback was not caught yields to one that speaks", []Exit{exit(0, 1, 0, 1, ""), exit(1, 1, 0, 8, text(t, "raise.1"))}, RankFailed, 1, 1, "ValueError"},
		{"ranks that ended well do not count", []Exit{exit(0, 0, 0, 1, ""), exit(1, 5, 0, 8, "")}, RankFailed, 1, 0, "exit code 5"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for seed := range 6 {
				shuffled := append([]Exit(nil), c.exits...)
				rand.New(rand.NewSource(int64(seed))).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
				got, ok := First(shuffled)
				if !ok || got.Code != c.code || got.Rank != c.rank || got.Cascade != c.cascade || !strings.Contains(got.Message, c.message) {
					t.Fatalf("First = %+v, %v; want %s of rank %d, cascade %d, message with %q", got, ok, c.code, c.rank, c.cascade, c.message)
				}
			}
		})
	}
}

func TestFirstOfNothing(t *testing.T) {
	if c, ok := First([]Exit{exit(0, 0, 0, 1, "")}); ok {
		t.Fatalf("First of good exits = %+v", c)
	}
}

func TestSame(t *testing.T) {
	one := func(rank int, message string) Cause {
		return Cause{Code: RankFailed, Rank: rank, ExitCode: 1, Message: message}
	}
	tb := func(line string) string {
		return "Traceback (most recent call last):\n  File \"/app/a.py\", line 9, in f\n    g()\n" + line
	}
	cases := []struct {
		name string
		a, b Cause
		want bool
	}{
		{"equal", one(1, tb("ValueError: x")), one(1, tb("ValueError: x")), true},
		{"same bug on another rank", one(1, tb("ValueError: x")), one(2, tb("ValueError: x")), true},
		{"another message", one(1, tb("ValueError: x")), one(1, tb("ValueError: y")), false},
		{"another step", one(1, tb("ValueError: bad loss at step 12")), one(1, tb("ValueError: bad loss at step 13")), false},
		{"addresses differ", one(1, tb("E: <obj at 0x7f00aa> from 10.0.0.1:4711, pid 99")), one(1, tb("E: <obj at 0x7fffff> from 10.0.0.2:1, pid 7")), true},
		{"another place", one(1, tb("ValueError: x")), one(1, strings.Replace(tb("ValueError: x"), "line 9", "line 10", 1)), false},
		{"another exit code", one(1, tb("x")), Cause{Code: RankFailed, Rank: 1, ExitCode: 2, Message: tb("x")}, false},
		{"silent exit of the same rank", one(1, "the process ended with exit code 3"), one(1, "the process ended with exit code 3"), true},
		{"silent exit of another rank", one(1, "the process ended with exit code 3"), one(2, "the process ended with exit code 3"), false},
		{"one of them trimmed", one(1, tb("ValueError: x")), one(1, Tail(strings.Repeat("older line\n", 50)+tb("ValueError: x"), 100)), true},
	}
	for _, c := range cases {
		if got := Same(c.a, c.b); got != c.want {
			t.Errorf("%s: Same = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"a\nb\n", 10, "a\nb"},
		{"aaaa\nbbbb\ncc", 7, "bbbb\ncc"},
		{"aaaa\nbbbb\ncc", 8, "bbbb\ncc"},
		{"x\n" + strings.Repeat("é", 10), 9, "ééé…"},
	} {
		if got := Tail(c.in, c.limit); got != c.want {
			t.Errorf("Tail(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

func TestExternal(t *testing.T) {
	for code, want := range map[Code]bool{RankKilled: true, PodLost: true, PodReplaced: true, RanksLost: true, PortConflict: true, RankFailed: false} {
		if got := (Cause{Code: code}).External(); got != want {
			t.Errorf("%s: External = %v, want %v", code, got, want)
		}
	}
}
