//go:build linux

package loop_test

import (
	"fmt"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// runner replaces the program deepspeed. It has devices, and starts deepspeed.launcher.launch, which is never imported.
const runner = `
import base64, json, os, subprocess, sys
print("runner", sys.argv[1:], flush=True)
world = base64.urlsafe_b64encode(json.dumps({"a": [0, 1], "b": [0, 1]} if "--hostfile=h" in sys.argv else {"localhost": [0, 1]}).encode()).decode()
line = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", "--world_info=" + world, "--master_addr=127.0.0.1", "--master_port=29500", "train.py", "--lr", "$1"]
sys.exit(subprocess.run(line).returncode)
`

const trained = `
import os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"]
sys.stdout.write(" ".join(["rank"] + sys.argv[1:] + [n + "=" + os.environ.get(n, "none") for n in names]) + "\n")
`

// deepspeed's runner starts, and the agent starts the ranks of this pod with deepspeed's arguments and variables.
func TestDeepSpeedOnTwoPods(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	pods := []*proctest.Container{newPod(t, c, "a"), newPod(t, c, "b")}
	c.Lead("a", "b")
	for _, p := range pods {
		p.File("deepspeed", runner)
		p.File("train.py", trained)
		p.Start("bash", "-c", "python3 ./deepspeed --hostfile=h t.py; echo code $?")
	}
	for i, p := range pods {
		p.Out.Await(t, "runner ['--no_ssh', '--node_rank=0', '--master_addr=127.0.0.1', '--hostfile=h', 't.py']", "code 0")
		for local, rank := range [][2]string{{"0", "1"}, {"2", "3"}}[i] {
			l, node := []string{"0", "1"}[local], []string{"0", "1"}[i]
			p.Out.Await(t, "rank --local_rank="+l+" --lr $1 RANK="+rank+" LOCAL_RANK="+l+" WORLD_SIZE=4 LOCAL_SIZE=2 CROSS_RANK="+node+
				" CROSS_SIZE=2 CUDA_VISIBLE_DEVICES=0,1 LOCAL_WORLD_SIZE=none TORCHELASTIC_RUN_ID=none\n")
		}
	}
}

// Without a hostfile each pod would train alone. With a launcher of its own deepspeed would not start its ranks by the agent.
func TestDeepSpeedIsRefused(t *testing.T) {
	needPython(t)
	for line, want := range map[string]string{
		"python3 ./deepspeed --hostfile h --launcher slurm t.py": "--launcher slurm: starts ranks on other machines",
		"python3 ./deepspeed --num_gpus 2 t.py":                  "deepspeed: requests 1, the gang has 2 pods; without a hostfile this is a separate training on each pod",
	} {
		c := coordtest.Start(t)
		pods := []*proctest.Container{newPod(t, c, "a"), newPod(t, c, "b")}
		c.Lead("a", "b")
		for _, p := range pods {
			p.File("deepspeed", runner)
			p.File("train.py", trained)
			p.Start("bash", "-c", line+"; echo code $?")
		}
		// The pod that is refused first reports the reason. The other pod may be halted before it is refused.
		eventually.Holds(t, "a pod is refused", func() (bool, any) {
			a, b := c.Report("a"), c.Report("b")
			return strings.HasPrefix(a.GetRefused(), want) || strings.HasPrefix(b.GetRefused(), want), fmt.Sprint(a, b)
		})
		pods[0].Out.Await(t, "code 2")
	}
}
