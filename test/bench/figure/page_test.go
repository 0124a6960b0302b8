package figure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast.dev/holdfast/internal/golden"
)

// column is a metric of a system, case by case.
type column struct {
	title, system, metric string
	// span shows the range of the samples as well.
	span bool
}

// tables are the tables of benchmarks.md that come from a benchmark's recorded run: one row per case that has one of the columns.
var tables = map[string][][]column{
	"recovery": {{
		{"`limit`", "limit", "kill_to_step", false}, {"`limit-cold`", "limit-cold", "kill_to_step", false}, {"one process alone", "limit-cold", "one_process_alone", false},
		{"`holdfast`", "holdfast", "kill_to_step", true}, {"× `torchrun`", "holdfast", "kill_to_step_vs_torchrun", false}, {"kills before standbys", "holdfast", "kills_before_standby", false},
		{"`holdfast-cold`", "holdfast-cold", "kill_to_step", true}, {"× `torchrun`", "holdfast-cold", "kill_to_step_vs_torchrun", false},
		{"`torchrun`", "torchrun", "kill_to_step", true}, {"× `limit-cold`", "torchrun", "kill_to_step_vs_limit-cold", false},
	}, {
		{"first standbys after", "holdfast", "standby_first_ready_s", true}, {"later ones after", "holdfast", "standby_ready_s", true},
		{"step while they warm up", "holdfast", "step_ms_while_warming", false}, {"step afterwards", "holdfast", "step_ms", false}, {"step of `holdfast-cold`", "holdfast-cold", "step_ms", false},
	}},
	"scheduler": {columnsOf("last_bound"), columnsOf("last_bound_with_events"), columnsOf("unschedulable_visible"), {
		{"`holdfast-podgroup`: `last_bound`", "holdfast-podgroup", "last_bound", true}, {"× `raw`", "holdfast-podgroup", "last_bound_vs_raw", false},
		{"with events × `raw`", "holdfast-podgroup", "last_bound_with_events_vs_raw", false},
		{"`raw-job`", "raw-job", "last_bound", true}, {"`holdfast-job`", "holdfast-job", "last_bound", true}, {"× `raw-job`", "holdfast-job", "last_bound_vs_raw-job", false},
		{"with events × `raw-job`", "holdfast-job", "last_bound_with_events_vs_raw-job", false},
		{"`events_after_last_bound`: `holdfast`", "holdfast", "events_after_last_bound", false}, {"`holdfast-podgroup`", "holdfast-podgroup", "events_after_last_bound", false},
		{"`holdfast-job`", "holdfast-job", "events_after_last_bound", false},
	}, {
		{"`last_bound_cpu`: `raw`", "raw", "last_bound_cpu", true}, {"`holdfast`", "holdfast", "last_bound_cpu", true}, {"× `raw`", "holdfast", "last_bound_cpu_vs_raw", false},
		{"`holdfast-podgroup` × `raw`", "holdfast-podgroup", "last_bound_cpu_vs_raw", false}, {"`holdfast-job` × `raw-job`", "holdfast-job", "last_bound_cpu_vs_raw-job", false},
		{"`scheduler_memory` of `holdfast`", "holdfast", "scheduler_memory", false}, {"`last_bound` × `5000x5000`", "holdfast", "last_bound_vs_5000x5000", false},
	}, {
		{"`unschedulable_writes` of `holdfast`", "holdfast", "unschedulable_writes", false}, {"of `native`", "native", "unschedulable_writes", false},
		{"× `native`", "holdfast", "unschedulable_writes_vs_native", false}, {"`api_writes` of `holdfast`", "holdfast", "api_writes", false}, {"`native`", "native", "api_writes", false},
		{"`scheduler_cpu` of `holdfast`", "holdfast", "scheduler_cpu", false}, {"`plain`", "plain", "scheduler_cpu", false}, {"`native`", "native", "scheduler_cpu", false}, {"`coscheduling`", "coscheduling", "scheduler_cpu", false},
	}},
	"node-loss": {{
		{"fault to taint", "holdfast", "fault_to_taint_s", true}, {"to released", "holdfast", "fault_to_released_s", true}, {"to first new step", "holdfast", "fault_to_step_s", true},
		{"× `bare`", "holdfast", "fault_to_step_vs_bare", true}, {"`torchrun`: to first new step", "torchrun", "fault_to_step_s", false}, {"steps again", "holdfast", "steps_recomputed", true},
		{"training again", "holdfast", "training_again_s", false}, {"*1 ×*, pod and script", "torchrun", "pod_and_script_s", true},
	}, {
		{"detect", "holdfast", "phase_detect_s", false}, {"drain", "holdfast", "phase_drain_s", false}, {"stop", "holdfast", "phase_stop_s", false}, {"give up", "holdfast", "phase_give_up_s", false},
		{"replace", "holdfast", "phase_replace_s", false}, {"fetch", "holdfast", "phase_fetch_s", false}, {"start", "holdfast", "phase_start_s", false},
		{"restore", "holdfast", "phase_restore_s", false}, {"first step", "holdfast", "phase_first_step_s", false},
	}},
	"node-loss at the size of a cluster": {{
		{"nodes", "holdfast", "nodes_per_s", true}, {"`limit`", "limit", "nodes_per_s", true}, {"asked to end", "holdfast", "pods_per_s", true}, {"`limit`", "limit", "pods_per_s", true},
		{"of the limit", "holdfast", "vs_limit", true}, {"new pods run", "holdfast", "whole_per_s", true}, {"`limit`", "limit", "whole_per_s", true}, {"of the limit", "holdfast", "whole_vs_limit", true},
	}},
	"hang": {columnsOfHang("holdfast"), columnsOfHang("torchrun"), columnsOfHang("ft_launcher"), columnsOfHang("dlrover-run"), {
		{"`limit`", "limit", "step_to_report_s", false}, {"`holdfast`", "holdfast", "step_to_report_s", true}, {"× `limit`", "holdfast", "step_to_report_s_vs_limit", false},
		{"named within 20 s of the first look", "holdfast", "named_within_20s_of_first_look", false},
	}},
	"check": {{
		{"`holdfast`: check", "holdfast", "check_s", true}, {"`dlrover-run`", "dlrover-run", "check_s", true}, {"no check within", "dlrover-run", "no_check_within_s", false},
		{"× `dlrover-run`", "holdfast", "check_s_vs_dlrover-run", false}, {"not installed", "dlrover-run", "not_installed", false},
	}, {
		{"start: `holdfast-off`", "holdfast-off", "start_s", true}, {"`holdfast`", "holdfast", "start_s", true}, {"delay", "holdfast", "start_delay_s", false},
	}},
	"elastic": {columnsOfLost("limit"), columnsOfLost("holdfast"), columnsOfLost("torchrun"), columnsOfLost("dlrover-run"), {
		{"lost: × `limit`", "holdfast", "detected_to_step_s_vs_limit", false}, {"× the best other", "holdfast", "detected_to_step_s_vs_best_other", false},
		{"joined: stall × the best other", "holdfast", "stall_s_vs_best_other", false},
	}},
	"watch": {{
		{"step", "holdfast", "step_ms", true}, {"more than without the hook", "holdfast", "step_ms_over_unhooked", false}, {"at most", "holdfast", "step_ms_over_unhooked_most", false},
		{"noise", "torchrun", "step_ms_over_control", false}, {"at most", "torchrun", "step_ms_over_control_most", false},
		{"more than under torchrun", "holdfast", "step_ms_over_torchrun", false}, {"at most", "holdfast", "step_ms_over_torchrun_most", false},
	}, {
		{"processor time of a step", "holdfast", "step_cpu_ms", true}, {"more than without the hook", "holdfast", "step_cpu_ms_over_unhooked", false},
		{"at most", "holdfast", "step_cpu_ms_over_unhooked_most", false},
		{"noise", "torchrun", "step_cpu_ms_over_control", false}, {"at most", "torchrun", "step_cpu_ms_over_control_most", false},
		{"more than under torchrun", "holdfast", "step_cpu_ms_over_torchrun", false}, {"at most", "holdfast", "step_cpu_ms_over_torchrun_most", false},
	}, {
		{"agent, of a core", "holdfast", "agent_cpu", true}, {"its memory", "holdfast", "agent_memory", true},
		{"three looks: a rank", "holdfast", "still_cpu_ms", false}, {"under `torchrun`", "torchrun", "still_cpu_ms", false}, {"the agent", "holdfast", "agent_still_cpu_ms", false},
	}},
	"kinds": {columnsOfFault("rank_killed"), columnsOfFault("node_lost")},
	"checkpoint": {{
		{"`memcpy`", "memcpy", "blocking_stall", true}, {"`holdfast`", "holdfast", "blocking_stall", true}, {"× `memcpy`", "holdfast", "blocking_stall_vs_memcpy", false},
		{"p95", "holdfast", "stall_p95", false}, {"of `memcpy`", "memcpy", "stall_p95", false}, {"`dlrover`", "dlrover", "blocking_stall", true},
		{"`torch.save`", "torch.save", "blocking_stall", true}, {"with fsync", "torch.save+fsync", "blocking_stall", true}, {"`dcp-thread`", "dcp-thread", "blocking_stall", true},
	}, {
		{"first save: `holdfast`", "holdfast", "first_stall", true}, {"× later ones", "holdfast", "first_stall_vs_steady", false}, {"`memcpy`", "memcpy", "first_stall", false},
		{"`dlrover`", "dlrover", "first_stall", false},
		{"`torch.save`", "torch.save", "first_stall", false}, {"with fsync", "torch.save+fsync", "first_stall", false}, {"`dcp-thread`", "dcp-thread", "first_stall", false},
	}, {
		{"durable after: `direct`", "direct", "durable", true}, {"`holdfast`", "holdfast", "durable", true}, {"× `direct`", "holdfast", "durable_vs_direct", false},
		{"`dlrover`", "dlrover", "durable", true}, {"before its sync", "dlrover", "complete", false}, {"× `dlrover`", "holdfast", "durable_vs_dlrover", false},
		{"`torch.save+fsync`", "torch.save+fsync", "durable", true}, {"`dcp-thread`", "dcp-thread", "durable", true},
	}, {
		{"restore: `memcpy`", "memcpy", "restore", true}, {"`holdfast`", "holdfast", "restore", true}, {"× `memcpy`", "holdfast", "restore_vs_memcpy", false},
		{"`dlrover`", "dlrover", "restore", true}, {"× `dlrover`", "holdfast", "restore_vs_dlrover", false}, {"`dlrover-views`", "dlrover-views", "restore", false},
		{"`torch.load` alone", "torch.save", "load", true}, {"and put in place", "torch.save", "restore", true}, {"× `torch.load`", "holdfast", "restore_vs_torch.load", false},
	}, {
		{"kill to step: `dlrover`", "dlrover", "kill_to_step", true}, {"`dlrover-views`", "dlrover-views", "kill_to_step", false},
		{"`holdfast`", "holdfast", "kill_to_step", true}, {"× `dlrover`", "holdfast", "kill_to_step_vs_dlrover", false},
		{"`skip-init`", "holdfast-skip-init", "kill_to_step", true}, {"× `dlrover`", "holdfast-skip-init", "kill_to_step_vs_dlrover", false},
		{"`standby`", "holdfast-standby", "kill_to_step", true}, {"`standby-skip-init`", "holdfast-standby-skip-init", "kill_to_step", true},
	}},
	"plan": {{
		{"warm", "holdfast", "warm", false}, {"`scan`", "scan", "warm", false}, {"× `scan`", "holdfast", "warm_vs_scan", false}, {"cold", "holdfast", "cold, tree and counts built anew", false},
		{"memory", "holdfast", "memory of one answer", false}, {"allocations", "holdfast", "allocations of one answer", false},
	}},
}

// columnsOfFault returns the columns of both systems after a fault.
func columnsOfFault(fault string) []column {
	what := strings.ReplaceAll(fault, "_", " ")
	return []column{
		{what + ": `holdfast`", "holdfast", fault + "_s", true}, {"`own`", "own", fault + "_s", true},
		{"`own`: not within", "own", fault + "_not_within_s", false}, {"× `own`", "holdfast", fault + "_vs_own", false},
	}
}

// columnsOfLost returns the columns of a system that loses a pod and takes one in.
func columnsOfLost(system string) []column {
	return []column{
		{"`" + system + "`: lost to first new step", system, "lost_to_step_s", true}, {"from detection", system, "detected_to_step_s", true},
		{"joined to its first step", system, "joined_to_step_s", true}, {"without a step", system, "stall_s", true},
		{"no new step within", system, "no_step_within_s", false}, {"steps again", system, "steps_again", true},
		{"samples repeated", system, "samples_repeated", false}, {"skipped", system, "samples_skipped", false},
		{"not installed", system, "not_installed", false},
	}
}

// columnsOfHang returns the columns of a system under which a rank stands still.
func columnsOfHang(system string) []column {
	return []column{
		{"`" + system + "`: to report", system, "step_to_report_s", true}, {"no report within", system, "no_report_within_s", false},
		{"culprit named", system, "culprit_named", false}, {"it alone", system, "culprit_alone_named", false}, {"to order", system, "step_to_order_s", true},
		{"order to new step", system, "order_to_step_s", true}, {"no new step within", system, "no_new_step_within_s", false},
		{"steps again", system, "steps_again", false}, {"not installed", system, "not_installed", false},
	}
}

// columnsOf returns all schedulers' columns, and Holdfast's as a multiple of each.
func columnsOf(metric string) (out []column) {
	rivals := []string{"raw", "plain", "native", "coscheduling"}
	for _, s := range append(rivals, "holdfast") {
		out = append(out, column{"`" + s + "`", s, metric, true})
	}
	out[len(out)-1].title = "`holdfast`: `" + metric + "`"
	for _, s := range rivals {
		out = append(out, column{"× `" + s + "`", "holdfast", metric + "_vs_" + s, false})
	}
	return out
}

// rendered returns the tables of a run, below a line that identifies the run.
func rendered(r Run, tables [][]column) string {
	var b strings.Builder
	say := func(format string, args ...any) {
		b.WriteString(wrapped(fmt.Sprintf(format, args...)) + "\n")
	}
	say("Run of %s, commit %s, `%s`, %.0f s, on %s, load before it %s: [benchmarks/%s.jsonl](benchmarks/%[7]s.jsonl). Medians (range).",
		r.Date, r.Commit, r.Command, r.Seconds, r.Machine, r.Load, r.Recorded)
	if len(r.Missed) > 0 {
		b.WriteString("\n")
		say("Goals missed: %s.", strings.Join(r.Missed, "; "))
	}
	if r.Broken != "" {
		b.WriteString("\n")
		say("This failed, and has no figures: %s", r.Broken)
	}
	var kases []string
	for _, f := range r.Rows {
		if !slices.Contains(kases, f.Case) {
			kases = append(kases, f.Case)
		}
	}
	for _, columns := range tables {
		b.WriteString(tableOf(r, kases, columns))
	}
	return b.String()
}

// tableOf returns one table: a row per case with a figure, and the columns that some case has.
func tableOf(r Run, kases []string, columns []column) string {
	var b strings.Builder
	var rows [][]string
	used := make([]bool, len(columns))
	for _, kase := range kases {
		row, any := []string{kase}, false
		for i, c := range columns {
			f, ok := r.Find(Key{Case: kase, System: c.system, Metric: c.metric})
			text := quote(f, ok, c.span)
			if _, reported := r.Find(Key{Case: kase, System: c.system, Metric: "can"}); reported && !ok {
				text = "cannot"
			}
			used[i], any = used[i] || text != "", any || ok
			row = append(row, text)
		}
		if any {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return ""
	}
	head, line := "\n| case |", "|---|"
	for i, c := range columns {
		if used[i] {
			head, line = head+" "+c.title+" |", line+"---|"
		}
	}
	b.WriteString(head + "\n" + line + "\n")
	for _, row := range rows {
		b.WriteString("| " + row[0] + " |")
		for i, text := range row[1:] {
			if used[i] {
				b.WriteString(strings.TrimRight(" "+text, " ") + " |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// quote formats a figure in a few characters.
func quote(f Figure, ok, span bool) string {
	if !ok || f.Unit == Times && f.Value <= 0 { // there is no multiple of a value that ended before the clock began
		return ""
	}
	unit := map[string]string{Times: "", Share: "", "1": "", "bool": "", "steps": "", "samples": "", "kills": fmt.Sprintf(" of %d", f.N), "count": ""}
	suffix, known := unit[f.Unit]
	if !known {
		suffix = " " + f.Unit
	}
	text := short(f.Value) + suffix
	if span && len(f.Samples) > 1 {
		text += fmt.Sprintf(" (%s–%s)", short(slices.Min(f.Samples)), short(slices.Max(f.Samples)))
	}
	return text
}

// short formats a number with three significant digits, never as a power of ten.
func short(v float64) string {
	text := strconv.FormatFloat(v, 'g', 3, 64)
	if v >= 1000 || v <= -1000 {
		text = fmt.Sprintf("%.0f", v)
	} else if strings.Contains(text, "e") {
		text = fmt.Sprintf("%.4f", v)
	}
	return text
}

// wrapped is text wrapped at the page's width.
func wrapped(text string) (out string) {
	line := 0
	for _, word := range strings.Fields(text) {
		switch n := utf8.RuneCountInString(word); {
		case line == 0:
			line = n
		case line+1+n > 118:
			out, line = out+"\n", n
		default:
			out, line = out+" ", line+1+n
		}
		out += word
	}
	return out
}

// TestPageQuotesRecordedRuns: the page's text between its marks is made from the recorded runs; with -update it is rewritten. For a
// benchmark without a recorded run the page must state that.
func TestPageQuotesRecordedRuns(t *testing.T) {
	const root = "../../.."
	file := filepath.Join(root, "docs", "benchmarks.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for name, of := range tables {
		mark := "<!-- figures of " + name + " -->\n"
		before, rest, found := strings.Cut(text, mark)
		quoted, after, ended := strings.Cut(rest, "<!-- end -->")
		if !found || !ended {
			t.Fatalf("%s has no %q with an end", file, mark)
		}
		bench, _, _ := strings.Cut(name, " ")
		lines, err := os.ReadFile(RecordedIn(root, bench))
		if errors.Is(err, fs.ErrNotExist) {
			if said := strings.Join(strings.Fields(quoted), " "); !strings.Contains(said, "no lines were kept") {
				t.Errorf("%s: the figures of %s are of no recorded run and do not say that no lines were kept", file, name)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		run, err := ParseRun(bench, lines)
		if err != nil {
			t.Fatalf("%s: %v", RecordedIn(root, bench), err)
		}
		text = before + mark + rendered(run, of) + "<!-- end -->" + after
	}
	golden.File(t, file, text)
}

func TestRenderedFigures(t *testing.T) {
	r := Run{
		Header: Header{
			Recorded: "b",
			Command:  "bench-b",
			Commit:   "abc",
			Date:     "2026-01-02",
			Machine:  "2 cores",
			Load:     "0.1 0.2 0.3",
			Seconds:  609,
			Missed:   []string{"a: m is 2", "b: m is 3"},
			Broken:   "c: no figures",
		},
	}
	r.Rows = []Figure{
		{Case: "a", System: "ours", Metric: "m", Value: 1.23456, Unit: "s", N: 3, Samples: []float64{2.5, 1.23456, 0.1}},
		{Case: "a", System: "ours", Metric: "m_vs", Value: 0.00002, Unit: Times, N: 3},
		{Case: "b", System: "ours", Metric: "m_vs", Value: -0.5, Unit: Times, N: 3},
		{Case: "b", System: "theirs", Metric: "can", Value: 0, Unit: "bool", N: 1, Samples: []float64{0}},
		{Case: "b", System: "ours", Metric: "m", Value: 12345.6, Unit: "kills", N: 7},
		{Case: "c", System: "ours", Metric: "other", Value: 1, Unit: "s", N: 1},
	}
	got := rendered(r, [][]column{{{"ours", "ours", "m", true}, {"×", "ours", "m_vs", false}, {"theirs", "theirs", "m", true}, {"both", "theirs", "n", false}}, {{"none", "none", "m", false}}})
	want := "Run of 2026-01-02, commit abc, `bench-b`, 609 s, on 2 cores, load before it 0.1 0.2 0.3:\n[benchmarks/b.jsonl](benchmarks/b.jsonl). Medians (range).\n" +
		"\nGoals missed: a: m is 2; b: m is 3.\n" +
		"\nThis failed, and has no figures: c: no figures\n" +
		"\n| case | ours | × | theirs | both |\n|---|---|---|---|---|\n| a | 1.23 s (0.1–2.5) | 0.0000 | | |\n| b | 12346 of 7 | | cannot | cannot |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
