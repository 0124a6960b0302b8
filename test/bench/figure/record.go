package figure

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Header is the first line of a recorded run: the conditions of its figures.
type Header struct {
	// Recorded names the benchmark, so that no other line is read as a header.
	Recorded string `json:"recorded"`
	Command  string `json:"command"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Machine  string `json:"machine"`
	// Load is the machine's load average as the run began: over 1, 5 and 15 minutes.
	Load    string  `json:"load"`
	Seconds float64 `json:"seconds"`
	// Missed are the goals that the run missed.
	Missed []string `json:"missed,omitempty"`
	// Broken is what failed in the run; a failed case has no figures.
	Broken string `json:"broken,omitempty"`
}

// Run is a recorded run.
type Run struct {
	Header
	Rows []Figure
}

// Find returns the row with a key.
func (r Run) Find(k Key) (Figure, bool) {
	for _, f := range r.Rows {
		if f.key() == k {
			return f, true
		}
	}
	return Figure{}, false
}

// ParseRun reads a recorded run of a benchmark. An unknown field is an error: otherwise a renamed figure would look like one that was not
// measured.
func ParseRun(bench string, text []byte) (Run, error) {
	var r Run
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		n++
		var err error
		if n == 1 {
			err = strict(lines.Bytes(), &r.Header)
		} else {
			r.Rows = append(r.Rows, Figure{})
			err = strict(lines.Bytes(), &r.Rows[len(r.Rows)-1])
		}
		if err != nil {
			return r, fmt.Errorf("line %d: %w", n, err)
		}
	}
	switch {
	case lines.Err() != nil:
		return r, lines.Err()
	case r.Recorded != bench:
		return r, fmt.Errorf("line 1: a run of %q, not of %q: give a file that --record wrote", r.Recorded, bench)
	case len(r.Rows) == 0:
		return r, errors.New("there is no figure after the header")
	}
	for i, f := range r.Rows {
		if f.Bench != bench {
			return r, fmt.Errorf("line %d: a figure of %q, not of %q", i+2, f.Bench, bench)
		}
	}
	return r, nil
}

func strict(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Bytes returns the run in the format of its file.
func (r Run) Bytes() ([]byte, error) {
	var out bytes.Buffer
	head, err := json.Marshal(r.Header)
	if err != nil {
		return nil, err
	}
	out.Write(append(head, '\n'))
	err = WriteLines(&out, r.Rows)
	return out.Bytes(), err
}

// RecordedIn is the path of a benchmark's recorded run in a source tree.
func RecordedIn(source, bench string) string {
	return filepath.Join(source, "docs", "benchmarks", bench+".jsonl")
}

// headerOf returns the header of a run that begins now.
func headerOf(source, bench string) (Header, error) {
	h := Header{
		Recorded: bench,
		Command:  strings.Join(append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...), " "),
		Date:     time.Now().UTC().Format(time.DateOnly),
	}
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", source}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return h, fmt.Errorf("--record: %w: the commit is unknown: measure in a git checkout, or leave the flag out", err)
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
	if err != nil {
		return h, fmt.Errorf("--record: %w", err)
	}
	if h.Commit = commit; changed != "" {
		h.Commit += ", changed"
	}
	h.Machine, h.Load = machine(file("/proc/cpuinfo"), file("/proc/meminfo"), file("/etc/os-release"), runtime.NumCPU()), load(file("/proc/loadavg"))
	return h, nil
}

// file is a file's text; "" if there is none.
func file(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// machine describes a machine in a few words.
func machine(cpuinfo, meminfo, release string, cores int) string {
	field := func(text, name string) string {
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, name); ok {
				return strings.Trim(strings.TrimLeft(rest, "\t :="), "\n\" ")
			}
		}
		return ""
	}
	parts := []string{fmt.Sprintf("%d cores", cores)}
	if model := field(cpuinfo, "model name"); model != "" {
		parts[0] += " of " + model
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field(meminfo, "MemTotal"), " kB")); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20)))
	}
	if name := field(release, "PRETTY_NAME"); name != "" {
		parts = append(parts, name)
	}
	return strings.Join(parts, ", ")
}

// load returns the three averages of a line of /proc/loadavg.
func load(line string) string {
	words := strings.Fields(line)
	return strings.Join(words[:min(3, len(words))], " ")
}
