// Package fabric formats the scheduler's answer on the fragmentation of the fabric and on the moves that would reduce
// it. The package computes nothing itself.
package fabric

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// Text is the answer as text; wide: nothing is cut.
func Text(f v1alpha1.FabricResponse, wide bool) string {
	w := &page.Page{}
	w.Linef("%s", page.Count(f.Nodes, "node", "nodes"))
	if len(f.Levels) == 0 {
		w.Linef("The fabric has no levels: nodes have none of the labels that docs/designs/placement.md lists")
		return w.String()
	}
	w.Linef("")
	var rows [][]string
	for _, l := range f.Levels {
		share := "-"
		if l.Free > 0 {
			share = fmt.Sprintf("%d%%", 100*int64(l.Broken)/int64(l.Free))
		}
		rows = append(
			rows,
			[]string{l.Level, fmt.Sprint(l.Domains), fmt.Sprint(l.Whole), fmt.Sprint(l.Free), fmt.Sprint(l.Broken), share, fmt.Sprint(l.Largest)},
		)
	}
	w.Table("", []string{"LEVEL", "DOMAINS", "UNUSED", "FREE-NODES", "IN-BROKEN", "SHARE", "LARGEST"}, rows, wide)
	moves(w, f, wide)
	if f.Stopped {
		w.Linef("")
		w.Linef("The search reached its time limit: there may be more. Name a level with --level")
	}
	return w.String()
}

func moves(w *page.Page, f v1alpha1.FabricResponse, wide bool) {
	var rows [][]string
	for _, l := range f.Levels {
		for _, d := range l.Freed {
			var who []string
			for _, m := range d.Moves {
				var to []string
				for _, p := range m.Pods {
					to = append(to, p.From+" to "+p.To)
				}
				who = append(who, m.Unit+": "+strings.Join(to, ", "))
			}
			rows = append(rows, []string{l.Level, d.Domain, fmt.Sprintf("%d of %d", d.Used, d.Nodes), fmt.Sprint(d.Pods), strings.Join(who, "; ")})
		}
	}
	if len(rows) == 0 {
		return
	}
	w.Linef("")
	w.Linef("Domains that moves would free (by counts of resources only; nothing is moved)")
	w.Table("  ", []string{"LEVEL", "DOMAIN", "USED", "PODS", "MOVES"}, rows, wide)
}
