// Package ckpt shows the steps of a job in storage: their size and age, which of them the Gang's record names, and
// which would be restored. For each other step it shows what is wrong. The package uses only the content of storage and
// the record, and treats both as untrusted input.
package ckpt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// Input is the query and what was read.
type Input struct {
	// Gang is the job's, read after storage; Before was read before storage; nil: no cluster was queried.
	Gang, Before *v1alpha1.Gang
	// Source is where the steps were read: a pod, or a folder of this machine.
	Source  string
	Storage inspect.Storage
	// Step is the only step that was read; 0: all.
	Step int64
	At   time.Time
}

// Condition is the state of a step.
type Condition string

// Conditions of a step.
const (
	Complete   Condition = "complete"
	Incomplete Condition = "incomplete"
	Damaged    Condition = "damaged"
	// Foreign: written in a version that this build does not know.
	Foreign  Condition = "of another version"
	NotThere Condition = "not there"
	// Unlooked: not everything was read, see the notes.
	Unlooked Condition = "not looked at"
	Removing Condition = "being removed"
)

// What the record has of a step.
const (
	Durable = "durable"
	Older   = "older"
	Kept    = "kept"
	// GivenUp and Earlier stay, and no generation begins from them (status.run.launch.kept).
	GivenUp = "given up: ranks failed to restore it"
	Earlier = "of an earlier launcher"
)

// Step is one step of one generation.
type Step struct {
	inspect.Step
	State Condition `json:"state"`
	Why   string    `json:"why,omitempty"`
	// Record is the step's name in the Gang's record; RecordedAt is since when. A step that is not in the record has no age.
	Record     string            `json:"record,omitempty"`
	RecordedAt *metav1.MicroTime `json:"recordedAt,omitempty"`
	// Restored: training would resume from this step if no pod's memory was left.
	Restored bool `json:"restored,omitempty"`
}

// Folder is a job's folder.
type Folder struct {
	Name    string `json:"name"`
	Steps   []Step `json:"steps"`
	Foreign int    `json:"foreign,omitempty"`
}

// Report is the output; -o json and -o yaml print it as it is.
type Report struct {
	Namespace string                 `json:"namespace,omitempty"`
	Job       *v1alpha1.JobReference `json:"job,omitempty"`
	Claim     *v1alpha1.GangStorage  `json:"claim,omitempty"`
	Source    string                 `json:"source"`
	Verified  bool                   `json:"verified"`
	// Step is the only step that was read; 0: all.
	Step    int64    `json:"step,omitempty"`
	Folders []Folder `json:"folders"`
	// InMemory is the newest step that all ranks hold in memory.
	InMemory int64 `json:"inMemory,omitempty"`
	// NotPinned are steps that the job requests to pin and that the record did not list when the coordinator read the request.
	NotPinned []string `json:"notPinned,omitempty"`
	// Wrong lists faults for users, Notes what was not read.
	Wrong []string  `json:"wrong,omitempty"`
	Notes []string  `json:"notes,omitempty"`
	At    time.Time `json:"-"`
}

// FolderOf returns the folder of a gang in its claim.
func FolderOf(g *v1alpha1.Gang) string { return g.Name + "-" + g.Spec.JobRef.UID }

// Of returns the report on an input.
func Of(in Input) Report {
	r := Report{Source: in.Source, Verified: in.Storage.Verified, Step: in.Step, Notes: in.Storage.Notes, Folders: []Folder{}, At: in.At}
	for _, f := range in.Storage.Folders {
		out := Folder{Name: f.Name, Foreign: f.Foreign, Steps: []Step{}}
		for _, s := range f.Steps {
			out.Steps = append(out.Steps, Step{Step: s})
		}
		r.Folders = append(r.Folders, out)
	}
	var rec *record
	if in.Gang != nil {
		r.Namespace, r.Job, r.Claim = in.Gang.Namespace, &in.Gang.Spec.JobRef, in.Gang.Spec.Storage
		if len(r.Folders) == 0 {
			r.Folders = append(r.Folders, Folder{Name: FolderOf(in.Gang), Steps: []Step{}})
		}
		if rec = recordOf(in.Gang); rec != nil {
			r.InMemory, r.NotPinned = rec.saved, notPinned(in.Gang)
			r.Folders[0].Steps = rec.mark(r.Folders[0].Steps, recordOf(in.Before), in.Step)
			r.unlooked()
		}
	}
	found := false
	for i := range r.Folders {
		for j := range r.Folders[i].Steps {
			s := &r.Folders[i].Steps[j]
			s.judge(rec)
			found = found || s.Step.Step == in.Step
			if s.State == Damaged || s.State == Foreign || s.State == NotThere {
				r.Wrong = append(r.Wrong, fmt.Sprintf("step %d of generation %d (%s) is %s: %s", s.Step.Step, s.Generation, r.Folders[i].Name, s.State, s.Why))
			}
		}
		slices.SortStableFunc(r.Folders[i].Steps, func(a, b Step) int {
			return cmp.Or(cmp.Compare(b.Generation, a.Generation), cmp.Compare(b.Step.Step, a.Step.Step))
		})
	}
	if in.Step > 0 && !found {
		r.Wrong = append(r.Wrong, fmt.Sprintf("step %d is not in storage", in.Step))
	}
	if rec != nil && len(r.Notes) == 0 {
		r.Wrong = append(r.Wrong, rec.copiesLost(r.Folders[0].Steps, recordOf(in.Before), in.Step)...)
	}
	if r.Verified && len(r.Notes) > 0 {
		r.Wrong = append(r.Wrong, "not everything was read, see the notes")
	}
	return r
}

// unlooked withdraws findings of missing steps, where not everything was read.
func (r *Report) unlooked() {
	for i := range r.Folders[0].Steps {
		if s := &r.Folders[0].Steps[i]; s.State == NotThere && len(r.Notes) > 0 {
			s.State = Unlooked
		}
	}
}

// judge sets a step's condition and its reason.
func (s *Step) judge(rec *record) {
	switch {
	case s.State != "":
		s.Why = "the Gang's record names it"
	case s.Removed:
		s.State, s.Why = Removing, "superseded: it went while it was looked at"
	case s.Step.Complete():
		s.State = Complete
	case s.Manifest == inspect.OtherVersion:
		s.State, s.Why = Foreign, s.ManifestWhy
	case s.Bad > 0:
		s.State, s.Why = s.firstBad()
	case s.Unlooked > 0:
		s.State, s.Why = Unlooked, page.Count(s.Unlooked, "file was", "files were")+" not looked at"
	case s.Manifest != inspect.Missing:
		s.State, s.Why = Damaged, "its manifest is "+string(s.Manifest)+because(s.ManifestWhy)
	default:
		s.State, s.Why = Incomplete, s.unfinished(rec)
	}
}

// unfinished returns why a step has no manifest.
func (s *Step) unfinished(rec *record) string {
	why := "no manifest: no rank's file is whole"
	if s.Good > 0 {
		why = fmt.Sprintf("no manifest: %d of %s there", s.Good, page.Count(s.Ranks, "rank's file is", "ranks' files are"))
	}
	if s.Unfinished > 0 {
		why += fmt.Sprintf(", %d unfinished", s.Unfinished)
	}
	switch {
	case rec == nil:
		return why
	case strings.HasPrefix(s.Record, Durable) || strings.HasPrefix(s.Record, Older) || strings.HasPrefix(s.Record, Kept):
		return why + "; the record names it, so that it is read without one"
	case s.Record != "":
		return why + "; what drained pods left"
	case s.Generation < rec.generation || rec.durable != nil && s.Generation == rec.durable.Generation && s.Step.Step < rec.durable.Step:
		return why + "; given up, a later removal deletes it"
	}
	return why + "; being written"
}

// firstBad returns the fault of the first incomplete file.
func (s *Step) firstBad() (Condition, string) {
	for _, f := range s.Files {
		if f.Status != inspect.OK {
			state, why := Damaged, files(f)+": "+string(f.Status)+because(f.Why)
			if f.Status == inspect.OtherVersion {
				state = Foreign
			}
			if more := s.Bad - f.Ranks; more > 0 {
				why += fmt.Sprintf("; %d more", more)
			}
			return state, why
		}
	}
	return Damaged, fmt.Sprintf("%s not whole", page.Count(s.Bad, "file is", "files are"))
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// files describes the files of a run.
func files(f inspect.Run) string {
	if f.Ranks == 1 {
		return fmt.Sprintf("rank %d", f.Rank)
	}
	return fmt.Sprintf("ranks %d-%d", f.Rank, int(f.Rank)+f.Ranks-1)
}

// record is a Gang's record of storage.
type record struct {
	generation, saved int64
	durable, older    *v1alpha1.StoredStep
	kept              []v1alpha1.StoredStep
	stays             []staying
	copies            []v1alpha1.RankCopy
	world, members    int
}

// staying is a step that the record names but that is restored only on request, and why it stays.
type staying struct {
	*v1alpha1.StoredStep
	why string
}

// stays returns such steps of a record.
func stays(r *v1alpha1.RunStatus) (all []staying) {
	if r.Launch != nil {
		for i := range r.Launch.Kept {
			d, why := &r.Launch.Kept[i], Earlier
			if d.Generation > r.Launch.After {
				why = GivenUp
			}
			all = append(all, staying{d, why})
		}
	}
	for i := range r.Pinned {
		all = append(all, staying{&r.Pinned[i], Pinned})
	}
	return all
}

// recordOf reads a Gang's record; nil if there is none.
func recordOf(g *v1alpha1.Gang) *record {
	if g == nil || g.Status.Run == nil {
		return nil
	}
	r := g.Status.Run
	return &record{
		generation: r.Generation,
		saved:      r.Progress.SavedStep,
		durable:    r.Durable,
		older:      r.Older,
		kept:       r.Kept,
		stays:      stays(r),
		copies:     r.Copies,
		world:      int(r.Progress.Ranks),
		members:    int(g.Spec.Members),
	}
}

// whole returns the recorded steps of all ranks, newest first, with their names.
func (r *record) whole() (steps []*v1alpha1.StoredStep, names []string) {
	if r == nil {
		return nil, nil
	}
	for _, s := range []struct {
		step *v1alpha1.StoredStep
		name string
	}{{r.durable, Durable}, {r.older, Older}} {
		if s.step != nil {
			steps, names = append(steps, s.step), append(names, s.name)
		}
	}
	for i := range r.kept {
		steps, names = append(steps, &r.kept[i]), append(names, Kept)
	}
	return steps, names
}

func markOf(s *v1alpha1.StoredStep) protocol.Mark {
	return protocol.Mark{Step: s.Step, Generation: s.Generation, Branch: s.Branch}
}

func at(steps []Step, m protocol.Mark) *Step {
	for i := range steps {
		if s := &steps[i]; s.Step.Step == m.Step && s.Generation == m.Generation {
			return &steps[i]
		}
	}
	return nil
}

// mark adds the record's data to steps, and adds recorded steps that are missing. A step that only the newer record names may have been
// written after storage was read, so it is left out.
func (r *record) mark(steps []Step, before *record, only int64) []Step {
	whole, names := r.whole()
	known, _ := before.whole()
	for i, d := range whole {
		s := at(steps, markOf(d))
		switch {
		case s == nil &&
			(only > 0 && d.Step != only || !slices.ContainsFunc(known, func(k *v1alpha1.StoredStep) bool { return markOf(k) == markOf(d) })):
			continue
		case s == nil:
			steps = append(
				steps,
				Step{Step: inspect.Step{Step: d.Step, Generation: d.Generation, Branch: d.Branch, Manifest: inspect.Missing}, State: NotThere},
			)
			s = &steps[len(steps)-1]
		}
		s.Record, s.RecordedAt = names[i], &d.At
		s.Branch = cmp.Or(s.Branch, d.Branch) // an old agent may not report it
	}
	steps = r.markStaying(steps, before, only)
	for _, m := range r.copied() {
		if s := at(steps, m); s != nil && s.Record == "" {
			s.Record = "copies of " + page.Count(r.copiesOf(m), "rank", "ranks")
		}
	}
	if only == 0 {
		if m := r.restored(steps); m != (protocol.Mark{}) {
			at(steps, m).Restored = true
		}
	}
	return steps
}

// markStaying does the same for steps that are restored only on request.
func (r *record) markStaying(steps []Step, before *record, only int64) []Step {
	for _, d := range r.stays {
		s := at(steps, markOf(d.StoredStep))
		switch {
		case s == nil &&
			(only > 0 && d.Step != only || before == nil ||
				!slices.ContainsFunc(before.stays, func(k staying) bool { return markOf(k.StoredStep) == markOf(d.StoredStep) })):
			continue
		case s == nil:
			steps = append(
				steps,
				Step{Step: inspect.Step{Step: d.Step, Generation: d.Generation, Branch: d.Branch, Manifest: inspect.Missing}, State: NotThere},
			)
			s = &steps[len(steps)-1]
		}
		s.Branch = cmp.Or(s.Branch, d.Branch)
		if s.RecordedAt = &d.At; s.Record != "" {
			s.Record += ", "
		}
		s.Record += d.why
	}
	return steps
}

// copied returns the marks of recorded copies.
func (r *record) copied() (marks []protocol.Mark) {
	for _, c := range r.copies {
		if m := (protocol.Mark{Step: c.Step, Generation: c.Generation, Branch: c.Branch}); !slices.Contains(marks, m) {
			marks = append(marks, m)
		}
	}
	return marks
}

func (r *record) copiesOf(m protocol.Mark) (n int) {
	for _, c := range r.copies {
		if c.Step == m.Step && c.Generation == m.Generation {
			n += max(1, int(c.Ranks))
		}
	}
	return n
}

// copiesLost returns recorded copies of single ranks whose files are incomplete.
func (r *record) copiesLost(steps []Step, before *record, only int64) (lost []string) {
	for _, c := range r.copies {
		if only > 0 && c.Step != only || before == nil || !slices.Contains(before.copies, c) {
			continue
		}
		s := at(steps, protocol.Mark{Step: c.Step, Generation: c.Generation, Branch: c.Branch})
		for rank := int(c.Rank); rank < int(c.Rank)+max(1, int(c.Ranks)) && len(lost) < maxWrong; rank++ {
			if s == nil || !s.Removed && s.Untold+s.Unlooked == 0 && !s.Has(rank) {
				lost = append(lost, fmt.Sprintf("the record names a copy of rank %d of step %d, generation %d, and no whole file is there", rank, c.Step, c.Generation))
			}
		}
	}
	return lost
}

// restored is the step from which training would resume if no memory was left: the newest recorded step whose files are complete for each
// pod's ranks, by the coordinator's rule.
func (r *record) restored(steps []Step) protocol.Mark {
	whole, _ := r.whole()
	world := r.world
	for _, d := range whole { // the gang has not reported its number of ranks yet
		if s := at(steps, markOf(d)); world == 0 && s != nil {
			world = s.Ranks
		}
	}
	if world <= 0 || world > maxWorld {
		return protocol.Mark{}
	}
	stored, whole := restore.Stored{World: world}, whole[:min(len(whole), restore.MostWhole)]
	for _, d := range whole {
		stored.Whole = append(stored.Whole, markOf(d))
	}
	for _, c := range r.copies {
		for rank := int(c.Rank); rank < min(world, int(c.Rank)+max(1, int(c.Ranks))); rank++ {
			stored.Parts = append(
				stored.Parts,
				restore.Part{Mark: protocol.Mark{Step: c.Step, Generation: c.Generation, Branch: c.Branch}, Rank: rank},
			)
		}
	}
	per := 1
	if r.members > 0 && world%r.members == 0 {
		per = world / r.members
	}
	marks := slices.Concat(stored.Whole, r.copied())
	pods := make([]restore.Pod, world/per)
	for i := range pods {
		pods[i].Ranks = per
		for _, m := range marks {
			s := at(steps, m)
			for rank := i * per; rank < (i+1)*per; rank++ {
				if s == nil || !s.Has(rank) && r.names(m, rank) {
					pods[i].Failed = append(pods[i].Failed, m)
					break
				}
			}
		}
	}
	point := restore.Find(pods, stored, nil) // the record contains no given-up steps
	newest := protocol.Mark{}
	for _, m := range point.Fetch { // parts of one step may come from several generations
		if m.Generation > newest.Generation {
			newest = m
		}
	}
	return newest
}

// names reports whether the record names a rank's file of a mark.
func (r *record) names(m protocol.Mark, rank int) bool {
	whole, _ := r.whole()
	return slices.ContainsFunc(whole, func(d *v1alpha1.StoredStep) bool { return markOf(d) == m }) ||
		slices.ContainsFunc(r.copies, func(c v1alpha1.RankCopy) bool {
			return c.Step == m.Step && c.Generation == m.Generation && rank >= int(c.Rank) && rank < int(c.Rank)+max(1, int(c.Ranks))
		})
}

// maxWorld is more ranks than a gang has; maxWrong bounds the listed lost copies.
const (
	maxWorld = v1alpha1.MaxMembers * protocol.MaxRanks
	maxWrong = 32
)
