//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/seeds"
)

// option is one flag of the installed torchrun.
type option struct {
	Options []string `json:"options"`
	Boolean bool     `json:"boolean"`
	// Env is the variable with its default; empty: none.
	Env     string   `json:"env"`
	Type    string   `json:"type"`
	Choices []string `json:"choices"`
}

type parser struct {
	Torch string   `json:"torch"`
	Flags []option `json:"flags"`
}

// long is the flag's spelling in Holdfast's parser.
func (o option) long() string {
	return strings.ReplaceAll(o.Options[slices.IndexFunc(o.Options, func(s string) bool { return strings.HasPrefix(s, "--") })], "_", "-")
}

// samples are values of flags that differ from the default and are not arbitrary text.
var samples = map[string]string{
	"--nnodes": "2", "--nproc-per-node": "2", "--redirects": "1", "--tee": "3", "--local-ranks-filter": "1", "--start-method": "fork", "--log-dir": "logs",
	"--rdzv-conf": "timeout=3", "--rdzv-endpoint": "host:1", "--signals-to-handle": "SIGUSR1",
}

func (o option) sample() string {
	if v, ok := samples[o.long()]; ok {
		return v
	}
	switch {
	case len(o.Choices) > 0:
		return o.Choices[0]
	case o.Type == "int":
		return "3"
	case o.Type == "float":
		return "0.5"
	}
	return "word"
}

// without are flags that change nothing if ranks are programs, also with torchrun.
var without = map[string]string{
	"--start-method": "torch reads it only where the entrypoint is a function",
}

// outcome is the result of a command line: it acts, is superseded, is refused, or changes nothing.
func outcome(argv []string, env map[string]string) string {
	got, err := launch.Parse(append([]string{"torchrun"}, argv...), env)
	var refusal *launch.Refusal
	switch {
	case errors.As(err, &refusal):
		return "refused: " + refusal.Error()
	case len(got.Superseded) > 0:
		return "superseded"
	}
	if plain, _ := launch.Parse([]string{"torchrun", "t.py"}, nil); reflect.DeepEqual(got, plain) {
		return "nothing"
	}
	return "acts"
}

// TestFlags: each flag of the installed torchrun, in each of its spellings and as a variable, acts, is superseded or is refused by its
// name. A flag of a newer PyTorch fails the test.
func TestFlags(t *testing.T) {
	got := ask[parser](t, "flags")[0]
	if len(got.Flags) < 20 {
		t.Fatalf("PyTorch %s names %d flags", got.Torch, len(got.Flags))
	}
	for _, o := range got.Flags {
		var all []string
		for _, spelling := range o.Options {
			argv := []string{spelling, o.sample(), "t.py"}
			if o.Boolean {
				argv = []string{spelling, "t.py"}
			}
			said := outcome(argv, nil)
			switch {
			case strings.Contains(said, "is not a flag"), said == "nothing" && without[o.long()] == "":
				t.Errorf("PyTorch %s: %s: %s", got.Torch, argv, said)
			case strings.HasPrefix(said, "refused") && !strings.HasPrefix(said, "refused: "+spelling):
				t.Errorf("PyTorch %s: %s is refused by another name: %s", got.Torch, argv, said)
			}
			kind, _, _ := strings.Cut(said, ":")
			all = append(all, kind)
		}
		if len(slices.Compact(all)) != 1 {
			t.Errorf("PyTorch %s: %s: not all the same: %v", got.Torch, o.Options, all)
		}
		value := o.sample()
		if o.Boolean {
			value = "1"
		}
		want := all[0]
		name := o.Env
		if name == "" { // read from no variable, not even from one with its name
			name, want = "PET_"+strings.ToUpper(strings.ReplaceAll(o.long()[2:], "-", "_")), "nothing"
		}
		if said, _, _ := strings.Cut(outcome([]string{"t.py"}, map[string]string{name: value}), ":"); said != want {
			t.Errorf("PyTorch %s: %s=%s: %s, want %s", got.Torch, name, value, said, want)
		}
	}
}

// line is one command line after the launcher's name.
type line struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env"`
}

// started is what torchrun would start, in the form that a Python launcher passes to the agent; or why it refuses.
type started struct {
	Refused    string   `json:"refused"`
	Config     string   `json:"config"`
	Command    []string `json:"command"`
	Standalone bool     `json:"standalone"`
}

// difference is an allowed difference: a text of the error, an example, the reason.
type difference struct {
	text   string
	line   line
	reason string
}

// stricter command lines are refused by Holdfast and not by torchrun; lenient ones by torchrun and not by Holdfast.
var (
	stricter = []difference{
		{"is not honoured", line{Argv: []string{"--numa-binding=node", "t.py"}}, "docs/launchers.md names these flags: without them the job would be another one than was asked for"},
		{"is not a number of processes that holdfast can count", line{Argv: []string{"--nproc-per-node=0", "t.py"}}, "torch refuses it later"},
		{"is not a whole number", line{Argv: []string{"--master-port=-1", "t.py"}}, "torch refuses numbers below zero later, or never checks them"},
		{"is not a start method", line{Argv: []string{"t.py"}, Env: map[string]string{"PET_START_METHOD": "thread"}}, "from a variable torch accepts any word without a check"},
	}
	lenient = []difference{
		{"ambiguous option", line{Argv: []string{"--nproc=2", "t.py"}}, "a prefix that fits the two spellings of one flag is unambiguous"},
		{"invalid literal for int()", line{Argv: []string{"--standalone", "t.py"}, Env: map[string]string{"PET_STANDALONE": "x"}}, "a variable that the command line overrules is not read"},
	}
)

// verdict describes what is wrong if only one of the two refuses a command line.
func verdict(err error, theirs string) string {
	list, said, who := lenient, theirs, "torchrun"
	if err != nil {
		list, said, who = stricter, err.Error(), "holdfast"
	}
	if (err == nil) == (theirs == "") || slices.ContainsFunc(list, func(d difference) bool { return strings.Contains(said, d.text) }) {
		return ""
	}
	return fmt.Sprintf("refused by %s alone: %s", who, said)
}

// ambiguousByNewer reports whether a short form is refused for a flag that the installed torch does not have yet.
func ambiguousByNewer(err error, flags []option) bool {
	if err == nil {
		return false
	}
	_, list, found := strings.Cut(err.Error(), "is ambiguous: it could be ")
	list, _, _ = strings.Cut(list, ";")
	known := 0
	for name := range strings.SplitSeq(list, ", ") {
		if slices.ContainsFunc(flags, func(o option) bool { return o.long() == name }) {
			known++
		}
	}
	return found && known < 2
}

func parse(l line) (launch.Spec, error) {
	return launch.Parse(append([]string{"torchrun"}, l.Argv...), l.Env)
}

// TestCommandLinesThatDiffer: each listed difference exists.
func TestCommandLinesThatDiffer(t *testing.T) {
	var lines []any
	for _, d := range append(slices.Clone(stricter), lenient...) {
		lines = append(lines, d.line)
	}
	for i, want := range ask[started](t, "lines", lines...) {
		d := append(slices.Clone(stricter), lenient...)[i]
		_, err := parse(d.line)
		switch here := i < len(stricter); {
		case here && (err == nil || !strings.Contains(err.Error(), d.text)), !here && err != nil:
			t.Errorf("%+v: here %v", d.line, err)
		case !asIs():
		case here && want.Refused != "", !here && !strings.Contains(want.Refused, d.text):
			t.Errorf("%+v is no longer a difference (%s): torchrun says %q, here %v", d.line, d.reason, want.Refused, err)
		}
	}
}

// TestCommandLines compares random command lines with the installed torchrun: what both accept starts the same ranks; what torchrun refuses
// is refused.
func TestCommandLines(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seeds.Fresh(t), 0))
	flags := ask[parser](t, "flags")[0].Flags
	var lines []any
	for range 2000 {
		lines = append(lines, randomLine(rnd, flags))
	}
	took, refused := 0, 0
	for i, want := range ask[started](t, "lines", lines...) {
		l := lines[i].(line)
		got, err := parse(l)
		switch wrong := verdict(err, want.Refused); {
		case wrong != "" && ambiguousByNewer(err, flags):
		case wrong != "":
			t.Errorf("%q %v: %s", l.Argv, l.Env, wrong)
		case err == nil && want.Refused == "":
			took++
			for _, d := range differ(t, got, want) {
				t.Errorf("%q %v: %s", l.Argv, l.Env, d)
			}
		case err != nil && want.Refused != "":
			refused++
		}
	}
	if took < len(lines)/6 || refused < len(lines)/6 {
		t.Errorf("%d of %d command lines were taken by both and %d refused by both: too few of them", took, len(lines), refused)
	}
}

// differ lists the differences of two readings of a command line: Holdfast's, and torch's own as a Python launcher passes it to the agent.
func differ(t *testing.T, got launch.Spec, want started) (out []string) {
	t.Helper()
	theirs, err := launch.Parse(append([]string{launch.APICommand, want.Config}, want.Command...), nil)
	if err != nil {
		return []string{err.Error()}
	}
	got, err = got.Resolve(0, theirs.Ranks) // no GPUs; as many processors as torch counted
	if err != nil {
		return []string{err.Error()}
	}
	command := append([]string{theirs.Script}, theirs.Args...)
	if !got.NoPython {
		words := []string{command[0], "-u"}
		if got.Module {
			words = append(words, "-m")
		}
		if len(command) < len(words) || !slices.Equal(command[:len(words)], words) {
			out = append(out, fmt.Sprintf("torchrun starts %q", command))
		}
		command = command[min(len(words), len(command)):]
	}
	if ours := append([]string{got.Script}, got.Args...); !slices.Equal(ours, command) {
		out = append(out, fmt.Sprintf("starts %q, torchrun %q", ours, command))
	}
	if theirs.Logs.Dir != "" && got.Logs.Dir == "" && strings.HasPrefix(path.Base(theirs.Logs.Dir), "torchelastic_") {
		theirs.Logs.Dir = "" // torch has created one already
	}
	got.Logs.DirFlag = ""
	if got.Nodes == 0 {
		got.Nodes = 1
	}
	theirs.Logs.Ranks, got.Logs.Ranks = set(theirs.Logs.Ranks), set(got.Logs.Ranks)
	for name, pair := range map[string][2]any{
		"ranks": {got.Ranks, theirs.Ranks}, "nodes": {got.Nodes, theirs.Nodes}, "role": {got.Role, theirs.Role}, "run id": {got.RunID, theirs.RunID},
		"restarts": {got.MaxRestarts, theirs.MaxRestarts}, "own device": {got.VirtualLocalRank, theirs.VirtualLocalRank}, "timeout": {got.ShutdownTimeout, theirs.ShutdownTimeout},
		"logs": {got.Logs, theirs.Logs},
	} {
		if name == "nodes" && want.Standalone {
			continue // torch evaluates --standalone later than the rest
		}
		if ours, theirs := fmt.Sprintf("%+v", pair[0]), fmt.Sprintf("%+v", pair[1]); ours != theirs { // an empty list equals none
			out = append(out, fmt.Sprintf("%s %s, torchrun %s", name, ours, theirs))
		}
	}
	return out
}

func set(ranks []int) []int {
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// words are the parts of random command lines, besides flags and their samples.
var words = []string{"t.py", "t.py", "pkg.train", "--", "-", "-1", "-1.5", "", "a b", "-x y", "--lr", "-m", "$local_rank", "0", "é"}

func randomLine(rnd *rand.Rand, flags []option) line {
	l := line{Env: map[string]string{}}
	for _, i := range rnd.Perm(len(flags))[:rnd.IntN(4)] { // each once: with two, argparse checks both values
		o := flags[i]
		value := o.value(rnd)
		switch {
		case o.Env != "" && rnd.IntN(5) == 0:
			if o.Boolean {
				value = []string{"0", "1", "2", "x"}[rnd.IntN(4)]
			}
			l.Env[o.Env] = value
		default:
			l.Argv = append(l.Argv, o.spelled(rnd, value)...)
		}
	}
	if rnd.IntN(6) == 0 {
		l.Argv = append(l.Argv, words[rnd.IntN(len(words))])
	}
	l.Argv = append(l.Argv, "t.py")
	for range rnd.IntN(4) {
		l.Argv = append(l.Argv, words[rnd.IntN(len(words))])
	}
	return l
}

// value is a valid value of the flag, or perhaps an invalid one.
func (o option) value(rnd *rand.Rand) string {
	switch rnd.IntN(8) {
	case 0:
		if word := words[rnd.IntN(len(words))]; word != "--" { // argparse removes it from a flag's values
			return word
		}
	case 1:
		return []string{"0", "1", "4", "1:1", "0:3,1:1", "1:2", "cpu", "auto", "a,,b,c", "3.5", ",", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "null"}[rnd.IntN(13)]
	}
	return o.sample()
}

// spelled is one of the spellings of a flag and its value.
func (o option) spelled(rnd *rand.Rand, value string) []string {
	name := o.Options[rnd.IntN(len(o.Options))]
	long := strings.HasPrefix(name, "--")
	if long && rnd.IntN(6) == 0 { // a prefix, which may fit several
		name = name[:len(name)-rnd.IntN(len(name)-2)]
	}
	switch {
	case o.Boolean && rnd.IntN(8) == 0:
		return []string{name + "=1"}
	case o.Boolean:
		return []string{name}
	case rnd.IntN(2) == 0:
		return []string{name, value}
	case long:
		return []string{name + "=" + value}
	}
	return []string{name + value}
}
