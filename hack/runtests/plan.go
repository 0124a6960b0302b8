package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// job is a command of the Makefile with its own log.
type job struct {
	name, verb string
	kind       kind
}

func (j job) log() string { return logs + "/" + j.name }

// kind is what a job needs of the machine, and so which jobs may run beside it.
type kind int

const (
	// check computes on one core, with the same result each time.
	check kind = iota
	// unit computes, too, and may have a result that depends on time.
	unit
	// trains is a test on a cluster whose job trains on many nodes: only one of them at a time.
	trains
	// waits is a test that mostly waits, for leases, leaders, back-offs, grace or killed processes.
	waits
)

// plan lists the jobs in their order; the longest check is first. The first two clusters train.
func plan(clusters []string) []job {
	jobs := []job{{"python-unit", "python-unit", unit}, {"fmt", "fmt", check}, {"vet", "vet", check}, {"lint", "lint", check},
		{"unit", "unit", unit}, {"unit-cores", "unit-cores", unit}, {"unit-kubernetes", "unit-kubernetes", unit}}
	for i, name := range clusters {
		k := waits
		if i < 2 {
			k = trains
		}
		jobs = append(jobs, job{name, "cluster-" + name, k})
	}
	for _, name := range []string{"kills", "agents", "launchers"} {
		jobs = append(jobs, job{name, name, waits})
	}
	return jobs
}

// next is the index of the first waiting job that may start beside the running ones, -1 if none. Checks come first: beside them a test on a
// cluster exceeds its time limits on a slow machine, and so do they if clusters use most of the processor. One check runs for each core and
// one more, because some wait now and then. Then `width` jobs run at a time, but only one while the machine is busy.
func next(waiting, running []job, cores, width int, busy bool) int {
	isCheck := func(j job) bool { return j.kind <= unit }
	if i := slices.IndexFunc(waiting, isCheck); i >= 0 {
		if len(running) <= cores {
			return i
		}
		return -1
	}
	if len(running) >= width || len(running) > 0 && busy {
		return -1
	}
	trainer := slices.ContainsFunc(running, func(j job) bool { return j.kind == trains })
	return slices.IndexFunc(waiting, func(j job) bool { return j.kind != trains || !trainer })
}

// width is how many tests on clusters the machine can run at a time: each needs up to 4 GiB and a core, and 3 GiB are reserved.
func width(memoryGiB float64, cores int) int {
	return max(1, min(int((memoryGiB-3)/4), 3, cores))
}

// busyPercent is the pressure at which no further test on a cluster starts beside another. One that trains causes up to 85 % on a machine
// of two slow cores.
const busyPercent = 80

// busy reads /proc/pressure/cpu: whether, in the last minute, a process waited for a core during most of the time. Without the file a
// machine is not busy.
func busy(pressure string) bool {
	_, text, _ := strings.Cut(pressure, "avg60=")
	var percent float64
	_, err := fmt.Sscan(text, &percent)
	return err == nil && percent > busyPercent
}

// memoryGiB is the machine's memory, 0 if /proc does not show it.
func memoryGiB() float64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kib float64
		if strings.HasPrefix(lines.Text(), "MemTotal:") {
			_, _ = fmt.Sscanf(lines.Text(), "MemTotal: %f kB", &kib)
			return kib / 1024 / 1024
		}
	}
	return 0
}
