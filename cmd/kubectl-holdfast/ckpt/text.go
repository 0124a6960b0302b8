package ckpt

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// branchColumn is the index of the column for branches, which is shown only if a step has a branch other than the first.
const branchColumn = 2

// maxRows is the most rows of one table.
const maxRows = 200

// List is the report on the content of storage, as text.
func (r Report) List(wide bool) string {
	w := &page.Page{}
	r.head(w, "in storage")
	for _, f := range r.Folders {
		w.Linef("")
		if r.Job == nil {
			w.Linef("%s", f.Name)
		}
		f.table(w, r.At, wide)
	}
	r.foot(w)
	return w.String()
}

// Verification is the report on the verified files, as text.
func (r Report) Verification(wide bool) string {
	w := &page.Page{}
	r.head(w, "read, every byte")
	for _, f := range r.Folders {
		for i, s := range f.Steps {
			w.Linef("")
			if i == maxRows {
				w.Linef("%d more steps: see -o json", len(f.Steps)-i)
				break
			}
			s.detail(w, f.Name, r.Job == nil, wide)
		}
	}
	r.foot(w)
	return w.String()
}

// head prints the number of steps and where they were read.
func (r Report) head(w *page.Page, what string) {
	steps, size := 0, int64(0)
	for _, f := range r.Folders {
		for _, s := range f.Steps {
			if s.State != NotThere && (s.State != Unlooked || s.Unlooked > 0) {
				steps, size = steps+1, size+s.Bytes
			}
		}
	}
	of := r.Source
	if r.Job != nil {
		of = page.JobTitle(r.Namespace, *r.Job)
	}
	w.Linef("%s: %s %s, %s", of, page.Count(steps, "step", "steps"), what, page.Bytes(size))
	if r.Job != nil {
		w.Linef("  seen by %s", r.Source)
	}
	if r.Claim != nil {
		w.Linef("  claim %s, every %s", r.Claim.Claim, time.Duration(r.Claim.IntervalSeconds)*time.Second)
	}
}

// table lists the steps of a folder.
func (f Folder) table(w *page.Page, now time.Time, wide bool) {
	shown := f.Steps
	if !wide {
		shown = shown[:min(maxRows, len(shown))]
	}
	branches := slices.ContainsFunc(shown, func(s Step) bool { return s.Branch != 0 })
	columns := []string{"STEP", "GENERATION", "RANKS", "SIZE", "AGE", "RECORD", "RESTORED", "STATE", "WHY"}
	if branches {
		columns = slices.Insert(columns, branchColumn, "BRANCH")
	}
	var rows [][]string
	for _, s := range shown {
		age, restored := "-", "-"
		if s.RecordedAt != nil {
			age = page.Age(s.RecordedAt.Time, now)
		}
		if s.Restored {
			restored = "yes"
		}
		row := []string{
			fmt.Sprint(s.Step.Step),
			fmt.Sprint(s.Generation),
			s.ranks(),
			page.Bytes(s.Bytes),
			age,
			page.Dash(s.Record),
			restored,
			string(s.State),
			page.Dash(s.Why),
		}
		if branches {
			row = slices.Insert(row, branchColumn, fmt.Sprint(s.Branch))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		w.Linef("no step in folder %s", f.Name)
	} else {
		w.Table("", columns, rows, wide)
	}
	if more := len(f.Steps) - len(rows); more > 0 {
		w.Linef("%d older steps: see -o wide or -o json", more)
	}
	if f.Foreign > 0 {
		w.Linef("%s not named as ours in folder %s, which nothing touches", page.Count(f.Foreign, "entry is", "entries are"), f.Name)
	}
}

// ranks is how many ranks' files are whole, of how many.
func (s *Step) ranks() string {
	if s.Ranks == 0 {
		return fmt.Sprintf("%d/?", s.Good)
	}
	return fmt.Sprintf("%d/%d", s.Good, s.Ranks)
}

// detail prints the state of each file of a step; consecutive files in the same state share a line.
func (s *Step) detail(w *page.Page, folder string, named, wide bool) {
	branch := ""
	if s.Branch != 0 {
		branch = fmt.Sprintf(", branch %d", s.Branch)
	}
	title := fmt.Sprintf("Step %d of generation %d%s: %s", s.Step.Step, s.Generation, branch, s.State)
	if s.Record != "" {
		title += ", recorded as " + s.Record
	}
	if named {
		title = folder + "  " + title
	}
	w.Linef("%s", title)
	switch s.State {
	case NotThere, Removing:
		w.Wrapf("  ", "%s", s.Why)
		return
	}
	rows := [][]string{{"manifest", string(s.Manifest), page.Dash(s.ManifestWhy)}}
	for i, f := range s.Files {
		if i == maxRows && !wide {
			rows = append(rows, []string{"…", fmt.Sprintf("%d more rows", len(s.Files)-i), "see -o wide or -o json"})
			break
		}
		rows = append(rows, []string{files(f), string(f.Status), page.Dash(f.Why)})
	}
	if s.Unfinished > 0 {
		rows = append(rows, []string{"unfinished", fmt.Sprint(s.Unfinished), "being written, or left by a killed process; never read"})
	}
	if s.Unlooked > 0 {
		rows = append(rows, []string{"others", fmt.Sprint(s.Unlooked), "not looked at"})
	}
	if s.Untold > 0 {
		rows = append(rows, []string{"others", fmt.Sprint(s.Untold), "not listed one by one"})
	}
	w.Table("  ", []string{"FILES", "STATUS", "WHY"}, rows, wide)
}

// foot prints from where training would resume, and the faults.
func (r Report) foot(w *page.Page) {
	w.Linef("")
	switch {
	case r.Job != nil && r.Step == 0:
		r.restored(w)
	case r.Job == nil:
		w.Wrapf("", "Only the Gang shows which steps are recorded, their age and which would be restored: name the job, as KIND/NAME, beside --dir where a cluster is reachable.")
	}
	list(w, "Requested pins that are not promised: no record listed them", r.NotPinned)
	list(w, "Not looked at", r.Notes)
	list(w, "Wrong", r.Wrong)
	if r.Verified && len(r.Wrong) == 0 {
		w.Linef("All that was read is intact.")
	}
}

func (r Report) restored(w *page.Page) {
	for _, s := range r.Folders[0].Steps {
		if s.Restored {
			headers := ""
			if !r.Verified {
				headers = ", according to the headers (verify reads every byte)"
			}
			w.Wrapf("", "Without any pod's memory training would go on from step %d of generation %d%s.", s.Step.Step, s.Generation, headers)
			r.memory(w)
			return
		}
	}
	if len(r.Notes) > 0 {
		w.Wrapf("", "Not everything was read, so the step from which training would continue without any pod's memory is unknown.")
	} else if slices.ContainsFunc(r.Folders[0].Steps, func(s Step) bool { return s.Record != "" }) {
		w.Wrapf("", "No recorded step is whole for all ranks: without any pod's memory training would wait (StepUnreadable in the runbooks).")
	} else {
		w.Wrapf("", "The Gang's record lists no step here: without any pod's memory training would start from the script's own checkpoint or the beginning.")
	}
	r.memory(w)
}

func (r Report) memory(w *page.Page) {
	if r.InMemory > 0 {
		w.Linef("All ranks hold step %d in memory.", r.InMemory)
	}
}

func list(w *page.Page, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	w.Linef("%s", title)
	for i, l := range lines {
		if i == maxRows {
			w.Linef("  and %d more: see -o json", len(lines)-i)
			return
		}
		w.Wrapf("  ", "%s", l)
	}
}
