//go:build linux

package loop_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// who is a script that prints what the kernel reports about its process: user, privileges, scheduling.
const who = `
import os
lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print("identity", *(lines[k].split() for k in ("Uid", "Gid", "Groups", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
    os.sched_getscheduler(0), os.nice(0), sorted(os.sched_getaffinity(0)), open("/proc/self/numa_maps").read().split()[1])
`

// systemPython can be started by each user. The first interpreter on PATH may be in a folder that only root can read.
const systemPython = "/usr/bin/python3"

func needRoot(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(systemPython); err != nil {
		t.Skip("SKIPPED: there is no " + systemPython)
	}
	for _, tool := range []string{"setpriv", "chrt"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %s is not on PATH", tool)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can start programs as another user")
	}
}

// TestRanksRunAsTheirLauncher: an image's entry point may drop or gain privileges before it starts the launcher. Ranks have the privileges
// of the launcher, whether they start cold or in a standby.
func TestRanksRunAsTheirLauncher(t *testing.T) {
	needRoot(t)
	for name, prefix := range map[string]string{
		"plain":         "",
		"another user":  "setpriv --reuid=65534 --regid=65534 --clear-groups",
		"groups":        "setpriv --reuid=1234 --regid=2345 --groups=7,5",
		"privileges":    "setpriv --no-new-privs --inh-caps=-all --bounding-set=-net_raw,-sys_admin",
		"ambient":       "setpriv --reuid=1234 --regid=1234 --clear-groups --inh-caps=+chown,+kill --ambient-caps=+chown",
		"scheduling":    "chrt -b 0 nice -n 3",
		"all of it":     "chrt -i 0 nice -n 3 setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs",
		"one processor": "taskset -c 0",
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			p := newPod(t, c, "a")
			p.Env["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
			p.Env["HOLDFAST_STATE_BYTES"] = "4096"
			p.File("who.py", who)
			p.File("train.py", `
import holdfast, os
arena = os.environ["HOLDFAST_ARENA"]
`+who+`
ck = holdfast.attach()
ck.track(x=bytearray(9))
ck.restore()
ck.save(1)
print("can write its arena:", os.access(arena, os.W_OK), flush=True)
raise ValueError("the traceback of " + os.environ["RANK"])
`)
			os.Chmod(p.Dir, 0o777)
			os.Chmod(filepath.Dir(p.Dir), 0o755)
			plain := exec.Command("bash", "-c", prefix+" "+systemPython+" "+p.Dir+"/who.py")
			plain.Stderr = os.Stderr
			want, err := plain.Output()
			if err != nil {
				t.Fatal(err)
			}
			c.Lead("a")
			p.Start("bash", "-c", prefix+" torchrun --log-dir="+p.Dir+"/logs train.py")
			r := c.Await(t, "a", "failed", func(r *v1.Report) bool { return len(r.Rank) > 0 && r.Rank[0].Exit != nil })
			if !strings.Contains(r.Rank[0].Exit.GetTraceback(), "the traceback of 0") {
				t.Errorf("exit %v", r.Rank[0].Exit)
			}
			if out := p.Out.String(); !strings.Contains(out, string(want)) || !strings.Contains(out, "can write its arena: True") {
				t.Errorf("ranks run as\n%s, and without us\n%s", out, want)
			}
		})
	}
}

// TestStandbysOfAnotherUser: the agent has only the capabilities that container runtimes give root by default, so it cannot inspect other
// users' processes. It accepts the standbys of a launcher that runs as another user or group, and starts the next generation in them.
func TestStandbysOfAnotherUser(t *testing.T) {
	needRoot(t)
	for name, prefix := range map[string]string{
		"another user":  "setpriv --reuid=65534 --regid=65534 --clear-groups",
		"another group": "setpriv --regid=65534 --clear-groups",
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			p := newPod(t, c, "a")
			p.Env["PATH"], p.Env["HOLDFAST_STANDBYS"] = "/usr/bin:/bin:/usr/sbin:/sbin", "auto"
			p.Within = append(p.Within, "setpriv", "--bounding-set=-all,+chown,+dac_override,+fowner,+kill,+setgid,+setuid,+setpcap")
			p.File("train.py", modest)
			os.Chmod(p.Dir, 0o777)
			os.Chmod(filepath.Dir(p.Dir), 0o755)
			c.Lead("a")
			p.Start("bash", "-c", prefix+" torchrun --nproc-per-node=2 train.py")
			first := c.Await(t, "a", "has standbys", func(r *v1.Report) bool {
				return len(r.Rank) == 2 && r.Rank[0].StandbyReady && r.Rank[1].StandbyReady
			})
			kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
			if second := c.Await(t, "a", "runs generation 2", runs(2, 2)); !second.Rank[0].FromStandby || !second.Rank[1].FromStandby {
				t.Errorf("generation 2 was started cold: %v", second.Rank)
			}
		})
	}
}

// TestStraysOfAnotherUser: the agent also ends stray processes of another user. If it lacks rights, only that user can read the environment
// of these processes.
func TestStraysOfAnotherUser(t *testing.T) {
	needRoot(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
	mark := strconv.Itoa(os.Getpid()) + ".1"
	p.File("train.py", strings.ReplaceAll(`
import subprocess, time
subprocess.Popen(["setsid", "sh", "-c", "sleep 1003.MARK"])
print("ready", flush=True)
time.sleep(1000)
`, "MARK", mark))
	os.Chmod(p.Dir, 0o777)
	os.Chmod(filepath.Dir(p.Dir), 0o755)
	g := c.Lead("a")
	p.Start("bash", "-c", "setpriv --reuid=65534 --regid=65534 --clear-groups torchrun train.py")
	p.Out.Await(t, "ready")
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	c.Await(t, "a", "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	if n := sleeps(mark); n != 0 {
		t.Errorf("HALTED was said while these run: %v", n)
	}
}

// TestSharedMemoryOfAnotherUser: an agent that cannot inspect another user's processes removes the files that the user's ranks left, except
// those that another process of the user has open. A restart of the container removes all of them.
func TestSharedMemoryOfAnotherUser(t *testing.T) {
	needRoot(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["PATH"], p.Env["HOLDFAST_SHM"] = "/usr/bin:/bin:/usr/sbin:/sbin", "own"
	shm := ownSharedMemory(t, p)
	p.Within = append(p.Within, "setpriv", "--bounding-set=-sys_ptrace")
	for _, dir := range []string{shm, p.Dir, filepath.Dir(p.Dir)} {
		os.Chmod(dir, 0o777)
	}
	p.File("shm/before", "")
	p.File("train.py", `
import os, time
os.umask(0o077)
for name in ("left", "held"):
    open("/dev/shm/" + name, "x").close()
print("made", flush=True)
time.sleep(1000)
`)
	p.File("hold.py", `
import os, time
while not os.path.exists("/dev/shm/held"):
    time.sleep(0.01)
kept = open("/dev/shm/held")
print("holds", flush=True)
time.sleep(1000)
`)
	g := c.Lead("a")
	user := "setpriv --reuid=65534 --regid=65534 --clear-groups "
	p.Start("bash", "-c", user+systemPython+" hold.py & "+user+"torchrun train.py")
	p.Out.Await(t, "made")
	p.Out.Await(t, "holds")
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	c.Await(t, "a", "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	if got := namesIn(shm); got != "[before held] <nil>" {
		t.Errorf("shared memory has %s while a process that is no rank holds a file", got)
	}
	p.Kill()
	p.Start("bash", "-c", "echo again; sleep 1000")
	p.Out.Await(t, "again")
	if got := namesIn(shm); got != "[before] <nil>" {
		t.Errorf("shared memory has %s when the container was started again", got)
	}
}

// TestOtherUsersCommandNothing: once a launcher is served, a process of another user cannot start a program through the agent, announce a
// step, or replace a file that init or the agent trusts.
func TestOtherUsersCommandNothing(t *testing.T) {
	needRoot(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
	p.File("train.py", "import time; print('ready', flush=True); time.sleep(1000)")
	p.File("other.py", `
import json, os, socket, subprocess
root, done = os.environ["HOLDFAST_ROOT"], []
for name in ("run", "bin", "shims", "python", "run/held", "run/agent.json", "run/code", "bin/holdfast-agent", "run/launch.sock", "memory"):
    for what in (lambda f: os.rename(f, f + "x"), lambda f: open(f, "a"), lambda f: os.mkdir(f)):
        try: what(root + "/" + name); done.append(name)
        except OSError: pass
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(json.dumps({"v": 1, "rank": 0, "gen": 1, "pid": 1, "ev": "step", "step": 77}).encode(), root + "/run/agent.sock")
code = subprocess.run([root + "/bin/holdfast-agent", "launch", "--", "torchrun", "--no-python", "touch", "/forged"], stderr=subprocess.STDOUT).returncode
with open("box/python", "w") as f:
    f.write("#!/bin/sh\ntouch box/started\n")
    os.fchmod(f.fileno(), 0o755)
subprocess.run([root + "/bin/holdfast-agent", "launch", "--", "torchrun", "--nproc-per-node=xpu", "x.py"], env=dict(os.environ, HOLDFAST_PYTHON=os.path.abspath("box/python")))
print("other could replace", done, "and its launcher returned", code, flush=True)
`)
	os.Chmod(filepath.Dir(p.Dir), 0o755)
	box := filepath.Join(p.Dir, "box")
	if err := errors.Join(os.Mkdir(box, 0o777), os.Chmod(box, 0o777)); err != nil {
		t.Fatal(err)
	}
	g := c.Lead("a")
	p.Start("bash", "-c", "torchrun train.py & until [ -e go ]; do sleep 0.05; done; setpriv --reuid=65534 --regid=65534 --clear-groups "+systemPython+" -S other.py; wait")
	p.Out.Await(t, "ready")
	p.File("go", "")
	p.Out.Await(t, "other could replace [] and its launcher returned 2", "launchers of this container run as user 0, and this one as user 65534")
	if _, err := os.Stat(filepath.Join(box, "started")); err == nil {
		t.Error("the agent started a program of the other user's")
	}
	g.Unlead()
	if r := c.Report("a"); r.Rank[0].Step != 0 {
		t.Errorf("a step was believed: %v", r.Rank[0])
	}
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
}
