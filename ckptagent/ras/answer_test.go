package ras

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/protocol"
)

// own is process 0 of composed answers.
var own = Own{100, []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::7"), netip.MustParseAddr("10.0.0.0")}}

func readText(text string, world int) ([]protocol.RankFault, error) {
	return read(bufio.NewReader(strings.NewReader(text)), world, own)
}

// faulty is a gang of 16 ranks on two nodes, where each kind of fault occurs.
func faulty(version string) string {
	world, half := ranks(16, 0, 1), ranks(8, 1, 2)
	world[2].async = 2                   // ncclSystemError
	world[3].async, world[4].init = 6, 7 // others failed; under way
	world[5].launched[4]--
	gone := []missing{{rank: 14, process: 14, unresponsive: true}, {rank: 15, process: -1, dead: true}}
	half[4].launched[2]-- // of process 9
	half[6].async = 1     // of process 13
	return compose(version,
		communicator{8, half[:7], []missing{{rank: 7, process: 15, unresponsive: true, dead: true}}},
		communicator{16, world[:14], gone},
		communicator{2, ranks(1, 6, 1), []missing{{rank: 1, process: 7}}}, // its process answered: it is in no such communicator
	)
}

// TestAnswers reads answers as two versions write them. testdata has them as text; they are composed by NCCL's source, not recorded.
func TestAnswers(t *testing.T) {
	want := []protocol.RankFault{
		{Rank: 2, Fault: protocol.FaultError},
		{Rank: 5, Fault: protocol.FaultBehind},
		{Rank: 9, Fault: protocol.FaultBehind},
		{Rank: 13, Fault: protocol.FaultError},
		{Rank: 14, Fault: protocol.FaultSilent},
		{Rank: 15, Fault: protocol.FaultSilent},
	}
	for _, version := range []string{"2.28.9", "2.30.7"} {
		golden.File(t, "testdata/composed-"+version+".json", faulty(version))
		raw, err := os.ReadFile("testdata/composed-" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readText(string(raw), 16); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", version, got, err)
		}
	}
}

// TestWhatIsNoFault: a gang that works, half of a communicator that is behind, members of a group that cannot be named, a wide failure.
func TestWhatIsNoFault(t *testing.T) {
	half, group := ranks(4, 0, 1), ranks(4, 0, 2)
	half[2].launched[0], half[3].launched[0] = 0, 0
	group[3].launched[0] = 0
	var wide []missing
	for i := range protocol.MaxLookFaults + 1 {
		wide = append(wide, missing{rank: 64 + i, process: 64 + i, unresponsive: true})
	}
	for name, c := range map[string]struct {
		world int
		text  string
	}{
		"none":                   {4, compose("2.30.7", communicator{4, ranks(4, 0, 1), nil})},
		"one that has left it":   {4, compose("2.30.7", communicator{4, ranks(3, 0, 1), []missing{{rank: 3, process: 3}}})},
		"no communicators":       {4, compose("2.30.7")},
		"no majority":            {4, compose("2.30.7", communicator{4, half, nil})},
		"no communicator of all": {8, compose("2.30.7", communicator{4, group, nil})},
		"too many faults":        {128, compose("2.30.7", communicator{128, ranks(64, 0, 1), wide})},
		"a process that is unknown": {
			8, compose("2.30.7", communicator{8, ranks(8, 0, 1), nil}, communicator{4, group[:3], []missing{{3, -1, true, true}}}),
		},
	} {
		if got, err := readText(c.text, c.world); err != nil || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestAbsurdAnswers are discarded as a whole.
func TestAbsurdAnswers(t *testing.T) {
	twice := ranks(4, 0, 1)
	twice[1].rank = 0
	moved := ranks(4, 0, 1)
	moved[1].process, moved[2].process = 2, 1
	good := faulty("2.30.7")
	twins := ranks(4, 0, 1)
	twins[3].process = 2
	late, other := ranks(16, 0, 1), ranks(16, 16, 1)
	late[5].launched[0] = 0
	for name, c := range map[string]string{
		"empty":                     "",
		"cut":                       good[:len(good)-3],
		"text":                      "NCCL version 2.27.3 compiled with CUDA 12.9\n",
		"a list":                    "[1,2]",
		"more ranks than the gang":  compose("2.30.7", communicator{17, ranks(17, 0, 1), nil}),
		"more members than ranks":   compose("2.30.7", communicator{4, ranks(5, 0, 1), nil}),
		"a negative rank":           compose("2.30.7", communicator{4, nil, []missing{{-1, 1, true, true}}}),
		"a rank twice":              compose("2.30.7", communicator{4, twice, nil}),
		"a process with two ranks":  compose("2.30.7", communicator{16, ranks(16, 0, 1), nil}, communicator{16, moved, nil}),
		"another gang":              strings.ReplaceAll(good, `"pid": 100,`, `"pid": 99,`),
		"the same number elsewhere": strings.ReplaceAll(good, `"host": "10.0.0.0"`, `"host": "10.0.0.9"`),
		"no address of rank 0":      strings.ReplaceAll(good, `"host": "10.0.0.0"`, `"host": "gpu-00"`),
		"two processes are rank 0":  compose("2.30.7", communicator{16, late, nil}, communicator{16, other[:1], nil}),
		"a process twice in a part": compose("2.30.7", communicator{16, ranks(16, 0, 1), nil}, communicator{4, twins, nil}),
		"no size":                   `{"communicators": [{"ranks": [], "missing_ranks": []}]}`,
		"a rank that is no number":  `{"communicators": [{"size": 4, "ranks": [{"rank": "0"}]}]}`,
		"a rank that is huge":       `{"communicators": [{"size": 4, "ranks": [{"rank": 99999999999999999999}]}]}`,
		"a size that is a fraction": `{"communicators": [{"size": 4.5}]}`,
		"a flag that is none":       `{"communicators": [{"size": 4, "missing_ranks": [{"status": {"unresponsive": 7}}]}]}`,
		"deep":                      strings.Repeat(`{"a":[`, 1<<16),
		"a long text":               `{"` + strings.Repeat("x", 1<<20) + `": 1}`,
		"a long number":             `{"a": ` + strings.Repeat("1", 1<<20) + `}`,
		"brackets that differ":      `{"communicators": [}`,
		"bytes":                     "{\x00\xff}",
	} {
		if got, err := readText(c, 16); err == nil || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestTheHostOfRank0: NCCL names it by any address of the pod.
func TestTheHostOfRank0(t *testing.T) {
	for _, host := range []string{"10.0.0.0", "127.0.0.1", "fe80::7%eth0", "::ffff:10.0.0.0"} {
		text := strings.ReplaceAll(faulty("2.30.7"), `"host": "10.0.0.0"`, `"host": "`+host+`"`)
		if got, err := readText(text, 16); err != nil || len(got) != 6 {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
}

// TestMembersAreBounded: what is kept of a communicator is bounded while it is read, not at its end.
func TestMembersAreBounded(t *testing.T) {
	text := `{"communicators": [{"size": 4, "ranks": [` + strings.Repeat("{}", 1000)
	if _, err := readText(text, 16); err == nil || !strings.Contains(err.Error(), "more ranks than the gang") {
		t.Error(err)
	}
}

// TestALargeGang: the largest gang that is asked, in eight communicators, fits.
func TestALargeGang(t *testing.T) {
	var comms []communicator
	gone := []missing{{rank: MostRanks - 1, process: MostRanks - 1, dead: true}}
	for range 8 {
		comms = append(comms, communicator{MostRanks, ranks(MostRanks-1, 0, 1), gone})
	}
	text := compose("2.30.7", comms...)
	got, err := readText(text, MostRanks)
	if err != nil || len(got) != 1 || got[0] != (protocol.RankFault{Rank: MostRanks - 1, Fault: protocol.FaultSilent}) {
		t.Errorf("%v, %v", got, err)
	}
	if len(text) > mostAnswer || len(text) < mostAnswer/2 {
		t.Errorf("the answer has %d bytes, and at most %d are read", len(text), mostAnswer)
	}
}

// FuzzAnswer: whatever listens on the port, what is reported is bounded, and of ranks of the gang.
func FuzzAnswer(f *testing.F) {
	f.Add(faulty("2.28.9"), 16)
	f.Add(compose("2.30.7", communicator{2, ranks(1, 0, 1), []missing{{1, 1, true, false}}}), 2)
	f.Add(`{"communicators" [{"size" 1 "ranks" [{"rank" 0 "pid" 1 "status" {"async_error" 1}}]}]}`, 1)
	f.Fuzz(func(t *testing.T, text string, world int) {
		if world < 1 || world > MostRanks {
			return
		}
		got, err := readText(text, world)
		if err != nil && got != nil || len(got) > protocol.MaxLookFaults {
			t.Fatalf("%v, %v", got, err)
		}
		last := -1
		for _, g := range got {
			if g.Rank <= last || g.Rank >= world || g.Fault < protocol.FaultSilent || g.Fault > protocol.FaultBehind {
				t.Fatalf("%v in a gang of %d", got, world)
			}
			last = g.Rank
		}
	})
}
