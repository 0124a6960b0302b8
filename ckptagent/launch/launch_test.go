package launch

import (
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
		{"abbreviation", "torchrun --nproc 4 --max-r 3 train.py", nil, with(func(s *Spec) { s.Ranks, s.MaxRestarts = 4, 3 })},
		{"last one wins", "torchrun --nproc-per-node 4 --nproc-per-node 2 train.py", nil, with(func(s *Spec) { s.Ranks = 2 })},
		{"devices", "torchrun --nproc-per-node gpu train.py", nil, with(func(s *Spec) { s.Ranks, s.RanksFrom = RanksAuto, "gpu" })},
		{"nodes", "torchrun --nnodes 2 train.py", nil, with(func(s *Spec) { s.Nodes, s.NodesFlag = 2, "--nnodes=2" })},
		{"nodes, an even range", "torchrun --nnodes=2:2 train.py", nil, with(func(s *Spec) { s.Nodes, s.NodesFlag = 2, "--nnodes=2:2" })},
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
		{"double dash", "torchrun --nproc-per-node=2 -- train.py -x", nil, with(func(s *Spec) { s.Ranks, s.Args = 2, []string{"-x"} })},
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
		want string // how the message begins; it must also name a remedy
	}{
		{"bash -c torchrun", nil, `"bash": is not a launcher`},
		{"torchrun", nil, "training_script: is missing"},
		{"torchrun --nproc-per-node train.py", nil, "--nproc-per-node=train.py: is not a number of processes"},
		{"torchrun --nproc-per-node", nil, "--nproc-per-node: expects a value"},
		{"torchrun --nproc-per-node=0 t.py", nil, "--nproc-per-node=0: is not a number of processes"},
		{"torchrun --nproc-per-node=xpu t.py", nil, "--nproc-per-node=xpu: is not a number of processes"},
		{"torchrun --nnodes=1:4 t.py", nil, "--nnodes=1:4: asks for a changing number"},
		{"torchrun --nnodes=x t.py", nil, "--nnodes=x: is not a number of nodes"},
		{"torchrun --rdzv t.py", nil, "--rdzv: is ambiguous: it could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"},
		{"torchrun --frobnicate t.py", nil, "--frobnicate: is not a flag of torchrun that holdfast knows"},
		{"torchrun -q t.py", nil, "-q: is not a flag"},
		{"torchrun --standalone=1 t.py", nil, "--standalone: takes no value"},
		{"torchrun --log-dir=/x t.py", nil, "--log-dir=/x: is not honoured"},
		{"torchrun --log_dir /x t.py", nil, "--log_dir=/x: is not honoured"},
		{"torchrun -r 3 t.py", nil, "-r 3: is not honoured"},
		{"torchrun -t3 t.py", nil, "-t 3: is not honoured"},
		{"torchrun --tee 3 t.py", nil, "--tee=3: is not honoured"},
		{"torchrun --local-ranks-filter=0 t.py", nil, "--local-ranks-filter=0: is not honoured"},
		{"torchrun --run-path t.py", nil, "--run-path: is not honoured"},
		{"torchrun --numa-binding=node t.py", nil, "--numa-binding=node: is not honoured"},
		{"torchrun --virtual-local-rank t.py", nil, "--virtual-local-rank: is not honoured"},
		{"torchrun --logs-specs=x t.py", nil, "--logs-specs=x: is not honoured"},
		{"torchrun --event-log-handler=scuba t.py", nil, "--event-log-handler=scuba: is not honoured"},
		{"torchrun --signals-to-handle=SIGUSR1 t.py", nil, "--signals-to-handle=SIGUSR1: is not honoured"},
		{"torchrun --help", nil, "--help: is not honoured"},
		{"torchrun --max-restarts=-1 t.py", nil, "--max-restarts=-1: is not a whole number"},
		{"torchrun --node-rank=a t.py", nil, "--node-rank=a: is not a whole number"},
		{"torchrun --start-method=thread t.py", nil, "--start-method=thread: is not a start method"},
		{"torchrun --monitor-interval=x t.py", nil, "--monitor-interval=x: is not a number"},
		{"torchrun -m --no-python t.py", nil, "--no-python: cannot be given together with --module"},
		{"torchrun t.py", map[string]string{"PET_TEE": "3"}, "PET_TEE=3: is not honoured"},
		{"torchrun t.py", map[string]string{"PET_STANDALONE": "yes"}, "PET_STANDALONE=yes: is not a number"},
		{"python -m torch.distributed.launch t.py", nil, "-m torch.distributed.launch: is torch's deprecated launcher"},
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

// Every refused option must say what to do instead, and a neutral value must pass.
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
		{"gpu", 8, 64, 8, false}, {"gpu", 0, 64, 0, true}, {"cpu", 8, 64, 64, false}, {"auto", 8, 64, 8, false}, {"auto", 0, 64, 64, false}, {"auto", 0, 0, 0, true},
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
	if err == nil || !strings.HasPrefix(err.Error(), "--standalone: asks for 1, the gang has 2 pods") {
		t.Error(err)
	}
}
