package layout

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Record lists what a cluster adds to the machine. Each entry is written before the thing is created, so that any reader of the record can
// remove all of them, and removes nothing else.
type Record struct {
	Spec Spec `json:"spec"`
	// Links are the network links on the machine.
	Links []string `json:"links"`
	// Cgroups are the absolute directories of the cluster's cgroups.
	Cgroups []string `json:"cgroups"`
	// Supervisor is process 1 of the cluster's process namespace: when it ends, the kernel ends all others.
	Supervisor Process `json:"supervisor"`
	// Owner, if set, is the process with which the cluster ends.
	Owner Process `json:"owner"`
}

// Process identifies a process; a later one with the same number differs.
type Process struct {
	PID int `json:"pid,omitempty"`
	// Start is the start time in clock ticks since boot, from /proc/PID/stat.
	Start uint64 `json:"start,omitempty"`
	// Boot is the id of the boot that Start counts from.
	Boot string `json:"boot,omitempty"`
}

// Status is what the supervisor reports while it starts and runs the cluster.
type Status struct {
	Phase   Phase     `json:"phase"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	// ReadySeconds is how long the start took, once it is done.
	ReadySeconds float64 `json:"readySeconds,omitempty"`
}

// Phase is the progress of a cluster's start.
type Phase string

const (
	// Starting: some part of the cluster is not up yet.
	Starting Phase = "Starting"
	// Ready: all nodes are Ready and the cluster DNS responds.
	Ready Phase = "Ready"
	// Broken: the start failed.
	Broken Phase = "Broken"
)

// RecordFile is the record's name inside a cluster's directory.
const RecordFile = "record.json"

// StatusFile is the status's name inside a cluster's directory.
const StatusFile = "status.json"

// ReadRecord reads the record of the cluster in dir; fs.ErrNotExist if there is none.
func ReadRecord(dir string) (*Record, error) {
	r := &Record{}
	if err := readJSON(filepath.Join(dir, RecordFile), r); err != nil {
		return nil, err
	}
	return r, nil
}

// Write stores the record in the cluster's directory.
func (r *Record) Write() error { return writeJSON(filepath.Join(r.Spec.Dir, RecordFile), r) }

// ReadStatus reads the supervisor's last report.
func ReadStatus(dir string) (*Status, error) {
	st := &Status{}
	if err := readJSON(filepath.Join(dir, StatusFile), st); err != nil {
		return nil, err
	}
	return st, nil
}

// Write stores the status in dir.
func (st *Status) Write(dir string) error { return writeJSON(filepath.Join(dir, StatusFile), st) }

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces path in one step, so that a reader sees the old or the new content.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Orders to the supervisor, once its cluster is recorded.
const (
	// Go: start, and run until killed.
	Go = "go"
	// GoWithMe: start, and end when the orders pipe is closed.
	GoWithMe = "go with me"
)
