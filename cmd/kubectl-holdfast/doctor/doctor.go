// Package doctor judges a cluster from facts that were read: whether Holdfast can be installed there, whether it works,
// and what remains to be done before it is removed. A fact that could not be read gives result Unknown, never Pass.
// The package reads nothing but its input. The same facts give the same report.
package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// Result is the outcome of one check.
type Result string

// Results, best first. Of several problems of one check the worst is its result.
const (
	// Pass: everything was read, and it is as it should be.
	Pass Result = "Pass"
	// Skip: the check does not apply to this cluster.
	Skip Result = "Skip"
	// Warn: Holdfast works, and something about it may surprise.
	Warn Result = "Warn"
	// Unknown: a fact could not be read, so the check has no answer.
	Unknown Result = "Unknown"
	// Fail: a part of Holdfast does not work, or will not.
	Fail Result = "Fail"
)

var results = []Result{Pass, Skip, Warn, Unknown, Fail}

func (r Result) worse(than Result) bool {
	return slices.Index(results, r) > slices.Index(results, than)
}

// Finding is the outcome of one check, with its remedy.
type Finding struct {
	Check   string `json:"check"`
	Result  Result `json:"result"`
	Message string `json:"message"`
	// Also lists the check's other problems.
	Also   []string `json:"also,omitempty"`
	Remedy string   `json:"remedy,omitempty"`
	// See is the section of the documentation about this check.
	See string `json:"see"`
}

// Stage is when the cluster is checked.
type Stage string

const (
	// BeforeInstall: the cluster does not serve Gangs.
	BeforeInstall Stage = "BeforeInstall"
	// Installed: the cluster serves Gangs.
	Installed Stage = "Installed"
	// BeforeUninstall: the user wants to remove Holdfast.
	BeforeUninstall Stage = "BeforeUninstall"
)

// Report has the findings about a cluster; -o json and -o yaml print it as it is.
type Report struct {
	Stage     Stage     `json:"stage"`
	Namespace string    `json:"namespace"`
	At        time.Time `json:"at"`
	Findings  []Finding `json:"findings"`
}

// check is one check; judge records the problems that it finds.
type check struct {
	name   string
	stages []Stage
	judge  func(*Facts, *judgement)
}

var (
	always    = []Stage{BeforeInstall, Installed}
	installed = []Stage{Installed}
	leaving   = []Stage{BeforeUninstall}
)

// checks are all checks, in the order of the report.
var checks = []check{
	{"APIServer", always, apiServer},
	{"Nodes", always, nodesFit},
	{"Components", installed, components},
	{"Versions", installed, versions},
	{"Leaders", installed, leaders},
	{"Webhook", installed, webhook},
	{"Certificate", installed, certificate},
	{"Coordinator", installed, coordinator},
	{"DNS", always, names},
	{"NetworkPolicies", always, networkPolicies},
	{"AgentImage", installed, agentImage},
	{"NodeDaemon", installed, nodeDaemon},
	{"NVML", installed, nvml},
	{"Leases", always, leases},
	{"Taints", always, taints},
	{"Autoscaler", always, autoscaler},
	{"PodSecurity", always, podSecurity},
	{"Quota", always, quota},
	{"RunningGangs", leaving, runningGangs},
	{"WaitingPods", leaving, waitingPods},
	{"Admission", leaving, admission},
	{"NodeMarks", leaving, nodeMarks},
}

// Of judges the facts.
func Of(f *Facts) Report {
	r := Report{Stage: f.stage(), Namespace: f.Namespace, At: f.At, Findings: []Finding{}}
	for _, c := range checks {
		if !slices.Contains(c.stages, r.Stage) {
			continue
		}
		j := &judgement{of: f}
		c.judge(f, j)
		r.Findings = append(r.Findings, j.finding(c.name))
	}
	return r
}

func (f *Facts) stage() Stage {
	switch {
	case f.Leaving:
		return BeforeUninstall
	case f.Serves:
		return Installed
	}
	return BeforeInstall
}

// judgement collects what one check finds.
type judgement struct {
	of    *Facts
	found []problem
}

type problem struct {
	result       Result
	text, remedy string
}

func (j *judgement) add(r Result, remedy, format string, args ...any) {
	j.found = append(j.found, problem{r, fmt.Sprintf(format, args...), remedy})
}

func (j *judgement) pass(format string, args ...any) { j.add(Pass, "", format, args...) }
func (j *judgement) skip(format string, args ...any) { j.add(Skip, "", format, args...) }
func (j *judgement) warn(remedy, format string, args ...any) {
	j.add(Warn, remedy, format, args...)
}
func (j *judgement) fail(remedy, format string, args ...any) {
	j.add(Fail, remedy, format, args...)
}

// unread records that facts of the check could not be read which ClusterRole holdfast-doctor lets users read.
func (j *judgement) unread(what string, whys ...string) {
	j.notAllowed("a ClusterRoleBinding to the ClusterRole "+j.of.named(doctorRole), what, whys)
}

// unreadHere records the same of facts of the user's namespace.
func (j *judgement) unreadHere(what string, whys ...string) {
	j.notAllowed("a RoleBinding to the ClusterRole view in namespace "+j.of.Namespace, what+" of namespace "+j.of.Namespace, whys)
}

// notAllowed names the binding that lets users read what could not be read.
func (j *judgement) notAllowed(binding, what string, whys []string) {
	whys = slices.DeleteFunc(whys, func(why string) bool { return why == "" })
	j.add(Unknown, "let an administrator run the command, or ask for "+binding, "%s could not be read: %s", what, strings.Join(whys, "; "))
}

// finding is the worst problem, with the others; beside a problem, what is as it should be is left out.
func (j *judgement) finding(name string) Finding {
	f := Finding{Check: name, Result: Unknown, Message: "the check found nothing to judge", See: "docs/doctor.md#" + strings.ToLower(name)}
	worst := -1
	for i, p := range j.found {
		if worst < 0 || p.result.worse(j.found[worst].result) {
			worst = i
		}
	}
	if worst < 0 {
		return f
	}
	f.Result, f.Message, f.Remedy = j.found[worst].result, j.found[worst].text, j.found[worst].remedy
	for i, p := range j.found {
		if i != worst && (p.result.worse(Skip) || !f.Result.worse(Skip)) {
			f.Also = append(f.Also, p.text)
		}
	}
	return f
}

// Exit codes of the command.
const (
	exitFail    = 1
	exitUnknown = 3
)

// ExitCode is 0 if no check failed and every check has an answer; 1 if a check failed; 3 if only answers are missing.
func (r Report) ExitCode() int {
	code := 0
	for _, f := range r.Findings {
		switch f.Result {
		case Fail:
			return exitFail
		case Unknown:
			code = exitUnknown
		}
	}
	return code
}

// title is the report's first line.
var title = map[Stage]string{
	BeforeInstall:   "Holdfast is not installed; whether this cluster is ready for it",
	Installed:       "Holdfast is installed; whether it works",
	BeforeUninstall: "What remains to be done before Holdfast is removed",
}

// mostAlso bounds the further problems of one check in the text.
const mostAlso = 6

// Text is the report for users.
func (r Report) Text(wide bool) string {
	w := &page.Page{}
	w.Linef("%s (namespace %s)", title[r.Stage], r.Namespace)
	w.Linef("")
	var rows [][]string
	for _, f := range r.Findings {
		rows = append(rows, []string{string(f.Result), f.Check, f.Message})
	}
	w.Table("", []string{"RESULT", "CHECK", "WHAT"}, rows, wide)
	head := false
	for _, f := range r.Findings {
		if f.Result != Fail && f.Result != Warn && f.Result != Unknown {
			continue
		}
		if !head {
			head = true
			w.Linef("")
			w.Linef("What to do")
		}
		w.Wrapf("  "+f.Check+"  ", "%s", f.Message)
		for i, also := range f.Also {
			if i == mostAlso && !wide {
				w.Linef("    and %d more; -o json has all", len(f.Also)-i)
				break
			}
			w.Wrapf("    - ", "%s", also)
		}
		if f.Remedy != "" {
			w.Wrapf("    remedy: ", "%s", f.Remedy)
		}
		w.Linef("    see:    %s", f.See)
	}
	w.Linef("")
	w.Linef("%s", r.sum())
	return w.String()
}

// sum counts the results, worst first.
func (r Report) sum() string {
	var parts []string
	for i := len(results) - 1; i >= 0; i-- {
		n := 0
		for _, f := range r.Findings {
			if f.Result == results[i] {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, results[i]))
		}
	}
	return fmt.Sprintf("%s: %s", page.Count(len(r.Findings), "check", "checks"), strings.Join(parts, ", "))
}
