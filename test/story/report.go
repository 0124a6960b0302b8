package story

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the result of one run of the story. Summary and page show this same value.
type Report struct {
	Started time.Time `json:"started"`
	// Chapters are in the order played.
	Chapters []Chapter `json:"chapters"`
	// Recoveries are all recoveries in the Gang's record, with their causes from the story.
	Recoveries []Recovery `json:"recoveries"`
	Losses     Losses     `json:"losses"`
	Goodput    string     `json:"goodput"`
	Machine    string     `json:"machine"`
}

// Chapter is one numbered part of the story.
type Chapter struct {
	Title string        `json:"title"`
	Took  time.Duration `json:"took"`
	// Saw are the facts that the chapter checked, as text.
	Saw []string `json:"saw"`
}

// Recovery is one failure, as caused by the story and as recorded in the Gang.
type Recovery struct {
	What string `json:"what"`
	// Detect is the time from the kill to the first agent's report; the other phases follow one another.
	Phases      []Phase `json:"phases"`
	Total       float64 `json:"totalMs"`
	RestoreStep int64   `json:"restoreStep"`
	// StepsRecomputed is negative if unknown.
	StepsRecomputed int64 `json:"stepsRecomputed"`
	Standbys        int32 `json:"standbys"`
	Ranks           int32 `json:"ranks"`
	Generation      int64 `json:"generation"`
}

// Phase is one part of a recovery, in milliseconds.
type Phase struct {
	Name string  `json:"name"`
	Ms   float64 `json:"ms"`
}

// PhaseNames are the phases of every recovery, in order.
var PhaseNames = []string{"detect", "decide", "drain", "stop", "replace", "fetch", "start", "restore", "first step"}

// Losses compares the disturbed run with an undisturbed one, rank by rank and step by step.
type Losses struct {
	// Disturbed and Undisturbed are rank 0's losses by step, for the picture.
	Disturbed   []float64 `json:"disturbed"`
	Undisturbed []float64 `json:"undisturbed"`
	// Compared counts losses over all ranks; Equal counts those that are equal bit for bit.
	Compared int `json:"compared"`
	Equal    int `json:"equal"`
	// RestartedAt are the steps at which the disturbed run resumed.
	RestartedAt []int64 `json:"restartedAt"`
}

func recomputed(steps int64) string {
	if steps < 0 {
		return "not known"
	}
	return fmt.Sprintf("%d steps", steps)
}

// WriteSummary prints the report for a terminal.
func (r *Report) WriteSummary(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nWhat happened\n")
	tw := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	phases := r.phases()
	fmt.Fprintln(tw, "  event\t"+strings.Join(phases, "\t")+"\ttotal\trecomputed\tstandbys")
	for _, rec := range r.Recoveries {
		cells := []string{"  " + rec.What}
		for _, name := range phases {
			cells = append(cells, millis(rec.phase(name)))
		}
		cells = append(cells, fmt.Sprintf("%.2f s", rec.Total/1000), recomputed(rec.StepsRecomputed),
			fmt.Sprintf("%d of %d", rec.Standbys, rec.Ranks))
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
	fmt.Fprintf(&b, "\n  losses equal to the undisturbed run, bit for bit: %d of %d\n  goodput: %s\n\nChapters\n",
		r.Losses.Equal, r.Losses.Compared, r.Goodput)
	for i, c := range r.Chapters {
		fmt.Fprintf(&b, "  %d. %s (%.0f s)\n", i+1, c.Title, c.Took.Seconds())
		for _, s := range c.Saw {
			fmt.Fprintf(&b, "     - %s\n", s)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// phases are the names of all recoveries' phases, in order.
func (r *Report) phases() []string {
	return slices.DeleteFunc(slices.Clone(PhaseNames), func(name string) bool {
		return !slices.ContainsFunc(r.Recoveries, func(rec Recovery) bool {
			_, reached := rec.phase(name)
			return reached
		})
	})
}

func (r Recovery) phase(name string) (float64, bool) {
	for _, p := range r.Phases {
		if p.Name == name {
			return p.Ms, true
		}
	}
	return 0, false
}

func millis(ms float64, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", ms)
}
