package launch

import (
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	base := Spec{Ranks: 1, Role: "default", RunID: "none", ShutdownTimeout: 30 * time.Second, Script: "train.py"}
	with := func(change func(*Spec)) Spec {
		s := base
		change(&s)
		return s
	}
	tests := []struct {
		name string
		argv string
		env  map[string]string
		want Spec
	}{
		{"bare", "torchrun train.py", nil, base},
		{"path and arguments of the script", "/opt/venv/bin/torchrun train.py --nnodes 7 -m x", nil,
			with(func(s *Spec) { s.Args = []string{"--nnodes", "7", "-m", "x"} })},
		{"hyphens", "torchrun --nproc-per-node=4 train.py", nil, with(func(s *Spec) { s.Ranks = 4 })},
		{"underscores, apart", "torchrun --nproc_per_node 4 train.py", nil, with(func(s *Spec) { s.Ranks = 4 })},
		{"abbreviation", "torchrun --nproc 4 --max-r 3 train.py", nil, with(func(s *Spec) { s.Ranks, s.MaxRestarts, s.MaxRestartsSaid = 4, 3, true })},
		{"last one wins", "torchrun --nproc-per-node 4 --nproc-per-node 2 train.py", nil, with(func(s *Spec) { s.Ranks = 2 })},
		{"devices", "torchrun --nproc-per-node gpu train.py", nil, with(func(s *Spec) { s.Ranks, s.RanksFrom = RanksAuto, "gpu" })},
		{"nodes", "torchrun --nnodes 2 train.py", nil, with(func(s *Spec) { s.Nodes, s.NodesFlag = 2, "--nnodes=2" })},
		{"nodes, an even range", "torchrun --nnodes=2:2 train.py", nil, with(func(s *Spec) { s.Nodes, s.NodesFlag = 2, "--nnodes=2:2" })},
		{"nodes, a range", "torchrun --nnodes=1:4 train.py", nil, with(func(s *Spec) { s.Nodes, s.MinNodes, s.NodesFlag = 4, 1, "--nnodes=1:4" })},
		{"standalone", "torchrun --standalone --nnodes=1 train.py", nil, with(func(s *Spec) { s.Nodes, s.NodesFlag = 1, "--standalone" })},
		{"what the coordinator decides", "torchrun --rdzv-backend c10d --rdzv_endpoint=a:1 --rdzv-id=j7 --rdzv-conf=timeout=3 --node-rank=1 --master-addr m --master_port 29500 --monitor-interval 1 --local-addr l train.py", nil,
			with(func(s *Spec) {
				s.RunID = "j7"
				s.Superseded = []string{"--local-addr=l", "--master-addr=m", "--master_port=29500", "--monitor-interval=1", "--node-rank=1",
					"--rdzv-backend=c10d", "--rdzv-conf=timeout=3", "--rdzv_endpoint=a:1"}
			})},
		{"module", "torchrun -m pkg.train x", nil, with(func(s *Spec) { s.Module, s.Script, s.Args = true, "pkg.train", []string{"x"} })},
		{"program", "torchrun --no-python ./run.sh", nil, with(func(s *Spec) { s.NoPython, s.Script = true, "./run.sh" })},
		{"cluster and neutral values", "torchrun -mr 0 -t0 --redirects=0 pkg.train", nil, with(func(s *Spec) { s.Module, s.Script = true, "pkg.train" })},
		{"logs", "torchrun --log-dir=/x -t3 -r 0:1,1:2 --local_ranks_filter 0,1 --duplicate-stdout-filters a,,b,c --duplicate-stderr-filters= train.py", nil,
			with(func(s *Spec) {
				s.Logs = Logs{
					Dir:        "/x",
					DirFlag:    "--log-dir=/x",
					Tee:        Streams{All: 3},
					Redirects:  Streams{Of: map[int]int{0: 1, 1: 2}},
					Ranks:      []int{0, 1},
					OutFilters: []string{"a,b", "c"},
				}
			}),
		},
		{"logs by the environment", "torchrun train.py", map[string]string{"PET_TEE": "1", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}:"},
			with(func(s *Spec) { s.Logs = Logs{Tee: Streams{All: 1}, Prefix: "${rank}:"} })},
		{"run path", "torchrun --run-path --no-python /a/train.py", nil, with(func(s *Spec) { s.Script, s.Superseded = "/a/train.py", []string{"--run-path"} })},
		{"torchtitan's own", `torchrun --nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train --module llama3 --config llama3_debugmodel`, nil,
			with(func(s *Spec) {
				s.Ranks, s.Role, s.Module, s.Script, s.Args = 2, "rank", true, "torchtitan.train", []string{"--module", "llama3", "--config", "llama3_debugmodel"}
				s.Logs, s.Superseded = Logs{Tee: Streams{All: 3}, Ranks: []int{0}}, []string{"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"}
			})},
		{"a device each", "torchrun --virtual-local-rank train.py", nil, with(func(s *Spec) { s.VirtualLocalRank = true })},
		{"double dash", "torchrun --nproc-per-node=2 -- train.py -x", nil, with(func(s *Spec) { s.Ranks, s.Args = 2, []string{"-x"} })},
		{"double dash after the script", "torchrun train.py -- -x -- y", nil, with(func(s *Spec) { s.Args = []string{"-x", "--", "y"} })},
		{"two double dashes", "torchrun -- train.py -- -x", nil, with(func(s *Spec) { s.Args = []string{"--", "-x"} })},
		{"shutdown timeout", "torchrun --shutdown-timeout=5 train.py", nil, with(func(s *Spec) { s.ShutdownTimeout = 5 * time.Second })},
		{"interpreter", "python3 -m torch.distributed.run --nproc-per-node=2 train.py", nil,
			with(func(s *Spec) { s.Python, s.Ranks = []string{"python3"}, 2 })},
		{"interpreter flags", "/usr/bin/python3.11 -u -W ignore -Xfaulthandler -bm torch.distributed.run train.py", nil,
			with(func(s *Spec) {
				s.Python = []string{"/usr/bin/python3.11", "-u", "-W", "ignore", "-Xfaulthandler", "-b"}
			})},
		{"interpreter, module in one word", "python -mtorch.distributed.run train.py", nil, with(func(s *Spec) { s.Python = []string{"python"} })},
		{"interpreter and the launcher's file", "python /opt/bin/torchrun --nproc-per-node=3 train.py", nil,
			with(func(s *Spec) { s.Python, s.Ranks = []string{"python"}, 3 })},
		{"the deprecated launcher", "python3 -m torch.distributed.launch --nproc_per_node=2 train.py --lr 1", nil,
			with(func(s *Spec) {
				s.Python, s.Ranks, s.Args = []string{"python3"}, 2, []string{"--local-rank=${local_rank}", "--lr", "1"}
			})},
		{"the deprecated launcher, by environment", "python3 -m torch.distributed.launch --use_env train.py --lr 1", nil,
			with(func(s *Spec) { s.Python, s.Args = []string{"python3"}, []string{"--lr", "1"} })},
		{"the deprecated launcher, a program", "python3 -m torch.distributed.launch --use-env --no-python ./run.sh", nil,
			with(func(s *Spec) { s.Python, s.NoPython, s.Script = []string{"python3"}, true, "./run.sh" })},
		{"environment", "torchrun train.py", map[string]string{"PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m", "PET_STANDALONE": "0", "HOME": "/"},
			with(func(s *Spec) {
				s.Ranks, s.Nodes, s.NodesFlag = 8, 2, "PET_NNODES=2"
				s.Superseded = []string{"PET_MASTER_ADDR=m", "PET_NODE_RANK=1"}
			})},
		{"flag before environment", "torchrun --nproc-per-node=2 train.py", map[string]string{"PET_NPROC_PER_NODE": "8"}, with(func(s *Spec) { s.Ranks = 2 })},
		{"switch in the environment", "torchrun pkg", map[string]string{"PET_MODULE": "1"}, with(func(s *Spec) { s.Module, s.Script = true, "pkg" })},
		{"interpreter from the environment", "torchrun train.py", map[string]string{"PYTHON_EXEC": "/x/python"}, with(func(s *Spec) { s.Python = []string{"/x/python"} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(strings.Fields(tt.argv), tt.env)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Args) == 0 {
				got.Args = nil
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		argv string
		env  map[string]string
		want string // beginning of the message, which must also name a remedy
	}{
		{"bash -c torchrun", nil, `"bash": is not a launcher`},
		{"torchrun", nil, "training_script: is missing"},
		{"torchrun --nproc-per-node train.py", nil, "--nproc-per-node=train.py: is not a number of processes"},
		{"torchrun --nproc-per-node", nil, "--nproc-per-node: expects a value"},
		{"torchrun --nproc-per-node=0 t.py", nil, "--nproc-per-node=0: is not a number of processes"},
		{"torchrun --nproc-per-node=4294967297 t.py", nil, "--nproc-per-node=4294967297: requests 4294967297 processes on one pod"},
		{"torchrun --nproc-per-node=1025 t.py", nil, "--nproc-per-node=1025: requests 1025 processes on one pod"},
		{"torchrun --nproc-per-node=tpus t.py", nil, "--nproc-per-node=tpus: is not a number of processes"},
		{"torchrun --nnodes=4:1 t.py", nil, "--nnodes=4:1: is not a number of nodes"},
		{"torchrun --nnodes=x t.py", nil, "--nnodes=x: is not a number of nodes"},
		{"torchrun --rdzv t.py", nil, "--rdzv: is ambiguous: it could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"},
		{"torchrun --frobnicate t.py", nil, "--frobnicate: is not a flag of torchrun that holdfast knows"},
		{"torchrun -q t.py", nil, "-q: is not a flag"},
		{"torchrun --standalone=1 t.py", nil, "--standalone: takes no value"},
		{"torchrun --numa-binding=node t.py", nil, "--numa-binding=node: is not honoured"},
		{"torchrun --logs-specs=x t.py", nil, "--logs-specs=x: is not honoured"},
		{"torchrun --event-log-handler=scuba t.py", nil, "--event-log-handler=scuba: is not honoured"},
		{"torchrun --signals-to-handle=SIGUSR1 t.py", nil, "--signals-to-handle=SIGUSR1: is not honoured"},
		{"torchrun --help", nil, "--help: is not honoured"},
		{"torchrun --max-restarts=-1 t.py", nil, "--max-restarts=-1: is not a whole number"},
		{"torchrun --node-rank=a t.py", nil, "--node-rank=a: is not a whole number"},
		{"torchrun --start-method=thread t.py", nil, "--start-method=thread: is not a start method"},
		{"torchrun --rdzv-conf=timeout=3,x t.py", nil, "--rdzv-conf=timeout=3,x: is not a list of keys with values"},
		{"torchrun --monitor-interval=x t.py", nil, "--monitor-interval=x: is not a number"},
		{"torchrun -m --no-python t.py", nil, "--no-python: cannot be given together with --module"},
		{"torchrun t.py", map[string]string{"PET_TEE": "4"}, "PET_TEE=4: does not say which streams"},
		{"torchrun --redirects=0:3,1 t.py", nil, "--redirects=0:3,1: does not say which streams"},
		{"torchrun --local-ranks-filter=0,a t.py", nil, "--local-ranks-filter=0,a: is not a list of local ranks"},
		{"torchrun t.py", map[string]string{"PET_STANDALONE": "yes"}, "PET_STANDALONE=yes: is not a number"},
		{"torchrun --use-env t.py", nil, "--use-env: is not a flag of torchrun"},
		{"python -m torch.distributed.launch --no-python t.sh", nil, "--no-python: needs --use-env"},
		{"python -I -m torch.distributed.run t.py", nil, "-I: keeps the interpreter from reading PYTHONPATH"},
		{"python -uE -m torch.distributed.run t.py", nil, "-E: keeps the interpreter"},
	}
	for _, tt := range tests {
		t.Run(tt.argv, func(t *testing.T) {
			got, err := Parse(strings.Fields(tt.argv), tt.env)
			var r *Refusal
			if !errors.As(err, &r) {
				t.Fatalf("not refused: %+v, %v", got, err)
			}
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %q, want it to begin with %q", err, tt.want)
			}
			if r.Remedy == "" {
				t.Errorf("%q names no remedy", err)
			}
		})
	}
}

// TestSpaces: a word with a space is a value or the script, unless it begins with a flag.
func TestSpaces(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		want string
	}{
		{[]string{"-x y", "t.py"}, "-x y"}, {[]string{"--lr 1", "t.py"}, "--lr 1"}, {[]string{"--role", "-x y", "t.py"}, "t.py"},
		{[]string{"--role", "-m x", "t.py"}, "--role: expects a value"}, {[]string{"--role=a b", "t.py"}, "t.py"}, {[]string{"--nproc-per-node=a b", "t.py"}, "--nproc-per-node=a b: is not a number"},
	} {
		got, err := Parse(append([]string{"torchrun"}, tt.argv...), nil)
		if err == nil && got.Script != tt.want || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: script %q, %v; want %q", tt.argv, got.Script, err, tt.want)
		}
	}
}

// Every refused option must have a remedy, and a neutral value must be accepted.
func TestFlagTable(t *testing.T) {
	for _, f := range flags {
		if f.handling != refused {
			continue
		}
		if f.remedy == "" {
			t.Errorf("--%s: no remedy", f.name)
		}
		for _, n := range f.neutral {
			if _, err := Parse([]string{"torchrun", "--" + f.name + "=" + n, "t.py"}, nil); err != nil {
				t.Errorf("--%s=%s changes nothing and is refused: %v", f.name, n, err)
			}
		}
	}
}

func TestIsLauncher(t *testing.T) {
	for argv, want := range map[string]bool{
		"torchrun": true, "/a/torchrun x": true, "python -m torch.distributed.run x": true, "python3.12 -u -m torch.distributed.launch x": true,
		"python /v/bin/torchrun x": true, "": false, "python": false, "python train.py -m torch.distributed.run": false, "python -m pdb torchrun": false,
		"python -c x -m torch.distributed.run": false, "bash -c torchrun": false, "mytorchrun": false, "python -X dev -m torch.distributed.run": true,
		"python -Xdev -m torch.distributed.run": true, "pythonx -m torch.distributed.run": false,
	} {
		if got := IsLauncher(strings.Fields(argv)); got != want {
			t.Errorf("IsLauncher(%q) = %v", argv, got)
		}
	}
}

func TestResolve(t *testing.T) {
	tests := []struct {
		from       string
		gpus, cpus int
		want       int
		err        bool
	}{
		{"gpu", 8, 64, 8, false}, {"gpu", 0, 64, 0, true}, {"cpu", 8, 64, 64, false}, {"auto", 8, 64, 8, false}, {"auto", 0, 64, 64, false}, {"cpu", 0, 1 << 33, 0, true}, {"auto", 0, 0, 0, true},
		{"xpu", 3, 64, 3, false}, {"npu", 0, 64, 0, true},
	}
	for _, tt := range tests {
		got, err := Spec{Ranks: RanksAuto, RanksFrom: tt.from}.Resolve(tt.gpus, tt.cpus)
		if got.Ranks != tt.want || (err != nil) != tt.err {
			t.Errorf("Resolve(%q, %d, %d) = %d, %v", tt.from, tt.gpus, tt.cpus, got.Ranks, err)
		}
	}
}

func TestCheckNodes(t *testing.T) {
	if err := (Spec{}).CheckNodes(3); err != nil {
		t.Error(err)
	}
	if err := (Spec{Nodes: 3}).CheckNodes(3); err != nil {
		t.Error(err)
	}
	err := Spec{Nodes: 1, NodesFlag: "--standalone"}.CheckNodes(2)
	if err == nil || !strings.HasPrefix(err.Error(), "--standalone: requests 1, the gang has 2 pods") {
		t.Error(err)
	}
}

// The expected results are those of Python's string.Template, tried with Python 3.11.
func TestRankArgs(t *testing.T) {
	for arg, want := range map[string]string{
		"--local-rank=${local_rank}": "--local-rank=7", "$local_rank": "7", "$local_rankx": "$local_rankx", "$": "$", "$$": "$", "${x}": "${x}",
		"a$1": "a$1", "${local_rank": "${local_rank", "$LOCAL_RANK": "$LOCAL_RANK", "$$local_rank": "$local_rank", "": "",
	} {
		s := Spec{Args: []string{"first", arg}}
		if got := s.RankArgs(7); !reflect.DeepEqual(got, []string{"first", want}) {
			t.Errorf("%q becomes %q, want %q", arg, got[1], want)
		}
	}
}

func TestParseAPI(t *testing.T) {
	got, err := Parse([]string{APICommand, `{"min_nodes":2,"max_nodes":2,"nproc_per_node":4,"role":"r","run_id":"id","max_restarts":3,"shutdown_timeout":5}`,
		"/usr/bin/python3", "-u", "train.py", "--lr", "1"}, map[string]string{"PET_NPROC_PER_NODE": "8"})
	want := Spec{NoPython: true, Exact: true, Script: "/usr/bin/python3", Args: []string{"-u", "train.py", "--lr", "1"}, Ranks: 4, Nodes: 2,
		NodesFlag: "LaunchConfig.max_nodes=2", NodesRemedy: remedyNodes, Role: "r", RunID: "id", MaxRestarts: 3, ShutdownTimeout: 5 * time.Second}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if !got.StartsPython() {
		t.Error("not known to be Python")
	}
	if got.Script = "/bin/bash"; got.StartsPython() {
		t.Error("a shell passes for Python")
	}
	if err := got.CheckNodes(3); err == nil || !strings.HasSuffix(err.Error(), remedyNodes) {
		t.Error(err)
	}
	for args, want := range map[string]string{
		`{}`:                            "torch.distributed.launcher.api: lacks its configuration or its entrypoint",
		`{"nproc_per_node":"x"} python`: "torch.distributed.launcher.api: has a configuration that cannot be read",
		`{"min_nodes":1,"max_nodes":1,"nproc_per_node":0} python`:                                 "LaunchConfig.nproc_per_node=0: is not a number",
		`{"min_nodes":0,"max_nodes":0,"nproc_per_node":1} python`:                                 "LaunchConfig.min_nodes=0, max_nodes=0: is not a number of nodes",
		`{"min_nodes":1,"max_nodes":1,"nproc_per_node":1,"refused":["numa_options=node"]} python`: "LaunchConfig.numa_options=node: is not honoured",
	} {
		_, err := Parse(append([]string{APICommand}, strings.Fields(args)...), nil)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestFiles(t *testing.T) {
	a := Attempt{ID: "0123456789abcdef", Temp: "/tmp", Hostname: "host", Restarts: 2, FirstRank: 4}
	s := Spec{Ranks: 2, Role: "rank", RunID: "none"}
	got := s.Files(a)
	run := "/tmp/torchelastic_89abcdef/none_01234567"
	want := Files{Run: run, Dir: run + "/attempt_2", Rank: []RankFiles{
		{Dir: run + "/attempt_2/0", Error: run + "/attempt_2/0/error.json", Prefix: "[rank0]:"}, {Dir: run + "/attempt_2/1", Error: run + "/attempt_2/1/error.json", Prefix: "[rank1]:"},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("nothing asked: got %+v\nwant %+v", got, want)
	}
	if s.Logs.Asked() {
		t.Error("nothing was asked for")
	}
	s.Logs = Logs{
		Dir:        "logs",
		Tee:        Streams{All: 1},
		Redirects:  Streams{Of: map[int]int{1: 2}},
		Ranks:      []int{0},
		Prefix:     "${hostname}:${rank}:${local_rank}:${x} ",
		OutFilters: []string{"x"},
	}
	got = s.Files(a)
	at := "logs/none_01234567/attempt_2"
	want = Files{Run: "logs/none_01234567", Dir: at, FilteredOut: at + "/filtered_stdout.log", Rank: []RankFiles{
		{Dir: at + "/0", Error: at + "/0/error.json", Stdout: at + "/0/stdout.log", TeeStdout: true, Prefix: "host:4:0:${x} "},
		{Dir: at + "/1", Error: at + "/1/error.json", Stdout: at + "/1/stdout.log", Stderr: at + "/1/stderr.log", Prefix: "host:5:1:${x} "},
	}}
	if !reflect.DeepEqual(got, want) || !s.Logs.Asked() {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	s.Logs = Logs{Ranks: []int{1}}
	if r := s.Files(a).Rank; r[0].Stdout != "/dev/null" || r[0].Stderr != "/dev/null" || r[1].Stdout != "" || r[1].Stderr != "" {
		t.Errorf("a filter alone: %+v", r)
	}
	s.Logs = Logs{Dir: "/dev/null", Tee: Streams{All: 3}}
	if got := s.Files(a); !reflect.DeepEqual(got, Files{Rank: make([]RankFiles, 2)}) || s.Logs.Asked() == false {
		t.Errorf("no logs wanted: %+v", got)
	}
}

func world(s string) string { return "--world_info=" + base64.URLEncoding.EncodeToString([]byte(s)) }

func TestParseDeepSpeed(t *testing.T) {
	line := "/v/python3 -u -m deepspeed.launcher.launch " + world(`{"a": [0, 1], "b": [0, 1]}`) +
		" --master_addr=10.0.0.1 --master_port=29500 --node_rank=1 --enable_each_rank_log=None --log_level=info train.py --lr $$1"
	got, err := Parse(strings.Fields(line), map[string]string{"PET_NPROC_PER_NODE": "8"})
	want := Spec{
		Python:          []string{"/v/python3"},
		Script:          "train.py",
		Args:            []string{"--lr", "$$1"},
		Ranks:           2,
		Nodes:           2,
		NodesFlag:       "deepspeed",
		NodesRemedy:     remedyPods,
		Role:            "default",
		RunID:           "none",
		ShutdownTimeout: DefaultShutdownTimeout,
		DeepSpeed:       &DeepSpeed{Devices: "0,1"},
		Superseded:      []string{"--node_rank=1", "--master_addr=10.0.0.1", "--master_port=29500"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if args := got.RankArgs(1); !reflect.DeepEqual(args, []string{"--local_rank=1", "--lr", "$$1"}) {
		t.Errorf("arguments %q", args)
	}
	if got.DeepSpeed.NoLocalRank = true; !reflect.DeepEqual(got.RankArgs(1), got.Args) {
		t.Errorf("arguments %q", got.RankArgs(1))
	}
	if err := got.CheckNodes(3); err == nil || !strings.Contains(err.Error(), "separate training on each pod") {
		t.Error(err)
	}
	two := world(`{"a": [0], "b": [1]}`)
	for args, want := range map[string]string{
		"t.py": "--world_info: cannot be read", two + " t.py": "--hostfile: gives", world(`{"a":[0]}`): "training_script: is missing",
		world(`{"a":[0]}`) + " --bind_cores_to_rank t.py": "--bind_cores_to_rank: is not honoured", "--frobnicate t.py": "--frobnicate: is not a flag",
		world(`{"a":[0]}`) + " --enable_each_rank_log=/x t.py": "--enable_each_rank_log=/x: is not honoured", world(`{"a":[0]}`) + " --module --no_python t": "--no_python: cannot",
	} {
		_, err := Parse(append([]string{"python", "-m", deepSpeedLaunch}, strings.Fields(args)...), nil)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if _, err := Parse(strings.Fields("/v/bin/deepspeed --hostfile=h --launcher slurm t.py"), nil); err == nil || !strings.HasPrefix(err.Error(), "--launcher slurm: starts ranks on other machines") {
		t.Error(err)
	}
}

func TestDeepSpeedHere(t *testing.T) {
	const here = " --no_ssh --node_rank=0 --master_addr=127.0.0.1"
	for line, want := range map[string]string{
		"/v/deepspeed --num_gpus 2 t.py":                             "/v/deepspeed --num_gpus 2 t.py",
		"/v/deepspeed -H h t.py --hostfile=x":                        "/v/deepspeed" + here + " -H h t.py --hostfile=x",
		"/v/deepspeed --no_ssh --hostfile h --node_rank=1 t.py":      "/v/deepspeed --no_ssh --hostfile h --node_rank=1 t.py",
		"python -u -m deepspeed.launcher.runner --hostfile=h t.py x": "python -u -m deepspeed.launcher.runner" + here + " --hostfile=h t.py x",
		"/v/deepspeed t.py --hostfile h":                             "/v/deepspeed t.py --hostfile h",
	} {
		if got := strings.Join(DeepSpeedHere(strings.Fields(line), false), " "); got != want {
			t.Errorf("%s becomes %s, want %s", line, got, want)
		}
	}
	if got := DeepSpeedHere([]string{"deepspeed", "t.py"}, true); len(got) != 5 {
		t.Errorf("with a file where it looks for one: %q", got)
	}
}

func TestOwnDevice(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want map[string]string
	}{
		{nil, map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}},
		{map[string]string{"CUDA_VISIBLE_DEVICES": "4, 6"}, map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "6"}},
		{map[string]string{"CUDA_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "2,3"}, map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}},
		{map[string]string{"CUDA_VISIBLE_DEVICES": "4"}, nil},
	} {
		got, err := Spec{}.OwnDevice(tt.env, 1)
		if !reflect.DeepEqual(got, tt.want) || (err != nil) != (tt.want == nil) {
			t.Errorf("%v: %v, %v; want %v", tt.env, got, err, tt.want)
		}
	}
}
