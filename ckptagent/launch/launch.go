package launch

import (
	"fmt"
	"strconv"
	"time"
)

// RanksAuto is the value of Spec.Ranks until Resolve has counted the pod's devices.
const RanksAuto = 0

// DefaultShutdownTimeout is how long torchrun waits for ranks to end after SIGTERM.
const DefaultShutdownTimeout = 30 * time.Second

// Spec is what the user's launcher must run on one pod.
type Spec struct {
	// Python is the interpreter with its flags, as written; empty if the launcher was called by its own name (torchrun): then it is the
	// interpreter of that installation.
	Python []string `json:"python,omitempty"`
	// Module: Script names a module (python -m). NoPython: Script is a program, not a Python file.
	Module   bool     `json:"module,omitempty"`
	NoPython bool     `json:"noPython,omitempty"`
	Script   string   `json:"script"`
	Args     []string `json:"args,omitempty"`
	// Exact: with NoPython, Script and Args are a rank's exact command line, and its environment is the launcher's.
	Exact bool `json:"exact,omitempty"`
	// Ranks is the number of processes in this pod; RanksAuto until Resolve has counted the devices of kind RanksFrom ("auto", "cpu", "gpu"
	// or another); with RanksLater it is unknown.
	Ranks     int    `json:"ranks"`
	RanksFrom string `json:"ranksFrom,omitempty"`
	// Nodes is the number of pods that the launcher requests; 0: the gang decides.
	Nodes int `json:"nodes,omitempty"`
	// MinNodes is the least number of pods that the launcher requests, if it requests a range up to Nodes; 0: it requests no range.
	MinNodes int `json:"minNodes,omitempty"`
	// NodesFlag is the flag that requests it, for messages ("--nnodes=2", "--standalone").
	NodesFlag string `json:"nodesFlag,omitempty"`
	// NodesRemedy is the remedy for another number than the gang has; empty: leave the flag out.
	NodesRemedy string `json:"nodesRemedy,omitempty"`
	Role        string `json:"role"`
	RunID       string `json:"runID"`
	// MaxRestarts is the launcher's limit of restarts; MaxRestartsSaid: a flag or a variable sets it.
	MaxRestarts     int  `json:"maxRestarts"`
	MaxRestartsSaid bool `json:"maxRestartsSaid,omitempty"`
	// VirtualLocalRank: each rank sees only its own device, as local rank 0.
	VirtualLocalRank bool `json:"virtualLocalRank,omitempty"`
	// DeepSpeed is set if deepspeed's launcher starts the ranks: they get its arguments and variables instead of torchrun's.
	DeepSpeed *DeepSpeed `json:"deepSpeed,omitempty"`
	// Logs configures the output of ranks.
	Logs Logs `json:"logs,omitzero"`
	// ShutdownTimeout is how long ranks may take to end after SIGTERM.
	ShutdownTimeout time.Duration `json:"shutdownTimeout"`
	// Superseded lists, in order, the given flags and variables that the coordinator's decisions replace.
	Superseded []string `json:"superseded,omitempty"`

	runPath bool
}

// Refusal is the error for a command line that is not supported.
type Refusal struct {
	// Flag is the refused flag, variable or argument, as the user spelled it.
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

// IsLauncher reports whether argv starts a launcher that Parse supports: torchrun by any path, or a Python interpreter with torchrun's
// file, -m torch.distributed.run, its predecessor -m torch.distributed.launch, or -m deepspeed.launcher.launch.
func IsLauncher(argv []string) bool {
	_, _, ok := split(argv)
	return ok
}

// Parse parses the launcher's command line argv, with its name, and the PET_* and PYTHON_EXEC variables of env. The error is a *Refusal.
func Parse(argv []string, env map[string]string) (Spec, error) {
	if len(argv) > 0 && argv[0] == APICommand {
		return parseAPI(argv[1:])
	}
	if IsDeepSpeed(argv) { // the runner is passed on only if it is not supported
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
	if spec.runPath { // torch ignores both flags then
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

// deprecatedLauncher is torch's old launcher: torchrun, except that without --use-env it passes the local rank as an argument.
const deprecatedLauncher = "torch.distributed.launch"

// AsksDevices returns the kind of device by which ranks are counted; "": the number is given.
func (s Spec) AsksDevices() string {
	if s.Ranks != RanksAuto || s.RanksFrom == "cpu" || s.RanksFrom == RanksLater {
		return ""
	}
	return s.RanksFrom
}

// Resolve sets the number of ranks from the number of devices of the spec's kind.
func (s Spec) Resolve(devices, cpus int) (Spec, error) {
	if s.Ranks != RanksAuto {
		return s, nil
	}
	n := devices
	switch kind := s.AsksDevices(); {
	case s.RanksFrom == "cpu", kind == "auto" && n == 0:
		n = cpus
	case s.RanksFrom == RanksLater:
		n = 0
	case n == 0:
		return s, refuse("--nproc-per-node="+kind, "this pod has no device of that kind that its interpreter sees", "give a number, or auto")
	}
	if n <= 0 {
		return s, refuse("--nproc-per-node="+s.RanksFrom, "the number of devices is unknown", "give a number, and set holdfast.dev/ranks to it")
	}
	if r := tooMany("--nproc-per-node="+s.RanksFrom, n); r != nil {
		return s, r
	}
	s.Ranks = n
	return s, nil
}

// CheckNodes refuses a spec that requests another number of pods than the gang has.
func (s Spec) CheckNodes(pods int) error {
	if s.Nodes == 0 || s.Nodes == pods {
		return nil
	}
	remedy := s.NodesRemedy
	if remedy == "" {
		remedy = fmt.Sprintf("leave the flag out, or write %d", pods)
	}
	return refuse(s.NodesFlag, fmt.Sprintf("requests %d, the gang has %d pods", s.Nodes, pods), remedy)
}
