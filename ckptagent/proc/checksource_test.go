//go:build linux

package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// tries is the program of a check: it prints what the process of a trial has, and waits for its end.
const tries = `
import json, os, subprocess, sys, time
if "HOLDFAST_STANDBY_FD" in os.environ:
    import holdfast_standby
    holdfast_standby.hold()
import torch
stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("/proc/self/environ") as f:
    seen = [v for v in f.read().split("\0") if v.startswith("HOLDFAST_MARK=")]
print(json.dumps({"args": sys.argv[1:], "seen": seen, "stray": stray.pid, "input": os.readlink("/proc/self/fd/0"),
                  "env": {k: v for k, v in os.environ.items() if k not in ("HOLDFAST_MARK", "PWD", "SHLVL", "_")}}), flush=True)
time.sleep(600)
`

// imported is a module torch that notes that it was imported.
const imported = `
import os
with open(os.path.join(os.path.dirname(__file__), "imported"), "a") as f:
    f.write("once\n")
`

// sourced has the source of a pod's trials in real interpreters.
type sourced struct {
	*CheckSource
	t      *testing.T
	job    Job
	folder string
}

// newSourced makes torch a module with that text. With hook the interpreter runs the site hook.
func newSourced(t *testing.T, ranks int, torch string, hook bool) *sourced {
	t.Helper()
	python := whichPython(t)
	dir := t.TempDir()
	ours, err := filepath.Abs("../python")
	if err != nil {
		t.Fatal(err)
	}
	s := &sourced{t: t, folder: filepath.Join(dir, "torch"), CheckSource: NewCheckSource(NewExits(Root(dir), nil))}
	files := map[string]string{"python/holdfast_check.py": tries}
	if torch != "" {
		files["torch/__init__.py"], files["torch/distributed.py"] = torch, ""
	}
	for _, name := range []string{"holdfast_standby.py", "_holdfast_copies.py"} {
		text, err := os.ReadFile(filepath.Join(ours, name))
		if err != nil {
			t.Fatal(err)
		}
		files["python/"+name] = string(text)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	path := dir
	if hook {
		path = ours + ":" + dir
	}
	s.job = Job{
		Root: Root(dir),
		Mark: newMark(),
		Own:  readLimits(),
		Spec: launch.Spec{Ranks: ranks, Script: "script.py", Python: []string{python}},
		Launch: &Launch{Limits: readLimits(), Dir: dir,
			Env: map[string]string{"PATH": os.Getenv("PATH"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}},
	}
	t.Cleanup(func() { <-s.End() })
	return s
}

// said is the line of the process of a trial.
type said struct {
	Args  []string          `json:"args"`
	Seen  []string          `json:"seen"`
	Stray int               `json:"stray"`
	Input string            `json:"input"`
	Env   map[string]string `json:"env"`
}

// reads returns the first line of the process of a trial.
func (s *sourced) reads(t protocol.Trial, p Process, output *os.File, err error) (line said) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		EndAll(CheckMark(s.job.Mark, t.TrialID), []Process{p}, nil, 0)
		output.Close()
	})
	raw, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || json.Unmarshal([]byte(raw), &line) != nil {
		s.t.Fatalf("the process of a trial wrote %q: %v", raw, err)
	}
	return line
}

func aTrial(attempt int, world int) protocol.Trial {
	return protocol.Trial{
		TrialID: protocol.TrialID{Check: 1, Attempt: attempt, Partner: "pod"}, BaseRank: 2, WorldSize: world, Store: "127.0.0.1:1",
		Imports: time.Minute, Within: time.Minute,
	}
}

// TestForksMakeTrials: one interpreter imports for all trials. The process of a rank has what one with an import of its own has: arguments,
// environment and input, and the mark of its trial, by which it is ended with all that it started, and nothing else is.
func TestForksMakeTrials(t *testing.T) {
	for name, hook := range map[string]bool{"with the site hook": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			s := newSourced(t, 2, imported, hook)
			other, output, err := s.job.StartCheck(aTrial(1, 4), 1, time.Minute)
			apart := s.reads(aTrial(1, 4), other, output, err)
			var lines []said
			for attempt := range 2 {
				trial := aTrial(attempt, 4)
				if err := s.Await(s.job, trial, eventually.Timeout, nil); err != nil {
					t.Fatal(err)
				}
				for local := range 2 {
					p, output, err := s.StartCheck(trial, local, time.Minute)
					line := s.reads(trial, p, output, err)
					if want := EnvMark + "=" + CheckMark(s.job.Mark, trial.TrialID); !slices.Equal(line.Seen, []string{want}) {
						t.Errorf("marks %q, want %q", line.Seen, want)
					}
					if local == 1 && (!slices.Equal(line.Args, apart.Args) || !maps.Equal(line.Env, apart.Env) || line.Input != apart.Input) {
						t.Errorf("a fork has\n%+v, a process of its own\n%+v", line, apart)
					}
					lines = append(lines, line)
				}
			}
			EndAll(CheckMark(s.job.Mark, aTrial(0, 4).TrialID), nil, nil, 0)
			for i, line := range lines {
				if _, lives := Find(line.Stray); lives != (i >= 2) {
					t.Errorf("what process %d of the trials started lives: %v", i, lives)
				}
			}
			if !s.Process().Alive() {
				t.Error("the source was ended with a trial")
			}
			if raw, _ := os.ReadFile(filepath.Join(s.folder, "imported")); string(raw) != "once\nonce\n" {
				t.Errorf("the source and a process of its own imported: %q", raw)
			}
			p := s.Process()
			<-s.End()
			marked := func(pid int, st stat) (bool, error) { return isMarked(pid, st, SourceMark(s.job.Mark)) }
			if found, _ := find(marked); len(found) > 0 || p.Alive() {
				t.Errorf("processes %v are left of the source", found)
			}
		})
	}
}

// TestProcessesImportForThemselves where one import cannot serve all, with the reason. Imports that do not end, and a trial that is not
// wanted any more, are no reasons.
func TestProcessesImportForThemselves(t *testing.T) {
	for torch, want := range map[string]string{
		"": "cannot import all of torch torch.distributed",
		"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()": "starts a thread",
		"import os\nRANK = os.environ.get('RANK')":                                                      "reads RANK",
		"import os\nADDRESS = os.environ.get('MASTER_ADDR')":                                            "reads MASTER_ADDR",
		"import os\nos._exit(3)":                                                                        "their source ended with exit code 3",
		"import time\ntime.sleep(600)":                                                                  ErrImporting.Error(),
		"import os\nos.environ['HOLDFAST_MARK'] = 'x' + os.environ['HOLDFAST_MARK'][1:]":                "its variable HOLDFAST_MARK cannot be overwritten",
	} {
		t.Run(want, func(t *testing.T) {
			s := newSourced(t, 2, torch, true)
			within := eventually.Timeout
			if want == ErrImporting.Error() {
				within = time.Second
			}
			for range 2 {
				if err := s.Await(s.job, aTrial(1, 4), within, nil); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			stopped := make(chan struct{})
			close(stopped)
			if err := s.Await(s.job, aTrial(1, 4), within, stopped); want == ErrImporting.Error() && !errors.Is(err, ErrStopped) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSourceThatIsEnded: a trial that waits for its imports does not wait on, and does not say that they have not ended. The next one has a
// source again.
func TestSourceThatIsEnded(t *testing.T) {
	s := newSourced(t, 1, "import time\ntime.sleep(600)", true)
	waited := make(chan error, 1)
	go func() { waited <- s.Await(s.job, aTrial(1, 4), 10*eventually.Timeout, nil) }()
	eventually.Holds(t, "a source runs", func() (bool, any) { return s.Process().PID != 0, nil })
	<-s.End()
	select {
	case err := <-waited:
		if !errors.Is(err, errEnded) {
			t.Errorf("%v, want %v", err, errEnded)
		}
	case <-time.After(eventually.Timeout):
		t.Fatal("waits for a source that was ended")
	}
	if err := s.Await(s.job, aTrial(2, 4), time.Second, nil); !errors.Is(err, ErrImporting) {
		t.Errorf("%v, want %v", err, ErrImporting)
	}
}

// TestSourceThatDies after its import is not missed by trials that run, and the next one does without it. Another check has a source again.
func TestSourceThatDies(t *testing.T) {
	s := newSourced(t, 1, imported, true)
	trial := aTrial(1, 3)
	if err := s.Await(s.job, trial, eventually.Timeout, nil); err != nil {
		t.Fatal(err)
	}
	p, output, err := s.StartCheck(trial, 0, time.Minute)
	s.reads(trial, p, output, err)
	s.Process().Kill()
	eventually.Holds(t, "the end of the source is the reason", func() (bool, any) {
		err := s.Await(s.job, aTrial(2, 3), eventually.Timeout, nil)
		return err != nil && strings.Contains(err.Error(), "ended with exit code 137"), err
	})
	if !p.Alive() {
		t.Error("the process of the trial ended with the source")
	}
	if _, _, err := s.StartCheck(aTrial(2, 3), 0, time.Minute); err == nil {
		t.Error("a process without a source")
	}
	<-s.End()
	if err := s.Await(s.job, aTrial(3, 3), eventually.Timeout, nil); err != nil {
		t.Error(err)
	}
}
