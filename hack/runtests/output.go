package main

import (
	"regexp"
	"slices"
	"strings"
)

const module = "holdfast.dev/holdfast/"

var (
	current   = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +([^/\s]+)`)
	words     = regexp.MustCompile(`^ +[A-Za-z0-9_]+\.go:[0-9]+: `)
	failedGo  = regexp.MustCompile(`^--- FAIL: (\S+)`)
	skippedGo = regexp.MustCompile(`^ *--- SKIP: (\S+)`)
	passedGo  = regexp.MustCompile(`^=== |^ *--- PASS`)
	broken    = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: |signal: |\*\*\* Test killed)`)
	// packageEnd matches the last line of go test's output for a package, which is contiguous.
	packageEnd = regexp.MustCompile(`^(ok|FAIL|\?)\s+(\S+)`)
	failedPy   = regexp.MustCompile(`^(?:FAIL|ERROR): .*?\(([^ )]+)\)`)
	endPy      = regexp.MustCompile(`^======|^Ran `)
	testPy     = regexp.MustCompile(`^\w+ \(([^)]+)\)`)
	telling    = regexp.MustCompile(`^ *--- FAIL|^FAIL|^ERROR: |^panic|\*\*\* | ended with `)
)

// failure is a failed test of a job, with the last line of its output. Without test: a package that broke off (panic, time limit, build),
// whose later tests never ran; without pkg: a job that named no test. Tests of unittest belong to the package python.
type failure struct {
	job             job
	pkg, test, said string
}

func (f failure) String() string {
	return strings.Join(slices.DeleteFunc([]string{f.job.name, f.pkg, f.test}, func(s string) bool { return s == "" }), " ")
}

// failed reads the log of a failed job.
func failed(j job, log string) []failure {
	found := failedOfGo(j, log)
	found = append(found, failedOfPython(j, log)...)
	if len(found) > 0 {
		return found
	}
	last := ""
	for line := range strings.Lines(log) {
		last = strings.TrimSpace(line)
	}
	return []failure{{job: j, said: last}}
}

func failedOfGo(j job, log string) (found []failure) {
	var names []string
	test, off, said := "", "", map[string]string{}
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\n")
		if m := current.FindStringSubmatch(line); m != nil {
			test = m[1]
		} else if words.MatchString(line) {
			said[test] = strings.TrimSpace(line)
		} else if m := failedGo.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		} else if off == "" && broken.MatchString(line) {
			off = line
		} else if m := packageEnd.FindStringSubmatch(line); m != nil {
			pkg := strings.TrimPrefix(m[2], module)
			switch {
			case m[1] != "FAIL":
			case off != "" || len(names) == 0:
				if off == "" {
					off = line
				}
				found = append(found, failure{j, pkg, "", off})
			default:
				for _, name := range names {
					found = append(found, failure{j, pkg, name, said[name]})
				}
			}
			names, test, off, said = nil, "", "", map[string]string{}
		}
	}
	return found
}

// failedOfPython lists each test once, however many subtests failed; the last line of a traceback is the error.
func failedOfPython(j job, log string) (found []failure) {
	var test, said string
	end := func() {
		if test != "" && !slices.ContainsFunc(found, func(f failure) bool { return f.test == test }) {
			found = append(found, failure{j, "python", test, said})
		}
		test, said = "", ""
	}
	for line := range strings.Lines(log + "\nRan ") {
		line = strings.TrimSpace(line)
		if m := failedPy.FindStringSubmatch(line); m != nil {
			end()
			test = m[1]
		} else if endPy.MatchString(line) {
			end()
		} else if line != "" && !strings.HasPrefix(line, "-----") {
			said = line
		}
	}
	return found
}

// skipped returns the skipped tests of a log: package and test.
func skipped(log string) (names []string) {
	var tests []string
	test := ""
	for line := range strings.Lines(log) {
		if m := skippedGo.FindStringSubmatch(line); m != nil {
			tests = append(tests, m[1])
		} else if m := packageEnd.FindStringSubmatch(line); m != nil {
			for _, name := range tests {
				names = append(names, strings.TrimPrefix(m[2], module)+" "+name)
			}
			tests = nil
		}
		if m := testPy.FindStringSubmatch(line); m != nil {
			test = m[1]
		}
		if strings.Contains(line, " ... skipped ") {
			names = append(names, "python "+test)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// shown returns a function that maps each line of a job to the lines to print. Unit tests print every test, so that skipped ones can be
// found: of these only failed packages are printed.
func shown(j job) func(line string) []string {
	var held []string
	return func(line string) []string {
		switch {
		case strings.HasPrefix(j.name, "unit"), j.name == "agents", j.name == "kills", j.name == "launchers":
			if passedGo.MatchString(line) {
				return nil
			}
			held = append(held, line)
			m := packageEnd.FindStringSubmatch(line)
			if m == nil {
				return nil
			}
			all := held
			held = nil
			if m[1] == "FAIL" {
				return all
			}
		case j.name == "python-unit" && strings.HasSuffix(line, "... ok"), strings.HasPrefix(line, "=== "):
			return nil
		}
		return []string{line}
	}
}
