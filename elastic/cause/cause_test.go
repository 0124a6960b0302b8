package cause

import (
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"holdfast.dev/holdfast/internal/protocol"
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

// exit returns a rank's exit at a time of its node's clock.
func exit(rank, code, signal, atMs int, traceback string) Exit {
	return Exit{
		rank,
		rank / 2,
		protocol.Exit{Code: code, Signal: signal, At: t0.Add(time.Duration(atMs) * time.Millisecond), Traceback: traceback},
	}
}

// The tracebacks in testdata were written by PyTorch 2.15 with gloo on three ranks.
func TestFirst(t *testing.T) {
	peer, reset, late := text(t, "raise.0"), text(t, "kill.2"), text(t, "hang.0")
	mine := "Traceback (most recent call last):\n  File \"train.py\", line 3, in receive\n    raise Lost()\nLost: rank 1 does not answer"
	gone := "Traceback (most recent call last):\n  File \"train.py\", line 3, in receive\n    raise ConnectionError(\"a peer is gone\")\nConnectionError: a peer is gone"
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
		{"kill -9 that was seen late: peers speak in the script's own words", []Exit{exit(0, 1, 0, 1, mine), exit(1, 137, 9, 4000, ""), exit(2, 1, 0, 2, mine)}, RankKilled, 1, 2, "9 (SIGKILL)"},
		{"who says that a peer is gone comes after who says anything else", []Exit{exit(0, 1, 0, 1, gone), exit(1, 1, 0, 9, text(t, "raise.1"))}, RankFailed, 1, 1, "ValueError"},
		{"a SIGTERM just after an exception may be of who cleans up", []Exit{exit(0, 1, 0, 1, text(t, "raise.1")), exit(1, 143, 15, 300, "")}, RankFailed, 0, 1, "ValueError"},
		{"a kill long after an exception", []Exit{exit(0, 1, 0, 1, text(t, "raise.1")), exit(1, 137, 9, 6000, "")}, RankFailed, 0, 1, "ValueError"},
		{"abort", []Exit{exit(0, 1, 0, 1, text(t, "abort.0")), exit(1, 134, 6, 2, "")}, RankFailed, 1, 1, "6 (SIGABRT)"},
		{"sys.exit", []Exit{exit(0, 1, 0, 1, peer), exit(1, 3, 0, 2, "")}, RankFailed, 1, 1, "exit code 3"},
		{"no memory", []Exit{exit(0, 1, 0, 1, peer), exit(1, 1, 0, 2, text(t, "oom.1"))}, RankFailed, 1, 1, "DefaultCPUAllocator"},
		{"a peer hung: who lost patience comes before who lost its peer", []Exit{exit(0, 1, 0, 9, late), exit(1, 1, 0, 1, text(t, "hang.1"))}, RankFailed, 0, 1, "Timed out waiting"},
		{"who lost its peer while it waited only lost it", []Exit{exit(0, 1, 0, 9, late), exit(1, 1, 0, 1, strings.TrimSpace(peer)+", timeout")}, RankFailed, 0, 1, "Timed out waiting"},
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

// These texts were written by PyTorch and NCCL.
const (
	watchdog = "[rank2]:[E616 03:31:38.928463388 ProcessGroupNCCL.cpp:684] [Rank 2] To avoid data inconsistency, we are taking the entire process down.\n" +
		"terminate called after throwing an instance of 'c10::DistBackendError'\n" +
		"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, NumelOut=152064, Timeout(ms)=600000) ran for 600071 milliseconds before timing out."
	remote = "Traceback (most recent call last):\n  File \"/app/train.py\", line 40, in <module>\n    loss.backward()\n" +
		"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5\n" +
		"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 172.16.0.4<33759> failed : Connection reset by peer"
	system = "Traceback (most recent call last):\n  File \"/app/train.py\", line 12, in <module>\n    model = DDP(model)\n" +
		"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n" +
		"ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
	misused = "Traceback (most recent call last):\n  File \"/app/train.py\", line 12, in <module>\n    dist.barrier()\n" +
		"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1287, invalid usage, NCCL version 2.17.1\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."
	advice = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)

func cuda(what string) string {
	return "Traceback (most recent call last):\n  File \"/app/train.py\", line 33, in step\n    loss = model(x)\n" + what + advice
}

func TestSuspect(t *testing.T) {
	damaged := "Traceback (most recent call last):\n  File \"/app/train.py\", line 9, in f\n    g()\nholdfast.RestoreError: restoring step 5: the 64 bytes " +
		"that rank 0 gave do not have the checksum with which its agent sealed them: nothing was restored"
	own := "Traceback (most recent call last):\n  File \"/app/train.py\", line 9, in f\n    g()\nValueError: x"
	for name, c := range map[string]struct {
		exits []Exit
		rank  int
		want  Suspect
	}{
		"an uncorrectable ECC error":                       {[]Exit{exit(1, 1, 0, 5, cuda("RuntimeError: CUDA error: uncorrectable ECC error encountered")), exit(0, 1, 0, 1, remote)}, 1, SuspectMemory},
		"the same by its name":                             {[]Exit{exit(1, 1, 0, 5, cuda("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable' in"))}, 1, SuspectMemory},
		"a link":                                           {[]Exit{exit(1, 1, 0, 5, cuda("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"))}, 1, SuspectMemory},
		"a peer is gone for an unknown reason":             {[]Exit{exit(1, 1, 0, 5, remote)}, 1, SuspectRemote},
		"a peer is gone, and says why":                     {[]Exit{exit(1, 1, 0, 1, remote), exit(0, 1, 0, 5, own)}, 0, ""},
		"a system error":                                   {[]Exit{exit(1, 1, 0, 5, system)}, 1, SuspectSystem},
		"the watchdog, with its words":                     {[]Exit{exit(2, 134, 6, 5, watchdog)}, 2, SuspectWatchdog},
		"the watchdog, by a peer's words":                  {[]Exit{exit(0, 134, 6, 1, ""), exit(2, 134, 6, 5, watchdog)}, 0, SuspectWatchdog},
		"the watchdog, of several":                         {[]Exit{exit(0, 134, 6, 3, ""), exit(2, 134, 6, 1, "")}, 2, SuspectWatchdog},
		"the watchdog's victim, and who says more":         {[]Exit{exit(0, 134, 6, 1, ""), exit(1, 134, 6, 2, ""), exit(2, 1, 0, 9, own)}, 2, ""},
		"the watchdog's victim, and who was killed":        {[]Exit{exit(0, 134, 6, 1, ""), exit(1, 134, 6, 2, ""), exit(2, 137, 9, 9, "")}, 2, ""},
		"one that aborts alone":                            {[]Exit{exit(0, 134, 6, 1, ""), exit(2, 1, 0, 5, text(t, "abort.0"))}, 0, ""},
		"an illegal instruction":                           {[]Exit{exit(3, 132, 4, 1, ""), exit(0, 1, 0, 5, remote)}, 3, SuspectInstruction},
		"a bus error":                                      {[]Exit{exit(3, 135, 7, 1, "")}, 3, SuspectBus},
		"a segmentation fault":                             {[]Exit{exit(3, 139, 11, 1, "")}, 3, ""},
		"a device-side assert":                             {[]Exit{exit(1, 1, 0, 5, cuda("RuntimeError: CUDA error: device-side assert triggered"))}, 1, ""},
		"a device-side assert that the watchdog saw first": {[]Exit{exit(1, 134, 6, 5, "[PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered")}, 1, ""},
		"an illegal access":                                {[]Exit{exit(1, 1, 0, 5, cuda("RuntimeError: CUDA error: an illegal memory access was encountered"))}, 1, ""},
		"CUDA out of memory":                               {[]Exit{exit(1, 1, 0, 5, cuda("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."))}, 1, ""},
		"NCCL out of memory":                               {[]Exit{exit(1, 1, 0, 5, cuda("torch.distributed.DistBackendError: NCCL error, ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"))}, 1, ""},
		"NCCL misused":                                     {[]Exit{exit(1, 1, 0, 5, misused)}, 1, ""},
		"a loader's worker and /dev/shm":                   {[]Exit{exit(1, 1, 0, 5, cuda("RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."))}, 1, ""},
		"a state that was given":                           {[]Exit{exit(2, 1, 0, 5, damaged), exit(0, 1, 0, 6, remote)}, 2, SuspectTransfer},
		"an exception":                                     {[]Exit{exit(1, 1, 0, 5, own)}, 1, ""},
	} {
		got, ok := First(c.exits)
		if !ok || got.Suspect != c.want || got.Rank != c.rank {
			t.Errorf("%s: %q of rank %d, want %q of rank %d: %+v", name, got.Suspect, got.Rank, c.want, c.rank, got)
		}
		if got.External() != (c.want != "" || got.Code == RankKilled) {
			t.Errorf("%s: External = %v", name, got.External())
		}
	}
}

// TestAccused: a peer is at fault if several pods name it, and no other peer is named as often.
func TestAccused(t *testing.T) {
	lost := func(rank int, peers ...string) Exit {
		text := remote
		for i, p := range peers {
			if i == 0 {
				text = strings.Replace(text, "172.16.0.4", p, 1)
			} else {
				text += "\nNET/IB : Got completion from peer " + p + "<38139> with error 12, opcode 0, len 0, vendor err 129"
			}
		}
		return exit(rank, 1, 0, rank, text)
	}
	for name, c := range map[string]struct {
		exits []Exit
		want  string
	}{
		"by two pods":               {[]Exit{lost(0, "10.0.0.3"), lost(2, "10.0.0.3")}, "10.0.0.3"},
		"by two ranks of one pod":   {[]Exit{lost(0, "10.0.0.3"), lost(1, "10.0.0.3")}, ""},
		"by one pod":                {[]Exit{lost(0, "10.0.0.3")}, ""},
		"each another one":          {[]Exit{lost(0, "10.0.0.3"), lost(2, "10.0.0.1")}, ""},
		"two of them as often":      {[]Exit{lost(0, "10.0.0.3", "10.0.0.4"), lost(2, "10.0.0.3", "10.0.0.4")}, ""},
		"of IPv6":                   {[]Exit{lost(0, "fd00:10:244::3"), lost(2, "10.0.0.4", "FD00:10:244:0::3")}, "fd00:10:244::3"},
		"of IPv6, by an interface":  {[]Exit{lost(0, "fe80::3%eth0"), lost(2, "fe80::3%ib1")}, "fe80::3"},
		"of IPv4 within IPv6":       {[]Exit{lost(0, "::ffff:10.0.0.3"), lost(2, "10.0.0.3")}, "10.0.0.3"},
		"no address":                {[]Exit{lost(0, "a:1:2:3:4:5:6:7:8:9"), lost(2, "a:1:2:3:4:5:6:7:8:9")}, ""},
		"most of them the same one": {[]Exit{lost(0, "10.0.0.3"), lost(2, "10.0.0.3"), lost(4, "10.0.0.3", "10.0.0.1"), lost(6, "10.0.0.1")}, "10.0.0.3"},
	} {
		if got, ok := First(c.exits); !ok || got.Accused != c.want {
			t.Errorf("%s: %q, want %q", name, got.Accused, c.want)
		}
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
		{"called from elsewhere", one(1, tb("  File \"/app/b.py\", line 1, in g\nE: x")), one(2, strings.Replace(tb("  File \"/app/b.py\", line 1, in g\nE: x"), "line 9", "line 8", 1)), true},
		{"another place, called from the same one", one(1, tb("  File \"/app/b.py\", line 1, in g\nE: x")), one(1, tb("  File \"/app/b.py\", line 2, in g\nE: x")), false},
		{"trimmed to the last frame", one(1, "File \"/app/a.py\", line 9, in f\nE: x"), one(2, "File \"/app/a.py\", line 9, in f\nE: x"), true},
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
		{"ab\ncd", 5, "ab\ncd"},
		{"aaaa\nbbbb\ncccc\ndd", 7, "cccc\ndd"},
		{"éééé", 6, "é…"},
		{"a😀😀", 7, "a…"},
		{"abcdef", 2, "…"},
	} {
		if got := Tail(c.in, c.limit); got != c.want {
			t.Errorf("Tail(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

// TestFirstOfSilentOnes: an exit code that a script chooses comes before an abort, whichever was earlier. If one rank aborted and the
// others were ended, the watchdog is not the cause.
func TestFirstOfSilentOnes(t *testing.T) {
	got, _ := First([]Exit{exit(0, 134, 6, 1, ""), exit(1, 3, 0, 9, "")})
	if got.Rank != 1 || got.Weak {
		t.Errorf("%+v", got)
	}
	got, _ = First([]Exit{exit(0, 134, 6, 9, ""), exit(1, 139, 11, 1, "")})
	if got.Rank != 1 || got.Suspect != "" {
		t.Errorf("%+v", got)
	}
	if got, _ = First([]Exit{exit(0, 134, 6, 9, ""), exit(1, 1, 0, 1, "")}); got.Rank != 0 || got.Suspect != "" || got.Weak {
		t.Errorf("%+v", got)
	}
}

// TestWeak: a cause that only follows from another one is marked as weak. The cause of a watchdog's abort names what the watchdog waited
// for.
func TestWeak(t *testing.T) {
	const waits = "it waited for other ranks in a collective"
	for name, c := range map[string]struct {
		exits []Exit
		weak  bool
		says  bool
	}{
		"the watchdog, of several":          {[]Exit{exit(0, 134, 6, 3, ""), exit(2, 134, 6, 1, "")}, true, true},
		"the watchdog, with its words":      {[]Exit{exit(2, 134, 6, 5, watchdog)}, true, false},
		"a peer's connection":               {[]Exit{exit(0, 1, 0, 5, text(t, "raise.0"))}, true, false},
		"an exception":                      {[]Exit{exit(1, 1, 0, 3, text(t, "raise.1"))}, false, false},
		"an abort alone":                    {[]Exit{exit(1, 134, 6, 2, "")}, false, false},
		"an illegal instruction":            {[]Exit{exit(3, 132, 4, 1, "")}, false, false},
		"a collective that took too long":   {[]Exit{exit(0, 1, 0, 9, text(t, "hang.0"))}, true, false},
		"an exception in a line about time": {[]Exit{exit(1, 1, 0, 3, "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    torch.distributed.all_reduce(x, timeout=timeout)  # gloo\nValueError: x")}, false, false},
		"an exit code 1 that says nothing":  {[]Exit{exit(0, 1, 0, 9, "")}, true, false},
	} {
		got, _ := First(c.exits)
		if got.Weak != c.weak || strings.Contains(got.Message, waits) != c.says {
			t.Errorf("%s: weak %v, want %v; %q", name, got.Weak, c.weak, got.Message)
		}
	}
}

func TestRestoreFailed(t *testing.T) {
	restoring := func(code, signal int, traceback string) []Exit {
		return []Exit{{Exit: protocol.Exit{Code: code, Signal: signal, Traceback: traceback, Restoring: true}}}
	}
	for name, c := range map[string]struct {
		exits []Exit
		want  Code
	}{
		"raises":                {restoring(1, 0, "holdfast._kinds.RestoreError: restoring step 4: opt: other groups"), RestoreFailed},
		"says nothing":          {restoring(1, 0, ""), RestoreFailed},
		"crashes":               {restoring(139, 11, ""), RestoreFailed},
		"has no memory":         {restoring(1, 0, "torch.OutOfMemoryError: CUDA out of memory"), RestoreFailed},
		"is killed":             {restoring(137, 9, ""), RankKilled},
		"lost its peer":         {restoring(1, 0, "torch.distributed.DistBackendError: NCCL error: remote process exited"), RankFailed},
		"has a broken GPU":      {restoring(1, 0, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), RankFailed},
		"another one failed so": {append(restoring(1, 0, "RuntimeError: [gloo/transport] Connection closed by peer"), Exit{Rank: 1, Exit: protocol.Exit{Code: 1, Traceback: "ValueError: x"}}), RankFailed},
	} {
		if got, _ := First(c.exits); got.Code != c.want || got.Restoring != c.exits[got.Rank].Restoring {
			t.Errorf("%s: %s, restoring %v, want %s", name, got.Code, got.Restoring, c.want)
		}
	}
}

func TestDisplaced(t *testing.T) {
	for code, want := range map[Code]bool{PodReplaced: true, JobSuspended: true, LauncherStarted: true, PodLost: false, RankFailed: false} {
		if got := (Cause{Code: code}).Displaced(); got != want {
			t.Errorf("%s: Displaced = %v, want %v", code, got, want)
		}
	}
}

// TestCrashed: a device may be at fault for what native code reports, not for what the script reports.
func TestCrashed(t *testing.T) {
	for want, all := range map[bool][]Cause{
		true: {
			{Code: RankFailed, Signal: 11, Message: "signal 11 (SIGSEGV) ended the process"},
			{Code: RankFailed, Signal: 11, Message: "Fatal Python error: Segmentation fault"},
			{Code: RankFailed, ExitCode: 1, Message: "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    x.item()\ntorch.AcceleratorError: CUDA error: unspecified launch failure"},
			{Code: RankFailed, ExitCode: 1, Message: "torch.distributed.DistBackendError: NCCL error in: x.cu:1, internal error"},
		},
		false: {
			{Code: RankFailed, ExitCode: 1, Message: "ValueError: loss is nan"},
			{Code: RankFailed, ExitCode: 3, Message: "the process ended with exit code 3 and wrote no traceback"},
			{Code: RankFailed, ExitCode: 1, Message: "torch.OutOfMemoryError: CUDA out of memory"},
			{Code: RankFailed, ExitCode: 1, Message: "RuntimeError: CUDA error: an illegal memory access was encountered"},
			{Code: RankFailed, Signal: 6, Message: "RuntimeError: CUDA error: device-side assert triggered"},
			{Code: RankKilled, Signal: 9, Message: "signal 9 (SIGKILL) from outside ended the process"},
			{Code: Desync, Message: "CUDA error"},
		},
	} {
		for _, c := range all {
			if c.Crashed() != want {
				t.Errorf("Crashed is %v: %q", !want, c.Message)
			}
		}
	}
}

func TestExternal(t *testing.T) {
	for code, want := range map[Code]bool{
		RankKilled:   true,
		PodLost:      true,
		PodReplaced:  true,
		RanksLost:    true,
		PortConflict: true,
		RankFailed:   false,
	} {
		if got := (Cause{Code: code}).External(); got != want {
			t.Errorf("%s: External = %v, want %v", code, got, want)
		}
	}
}

// TestPrintable: the text has no control sequence of a terminal, and shows which characters were there.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"a\tb\n  Grüße, 世界 “…”":               "a\tb\n  Grüße, 世界 “…”",
		"\x1b]0;title\a\x1b[2Jgone\rover\x7f": `\x1b]0;title\a\x1b[2Jgone\rover\x7f`,
		"\u009b31m \u202etxt.exe \xff":        `\u009b31m \u202etxt.exe \xff`,
		"a replacement: \ufffd":               "a replacement: \ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// TestEnds: of a long text the first line stays, and as many of the last ones as fit.
func TestEnds(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("one more line\n", n) }
	for name, c := range map[string]struct{ text, begins, ends string }{
		"short":                {"no step\nis over", "no step\nis over", "is over"},
		"many lines":           {"no step\n" + lines(50) + "is over\n", "no step\n…\none more line\n", "\none more line\nis over"},
		"a long first line":    {strings.Repeat("é", 100) + "\n" + lines(9) + "is over", "éé", "\nis over"},
		"a long last line":     {"no step\n" + lines(9) + strings.Repeat("é", 100), "no step\n…\néé", "é…"},
		"one line, and no end": {strings.Repeat("é", 100), "éé", "é…"},
	} {
		got := Ends(c.text, 100)
		if !strings.HasPrefix(got, c.begins) || !strings.HasSuffix(got, c.ends) || len(got) > 100 || !utf8.ValidString(got) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestTransfer: the client's error is known by its words, and is no evidence against the step.
func TestTransfer(t *testing.T) {
	client, err := os.ReadFile("../../ckptagent/python/holdfast/_donor.py")
	if err != nil || !strings.Contains(string(client), transferWords) {
		t.Errorf("the client does not say %q: %v", transferWords, err)
	}
	e := exit(2, 1, 0, 5, "holdfast.RestoreError: the 64 bytes that rank 0 gave "+transferWords)
	e.Restoring = true
	if c, _ := First([]Exit{e}); c.Code != RankFailed || c.Refuses() {
		t.Errorf("%+v", c)
	}
}
