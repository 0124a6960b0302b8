package launch

import (
	"fmt"
	"path"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// RanksAuto is the value of Spec.Ranks while the number of ranks hangs on the devices of the pod: see Resolve.
const RanksAuto = 0

// DefaultShutdownTimeout is how long torchrun lets ranks end by themselves when it is told to stop.
const DefaultShutdownTimeout = 30 * time.Second

// Spec is what the user's launcher was asked to run on one pod.
type Spec struct {
	// Python is the interpreter and the flags given to it, as written; empty where the launcher was called
	// by its own name (torchrun) and the interpreter is the one that its installation belongs to.
	Python []string `json:"python,omitempty"`
	// Module: Script names a module (python -m). NoPython: Script is a program, not a Python file.
	Module   bool     `json:"module,omitempty"`
	NoPython bool     `json:"noPython,omitempty"`
	Script   string   `json:"script"`
	Args     []string `json:"args,omitempty"`
	// Exact: Script and Args are the command line of a rank word for word, and the environment is the launcher's, with NoPython.
	Exact bool `json:"exact,omitempty"`
	// Ranks is the number of processes on this pod; RanksAuto until Resolve has counted the devices that
	// RanksFrom ("gpu", "cpu" or "auto") names; with RanksLater nobody knows it yet.
	Ranks     int    `json:"ranks"`
	RanksFrom string `json:"ranksFrom,omitempty"`
	// Nodes is the number of pods that the launcher asked for; 0: it said nothing and the gang decides.
	Nodes int `json:"nodes,omitempty"`
	// NodesFlag is how it asked, for messages ("--nnodes=2", "--standalone").
	NodesFlag string `json:"nodesFlag,omitempty"`
	// NodesRemedy is what to do where that is not what the gang has, if it is not to leave the flag out.
	NodesRemedy string `json:"nodesRemedy,omitempty"`
	Role        string `json:"role"`
	RunID       string `json:"runID"`
	MaxRestarts int    `json:"maxRestarts"`
	// VirtualLocalRank: each rank sees its own device alone, and itself as local rank 0.
	VirtualLocalRank bool `json:"virtualLocalRank,omitempty"`
	// DeepSpeed is set where deepspeed's launcher starts the ranks: they get its arguments and variables, none of torchrun's.
	DeepSpeed *DeepSpeed `json:"deepSpeed,omitempty"`
	// Logs says where the output of ranks goes.
	Logs Logs `json:"logs,omitzero"`
	// ShutdownTimeout is how long ranks may take to end after SIGTERM.
	ShutdownTimeout time.Duration `json:"shutdownTimeout"`
	// Superseded lists, in order, the flags and variables that were given and that the coordinator decides.
	Superseded []string `json:"superseded,omitempty"`

	runPath bool
}

// Refusal is the answer to a command line that cannot be honoured.
type Refusal struct {
	// Flag is the flag, variable or argument that is refused, as the user spelled it.
	Flag   string
	Why    string
	Remedy string
}

func (r *Refusal) Error() string {
	s := r.Flag + ": " + r.Why
	if r.Remedy != "" {
		s += "; " + r.Remedy
	}
	return s
}

func refuse(flag, why, remedy string) *Refusal { return &Refusal{Flag: flag, Why: why, Remedy: remedy} }

// IsLauncher reports whether argv starts a launcher that Parse reads: torchrun by any path, a Python
// interpreter that is given torchrun's file, -m torch.distributed.run, its predecessor -m torch.distributed.launch, or
// -m deepspeed.launcher.launch.
func IsLauncher(argv []string) bool {
	_, _, ok := split(argv)
	return ok
}

// Parse reads the launcher's command line argv, its name included, and the PET_* and PYTHON_EXEC
// variables of env. The error is a *Refusal.
func Parse(argv []string, env map[string]string) (Spec, error) {
	if len(argv) > 0 && argv[0] == APICommand {
		return parseAPI(argv[1:])
	}
	if IsDeepSpeed(argv) { // handed over only where it cannot be served
		if err := CheckDeepSpeed(argv, 0, false); err != nil {
			return Spec{}, err
		}
	}
	python, rest, ok := split(argv)
	if !ok {
		name := ""
		if len(argv) > 0 {
			name = argv[0]
		}
		return Spec{}, refuse(strconv.Quote(name), "is not a launcher that holdfast knows", "use torchrun or python -m torch.distributed.run")
	}
	if r := checkInterpreter(python); r != nil {
		return Spec{}, r
	}
	if rest[0] == deepSpeedLaunch {
		return parseDeepSpeed(python, rest[1:])
	}
	spec := Spec{Python: python}
	if v := env["PYTHON_EXEC"]; v != "" {
		spec.Python = []string{v}
	}
	deprecated := rest[0] == deprecatedLauncher
	given, positional, r := options(rest[1:], deprecated)
	if r != nil {
		return Spec{}, r
	}
	values := withEnvironment(given, env)
	if r := spec.fill(values); r != nil {
		return Spec{}, r
	}
	if spec.Logs.Prefix == "" {
		spec.Logs.Prefix = env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"]
	}
	if _, said := values["nproc-per-node"]; !said && len(positional) > 1 && maybeFlag(positional[0]) {
		spec.setLater("nproc-per-node")
	}
	if len(positional) == 0 {
		return Spec{}, refuse("training_script", "is missing", "name the script (or with -m the module) to run")
	}
	spec.Script, spec.Args = positional[0], positional[1:]
	if spec.runPath { // torch looks at neither flag then
		spec.Module, spec.NoPython, spec.runPath = false, false, false
	}
	if spec.Module && spec.NoPython {
		return Spec{}, refuse("--no-python", "cannot be given together with --module", "choose one of them")
	}
	if _, useEnv := given[useEnvFlag.name]; deprecated && !useEnv {
		if spec.NoPython {
			return Spec{}, refuse("--no-python", "needs --use-env under torch.distributed.launch", "write --use-env too, or use torchrun")
		}
		spec.Args = append([]string{"--local-rank=" + localRankMacro}, spec.Args...)
	}
	return spec, nil
}

// deprecatedLauncher is torch's launcher of old: torchrun, but that it passes the local rank as an argument where --use-env is not given.
const deprecatedLauncher = "torch.distributed.launch"

// Resolve counts the ranks of a spec whose number hangs on devices.
func (s Spec) Resolve(gpus, cpus int) (Spec, error) {
	if s.Ranks != RanksAuto {
		return s, nil
	}
	n := gpus
	switch s.RanksFrom {
	case "gpu":
		if gpus == 0 {
			return s, refuse("--nproc-per-node=gpu", "this pod has no GPU", "give a number")
		}
	case "cpu":
		n = cpus
	case RanksLater:
		n = 0
	default:
		if gpus == 0 {
			n = cpus
		}
	}
	if n <= 0 {
		return s, refuse("--nproc-per-node="+s.RanksFrom, "the number of devices is unknown", "give a number")
	}
	s.Ranks = n
	return s, nil
}

// CheckNodes refuses a spec that asked for another number of pods than the gang has.
func (s Spec) CheckNodes(pods int) error {
	if s.Nodes == 0 || s.Nodes == pods {
		return nil
	}
	remedy := s.NodesRemedy
	if remedy == "" {
		remedy = "leave the flag out, or make it equal to the job's parallelism"
	}
	return refuse(s.NodesFlag, fmt.Sprintf("asks for %d, the gang has %d pods", s.Nodes, pods), remedy)
}

var pythonName = regexp.MustCompile(`^python(\d+(\.\d+)*t?)?$`)

// split separates the interpreter with its flags from the launcher's own command line; rest[0] is the
// launcher's name ("torchrun", "torch.distributed.run" or "torch.distributed.launch").
func split(argv []string) (python, rest []string, ok bool) {
	if len(argv) == 0 {
		return nil, nil, false
	}
	base := path.Base(argv[0])
	if base == "torchrun" {
		return nil, append([]string{"torchrun"}, argv[1:]...), true
	}
	if !pythonName.MatchString(base) {
		return nil, nil, false
	}
	python = []string{argv[0]}
	for i := 1; i < len(argv); i++ {
		arg := argv[i]
		if arg == "-" || arg == "--" || !strings.HasPrefix(arg, "-") {
			if path.Base(arg) == "torchrun" {
				return python, append([]string{"torchrun"}, argv[i+1:]...), true
			}
			return nil, nil, false
		}
		if arg == "--check-hash-based-pycs" && i+1 < len(argv) {
			python = append(python, arg, argv[i+1])
			i++
			continue
		}
		kept, module, takes := pythonFlag(arg)
		switch {
		case module == nil && takes && i+1 < len(argv):
			python = append(python, arg, argv[i+1])
			i++
		case module == nil:
			python = append(python, arg)
		default:
			if kept != "" {
				python = append(python, kept)
			}
			name, after := *module, argv[i+1:]
			if name == "" {
				if len(after) == 0 {
					return nil, nil, false
				}
				name, after = after[0], after[1:]
			}
			if name != "torch.distributed.run" && name != deprecatedLauncher && name != deepSpeedLaunch {
				return nil, nil, false
			}
			return python, append([]string{name}, after...), true
		}
	}
	return nil, nil, false
}

// pythonFlag reads one cluster of interpreter flags. module is set at -m: the text that follows it in
// the same argument, or empty where the next argument names it; kept is what stood before it. takes
// says that the next argument belongs to the cluster (-W, -X). A -c ends as a module that is no launcher.
func pythonFlag(arg string) (kept string, module *string, takes bool) {
	if strings.HasPrefix(arg, "--") {
		return arg, nil, false
	}
	for i := 1; i < len(arg); i++ {
		switch arg[i] {
		case 'W', 'X':
			return arg, nil, i == len(arg)-1
		case 'c':
			none := "-c"
			return "", &none, false
		case 'm':
			if i > 1 {
				kept = arg[:i]
			}
			name := arg[i+1:]
			return kept, &name, false
		}
	}
	return arg, nil, false
}

// checkInterpreter refuses interpreter flags that hide PYTHONPATH or the site module, by which the
// client and the standbys reach the ranks.
func checkInterpreter(python []string) *Refusal {
	for i := 1; i < len(python); i++ {
		arg := python[i]
		if prev := python[i-1]; i > 1 && (strings.HasSuffix(prev, "X") || strings.HasSuffix(prev, "W")) && !strings.HasPrefix(prev, "--") {
			continue
		}
		if strings.HasPrefix(arg, "--") || !strings.HasPrefix(arg, "-") {
			continue
		}
		for _, c := range arg[1:] {
			if c == 'W' || c == 'X' {
				break
			}
			if c == 'E' || c == 'I' || c == 'S' {
				return refuse("-"+string(c), "keeps the interpreter from reading PYTHONPATH or its site module", remedyPlain)
			}
		}
	}
	return nil
}

// value is one option as given: v, and how the user spelled it.
type value struct {
	v, as string
}

var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

// isValue reports whether argparse would take arg as the value of the option before it.
func isValue(arg string) bool {
	return len(arg) < 2 || arg[0] != '-' || negativeNumber.MatchString(arg) || strings.Contains(arg, " ")
}

// options reads flags up to the first positional argument, which and all after which are the script's.
func options(args []string, deprecated bool) (map[string]value, []string, *Refusal) {
	given := map[string]value{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return given, args[i+1:], nil
		}
		if len(arg) < 2 || arg[0] != '-' || negativeNumber.MatchString(arg) || maybeFlag(arg) {
			return given, args[i:], nil
		}
		var used int
		var r *Refusal
		if strings.HasPrefix(arg, "--") {
			used, r = long(given, arg, args[i+1:], deprecated)
		} else {
			used, r = short(given, arg, args[i+1:])
		}
		if r != nil {
			return nil, nil, r
		}
		i += used
	}
	return given, nil, nil
}

// long reads --name, --name=v or --name v and says how many further arguments it took.
func long(given map[string]value, arg string, next []string, deprecated bool) (int, *Refusal) {
	name, v, inline := strings.Cut(arg[2:], "=")
	f, could := byLong(name, deprecated)
	if f == nil && len(could) > 0 {
		return 0, refuse("--"+name, "is ambiguous: it could be "+strings.Join(could, ", "), "write the flag in full")
	}
	if f == nil {
		return 0, refuse("--"+name, "is not a flag of torchrun that holdfast knows", remedyPlain)
	}
	as := "--" + name
	if f.boolean {
		if inline {
			return 0, refuse(as, "takes no value", "write "+as)
		}
		given[f.name] = value{"1", as}
		return 0, nil
	}
	used := 0
	if !inline {
		if len(next) == 0 || !isValue(next[0]) {
			return 0, refuse(as, "expects a value", "write "+as+"=VALUE")
		}
		v, used = next[0], 1
	}
	given[f.name] = value{v, as + "=" + v}
	return used, nil
}

// short reads a cluster such as -m, -t3, -mr 3.
func short(given map[string]value, arg string, next []string) (int, *Refusal) {
	for i := 1; i < len(arg); i++ {
		as := "-" + string(arg[i])
		f := byShort(arg[i])
		if f == nil {
			return 0, refuse(as, "is not a flag of torchrun that holdfast knows", remedyPlain)
		}
		if f.boolean {
			given[f.name] = value{"1", as}
			continue
		}
		if v := strings.TrimPrefix(arg[i+1:], "="); v != "" {
			given[f.name] = value{v, as + " " + v}
			return 0, nil
		}
		if len(next) == 0 || !isValue(next[0]) {
			return 0, refuse(as, "expects a value", "write "+as+" VALUE")
		}
		given[f.name] = value{next[0], as + " " + next[0]}
		return 1, nil
	}
	return 0, nil
}

// withEnvironment adds what PET_* variables say about options that the command line did not give.
func withEnvironment(given map[string]value, env map[string]string) map[string]value {
	for _, f := range flags {
		if _, ok := given[f.name]; ok || f.noEnv {
			continue
		}
		if v, ok := env[f.envName()]; ok {
			given[f.name] = value{v, f.envName() + "=" + v}
		}
	}
	return given
}

// fill carries the values over, in the order of their names so that the first refusal is always the same.
func (s *Spec) fill(values map[string]value) *Refusal {
	s.Ranks, s.Role, s.RunID, s.ShutdownTimeout = 1, "default", "none", DefaultShutdownTimeout
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		f, _ := byLong(name, true)
		val := values[name]
		if !known(val.v) {
			s.setLater(name)
			continue
		}
		if f.boolean {
			n, err := strconv.Atoi(strings.TrimSpace(val.v))
			if err != nil {
				return refuse(val.as, "is not a number", "write 1 or 0")
			}
			if n == 0 {
				continue
			}
		}
		if f.handling == refused {
			if !f.boolean && f.passes(val.v) {
				continue
			}
			return refuse(val.as, "is not honoured under holdfast", f.remedy)
		}
		if r := s.set(name, val); r != nil {
			return r
		}
		if f.handling == superseded {
			s.Superseded = append(s.Superseded, val.as)
		}
	}
	return nil
}

// set takes one option that is honoured or superseded.
func (s *Spec) set(name string, val value) *Refusal {
	switch name {
	case "nproc-per-node":
		return s.setRanks(val)
	case "nnodes":
		return s.setNodes(val)
	case "standalone": // read after nnodes: a rendezvous on localhost is one node, whatever else was said
		s.Nodes, s.NodesFlag = 1, val.as
	case "role":
		s.Role = val.v
	case "rdzv-id":
		s.RunID = val.v
	case "module":
		s.Module = true
	case "no-python":
		s.NoPython = true
	case "virtual-local-rank":
		s.VirtualLocalRank = true
	case "run-path":
		s.runPath = true
	case "log-dir", "redirects", "tee", "log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters":
		return s.Logs.set(name, val)
	case "max-restarts":
		n, r := number(val, 0)
		s.MaxRestarts = n
		return r
	case "shutdown-timeout":
		n, r := number(val, 0)
		s.ShutdownTimeout = time.Duration(n) * time.Second
		return r
	case "start-method":
		if v := val.v; v != "spawn" && v != "fork" && v != "forkserver" {
			return refuse(val.as, "is not a start method", "use spawn, fork or forkserver")
		}
	case "node-rank":
		_, r := number(val, 0)
		return r
	case "master-port":
		_, r := number(val, 0)
		return r
	case "monitor-interval":
		if _, err := strconv.ParseFloat(val.v, 64); err != nil {
			return refuse(val.as, "is not a number", "give seconds")
		}
	}
	return nil
}

func (s *Spec) setRanks(val value) *Refusal {
	switch val.v {
	case "auto", "gpu", "cpu":
		s.Ranks, s.RanksFrom = RanksAuto, val.v
		return nil
	}
	n, err := strconv.Atoi(val.v)
	if err != nil || n < 1 {
		return refuse(val.as, "is not a number of processes that holdfast can count", "give a number from 1 on, or gpu, cpu or auto")
	}
	s.Ranks = n
	return nil
}

func (s *Spec) setNodes(val value) *Refusal {
	low, high, isRange := strings.Cut(val.v, ":")
	lo, err := strconv.Atoi(low)
	hi := lo
	if err == nil && isRange {
		hi, err = strconv.Atoi(high)
	}
	if err != nil || lo < 1 || hi < lo {
		return refuse(val.as, "is not a number of nodes", "give the number of pods of the job")
	}
	if lo != hi {
		return refuse(val.as, "asks for a changing number of nodes, which is not honoured", "give the number of pods of the job, or leave the flag out")
	}
	s.Nodes, s.NodesFlag = lo, val.as
	return nil
}

func number(val value, least int) (int, *Refusal) {
	n, err := strconv.Atoi(strings.TrimSpace(val.v))
	if err != nil || n < least {
		return 0, refuse(val.as, "is not a whole number", fmt.Sprintf("give a number from %d on", least))
	}
	return n, nil
}
