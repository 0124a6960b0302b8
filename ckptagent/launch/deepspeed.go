package launch

import (
	"fmt"
	"path"
	"strings"
)

// deepSpeedOptions are the options of deepspeed's runner as of deepspeed 0.19; true: a value follows.
var deepSpeedOptions = map[string]bool{
	"hostfile": true, "include": true, "exclude": true, "num_nodes": true, "min_elastic_nodes": true, "max_elastic_nodes": true, "num_gpus": true,
	"num_accelerators": true, "master_port": true, "master_addr": true, "node_rank": true, "launcher": true, "launcher_args": true,
	"enable_each_rank_log": true, "autotuning": true, "comment": true, "account": true, "bind_core_list": true, "ssh_port": true,
	"module": false, "no_python": false, "no_local_rank": false, "no_ssh": false, "no_ssh_check": false, "force_multi": false, "save_pid": false,
	"elastic_training": false, "bind_cores_to_rank": false, "help": false,
}

var deepSpeedShort = map[byte]string{'H': "hostfile", 'i': "include", 'e': "exclude", 'h': "help"}

// Hands reports whether argv is a program that may start its ranks through torch, such as accelerate launch.
func Hands(argv []string) bool { return CommandTimeout(argv) == adapterTimeout }

// IsDeepSpeed reports whether argv starts deepspeed's runner.
func IsDeepSpeed(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	module, _ := pythonModule(argv)
	return path.Base(argv[0]) == "deepspeed" || module == "deepspeed.launcher.runner" || module == "deepspeed"
}

// CheckDeepSpeed refuses a command line of deepspeed that would not train on all pods together: one that starts its ranks on other machines
// by a launcher of its own, and one that knows no other pod. hosts: a file may exist at deepspeed's default path for hosts (/job/hostfile).
// pods is 0 if their number is unknown.
func CheckDeepSpeed(argv []string, pods int, hosts bool) error {
	given, open := deepSpeedFlags(argv)
	if _, apart := given["no_ssh"]; apart {
		return nil
	}
	if v, named := given["launcher"]; named && known(v.v) {
		return refuse(v.as, "starts ranks on other machines without holdfast", "leave it out, and give --no_ssh with --hostfile, so that deepspeed runs on each pod by itself; or use torchrun")
	}
	_, file := given["hostfile"]
	if pods < 2 || file || hosts || open {
		return nil
	}
	return refuse("deepspeed", fmt.Sprintf("does not include the other pods: it would start %d separate trainings, one per pod", pods),
		"give --no_ssh, --hostfile with all pods of the job, --node_rank=$(JOB_COMPLETION_INDEX) and --master_addr; or use torchrun before the script")
}

// deepSpeedFlags parses the runner's options; open: a value that is not known yet may hold more options.
func deepSpeedFlags(argv []string) (given map[string]value, open bool) {
	given = map[string]value{}
	args := argv[1:]
	if path.Base(argv[0]) != "deepspeed" { // python … -m deepspeed
		for len(args) > 0 && !strings.HasPrefix(args[0], "deepspeed") && !strings.HasSuffix(args[0], "mdeepspeed") && !strings.HasSuffix(args[0], "mdeepspeed.launcher.runner") {
			args = args[1:]
		}
		args = args[min(1, len(args)):]
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if maybeFlag(arg) {
			return given, true
		}
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			return given, false
		}
		name, v, inline := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		if arg[1] != '-' {
			name, v, inline = deepSpeedShort[arg[1]], strings.TrimPrefix(arg[2:], "="), len(arg) > 2
		}
		name, takes := deepSpeedOption(name)
		as := arg
		if takes && !inline && i+1 < len(args) {
			i++
			v = args[i]
			as += " " + v
		}
		given[name] = value{v, as}
	}
	return given, false
}

// deepSpeedOption returns the option that name means, in full or by an unambiguous prefix.
func deepSpeedOption(name string) (full string, takes bool) {
	if takes, ok := deepSpeedOptions[name]; ok || name == "" {
		return name, takes
	}
	var fits []string
	for o := range deepSpeedOptions {
		if strings.HasPrefix(o, name) {
			fits = append(fits, o)
		}
	}
	if len(fits) != 1 {
		return name, false
	}
	return fits[0], deepSpeedOptions[fits[0]]
}
