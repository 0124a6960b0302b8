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
	// check computes, with a low share of the processor, so that tests on clusters keep their time limits as if alone.
	check kind = iota
	unit
	// trains is a test on a cluster whose job trains on many nodes: only one of them at a time.
	trains
	// waits is a test that mostly waits, for leases, leaders, back-offs, grace or killed processes. A cluster needs up to 4 GiB and a core;
	// with less its tests exceed limits that a busy machine breaks.
	waits
)

// plan lists the jobs: the first two clusters train, the others start in this order.
func plan(clusters []string) []job {
	jobs := []job{{"fmt", "fmt", check}, {"vet", "vet", check}, {"lint", "lint", check},
		{"unit", "unit", unit}, {"unit-cores", "unit-cores", unit}, {"unit-kubernetes", "unit-kubernetes", unit}, {"python-unit", "python-unit", unit}}
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

// next is the index of the first waiting job that may start beside the running ones, -1 if none. Checks have two slots of their own; unit
// tests get one more once no other job waits. Of the other jobs `width` run at a time, and one more once the checks have ended. With width
// 1 they wait for the checks.
func next(waiting, running []job, width int) int {
	checks := func(jobs []job) bool { return slices.ContainsFunc(jobs, func(j job) bool { return j.kind <= unit }) }
	switch {
	case !checks(waiting) && !checks(running):
		width++
	case width == 1:
		width = 0
	}
	count := map[kind]int{}
	for _, j := range running {
		count[j.kind]++
	}
	units := 2
	if slices.ContainsFunc(waiting, func(j job) bool { return j.kind > unit }) {
		units = 1
	}
	most := map[kind]int{check: 1, unit: units, trains: 1, waits: width}
	for i, j := range waiting {
		if count[j.kind] < most[j.kind] && (j.kind <= unit || count[trains]+count[waits] < width) {
			return i
		}
	}
	return -1
}

// width is how many tests on clusters the machine can run at a time: 7 GiB are reserved for the jobs beside them.
func width(memoryGiB float64, cores int) int {
	return max(1, min(int((memoryGiB-7)/4), 3, cores))
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
