package launch

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// deepSpeedLaunch is the module that deepspeed's runner starts on each node and that starts the ranks there.
const deepSpeedLaunch = "deepspeed.launcher.launch"

// DeepSpeed has what deepspeed's launcher does differently from torch's.
type DeepSpeed struct {
	// Devices are those that all ranks of a pod see, in the form of CUDA_VISIBLE_DEVICES.
	Devices string `json:"devices"`
	// NoLocalRank: the script does not get --local_rank=N.
	NoLocalRank bool `json:"noLocalRank,omitempty"`
}

// deepSpeedLaunchOptions are those of deepspeed.launcher.launch as of deepspeed 0.19; true: a value follows.
var deepSpeedLaunchOptions = map[string]bool{
	"node_rank": true, "master_addr": true, "master_port": true, "world_info": true, "module": false, "no_python": false, "no_local_rank": false, "save_pid": true,
	"enable_each_rank_log": true, "bind_cores_to_rank": false, "bind_core_list": true, "log_level": true, "quiet": false,
}

const remedyPods = "without a hostfile this is a separate training on each pod: give --hostfile with all pods of the job, or use torchrun before the script"

// parseDeepSpeed parses the command line of deepspeed.launcher.launch, after its name. parseDeepSpeed ignores master address and node rank,
// which the coordinator decides.
func parseDeepSpeed(python, args []string) (Spec, error) {
	s := Spec{
		Python:          python[:1],
		Role:            "default",
		RunID:           "none",
		ShutdownTimeout: DefaultShutdownTimeout,
		NodesFlag:       "deepspeed",
		NodesRemedy:     remedyPods,
		DeepSpeed:       &DeepSpeed{},
	}
	given, rest, err := deepSpeedLaunchFlags(args)
	if err != nil {
		return Spec{}, err
	}
	for _, name := range []string{"enable_each_rank_log", "bind_cores_to_rank", "bind_core_list", "save_pid"} {
		if v, ok := given[name]; ok && v.v != "None" && v.v != "0" {
			return Spec{}, refuse(v.as, "is not honoured under holdfast", remedyDrop)
		}
	}
	for _, name := range []string{"node_rank", "master_addr", "master_port"} {
		if v, ok := given[name]; ok {
			s.Superseded = append(s.Superseded, v.as)
		}
	}
	_, s.Module = given["module"]
	_, s.NoPython = given["no_python"]
	_, s.DeepSpeed.NoLocalRank = given["no_local_rank"]
	switch {
	case s.Module && s.NoPython:
		return Spec{}, refuse("--no_python", "cannot be given together with --module", "choose one of them")
	case len(rest) == 0:
		return Spec{}, refuse("training_script", "is missing", "name the script to run")
	}
	if r := s.setWorld(given["world_info"]); r != nil {
		return Spec{}, r
	}
	s.Script, s.Args = rest[0], rest[1:]
	return s, nil
}

// setWorld sets nodes, ranks and devices from deepspeed's world info.
func (s *Spec) setWorld(info value) *Refusal {
	raw, err := base64.URLEncoding.DecodeString(info.v)
	var world map[string][]int
	if err == nil {
		err = json.Unmarshal(raw, &world)
	}
	if err != nil || len(world) == 0 {
		return refuse("--world_info", "cannot be read", "start the job with deepspeed itself")
	}
	first := true
	for host, devices := range world {
		var names []string
		for _, d := range devices {
			names = append(names, strconv.Itoa(d))
		}
		list := strings.Join(names, ",")
		if !first && list != s.DeepSpeed.Devices || len(devices) == 0 {
			return refuse("--hostfile", fmt.Sprintf("gives %s other devices than the other hosts", host), "give each pod of the job the same")
		}
		first, s.DeepSpeed.Devices, s.Ranks = false, list, len(devices)
	}
	s.Nodes = len(world)
	return tooMany("--hostfile", s.Ranks)
}

// deepSpeedLaunchFlags parses the options before the script.
func deepSpeedLaunchFlags(args []string) (map[string]value, []string, *Refusal) {
	given := map[string]value{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' {
			return given, args[i:], nil
		}
		name, v, inline := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if arg == "-q" {
			name = "quiet"
		}
		takes, ok := deepSpeedLaunchOptions[name]
		switch {
		case !ok:
			return nil, nil, refuse(arg, "is not a flag of deepspeed's launcher that holdfast knows", RemedyPlain)
		case takes && !inline && i+1 < len(args):
			i++
			v = args[i]
		case takes && !inline:
			return nil, nil, refuse(arg, "expects a value", "write "+arg+"=VALUE")
		}
		given[name] = value{v, arg}
	}
	return given, nil, nil
}

// DeepSpeedHere returns the command line by which deepspeed's runner starts the ranks of this pod alone, if argv would make it connect to
// other hosts by ssh: their agents start the ranks there. hosts: a file exists at the runner's default path for hosts.
func DeepSpeedHere(argv []string, hosts bool) []string {
	given, _ := deepSpeedFlags(argv)
	_, file := given["hostfile"]
	if _, apart := given["no_ssh"]; apart || !file && !hosts {
		return argv
	}
	at := 1
	if path.Base(argv[0]) != "deepspeed" {
		for at < len(argv) && !strings.Contains(argv[at], "deepspeed") {
			at++
		}
		at = min(at+1, len(argv))
	}
	// The user's options follow and override these.
	return append(append(append([]string{}, argv[:at]...), "--no_ssh", "--node_rank=0", "--master_addr=127.0.0.1"), argv[at:]...)
}
