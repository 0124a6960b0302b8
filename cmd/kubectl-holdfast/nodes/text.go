package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// Text is the report as text: nodes with a finding, or all; wide cuts nothing and shows more.
func (r Report) Text(all, wide bool) string {
	p := &page.Page{}
	counts := map[State]int{}
	for _, row := range r.Nodes {
		counts[row.State]++
	}
	shown := r.shown(all)
	p.Linef("%s", summary(len(r.Nodes), counts))
	if len(shown) > 0 {
		p.Linef("")
		header := []string{"NAME", "STATE", "CAUSE", "SINCE", "DECISION", "GANG-PODS", "EVIDENCE", "NEXT-STEP"}
		if wide {
			header = []string{"NAME", "STATE", "CAUSE", "SINCE", "DECISION", "GANG-PODS", "LEASE-AGE", "CORDONED", "DEVICES", "EVIDENCE", "NEXT-STEP"}
		}
		var rows [][]string
		for _, row := range shown {
			rows = append(rows, row.cells(r.At, wide))
		}
		p.Table("", header, rows, wide)
	}
	decisions(p, shown)
	if !wide {
		steps(p, shown)
	}
	if len(r.Notes) > 0 {
		p.Linef("")
		for _, n := range r.Notes {
			p.Wrapf("note: ", "%s", n)
		}
	}
	return p.String()
}

// shown are the nodes with a finding, or all.
func (r Report) shown(all bool) (rows []Row) {
	for _, row := range r.Nodes {
		if all || !slices.Contains(quiet, row.State) {
			rows = append(rows, row)
		}
	}
	return rows
}

// Names are the nodes that Text lists, as kubectl writes them.
func (r Report) Names(all bool) (names []string) {
	for _, row := range r.shown(all) {
		names = append(names, "node/"+row.Name)
	}
	return names
}

// quiet are the states without a known fault.
var quiet = []State{NoDriver, Unwatched, Healthy}

func summary(n int, counts map[State]int) string {
	if n == 0 {
		return "the cluster has no nodes"
	}
	if counts[Healthy] == n {
		return fmt.Sprintf("%s, all well", page.Count(n, "node", "nodes"))
	}
	var parts []string
	for _, s := range order {
		if counts[s] == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s", counts[s], s)
		if s == Unwatched {
			part += " (holdfast-node does not run there)"
		}
		if s == NoDriver {
			part += " (no NVIDIA GPUs)"
		}
		parts = append(parts, part)
	}
	line := page.Count(n, "node", "nodes") + ": " + strings.Join(parts, ", ")
	if counts[Unwatched] == n {
		return fmt.Sprintf("%s: no known fault; no node has a verdict, because holdfast-node runs on none", page.Count(n, "node", "nodes"))
	}
	if counts[Unwatched]+counts[NoDriver]+counts[Healthy] == n {
		line += ", nothing is wrong"
	}
	return line
}

// decisions prints, in whole sentences, why the cluster decided as it did.
func decisions(p *page.Page, rows []Row) {
	first := true
	for _, row := range rows {
		text := row.Problem
		if o := row.Outage; text == "" && o != nil && o.Message != "" {
			text = fmt.Sprintf("%s: %s", o.Decision, o.Message)
		}
		if text == "" {
			continue
		}
		if first {
			p.Linef("")
			p.Linef("Why")
			first = false
		}
		p.Wrapf("  "+row.Name+"  ", "%s", text)
	}
}

// steps prints the remedies, each once and whole, as the table may have cut it.
func steps(p *page.Page, rows []Row) {
	shown := map[string]bool{}
	for _, row := range rows {
		next, about := row.next(), cmp.Or(row.cause(), string(row.State))
		if next == "" || shown[about+next] {
			continue
		}
		if len(shown) == 0 {
			p.Linef("")
			p.Linef("What to do")
		}
		shown[about+next] = true
		p.Wrapf("  "+about+"  ", "%s", next)
	}
}

func (r Row) cells(now time.Time, wide bool) []string {
	gangPods, lease := "?", "?"
	if r.GangPods != nil {
		gangPods = fmt.Sprint(*r.GangPods)
	}
	if r.LeaseSeconds != nil {
		lease = fmt.Sprintf("%.0fs", *r.LeaseSeconds)
	}
	cells := []string{r.Name, string(r.State), page.Dash(r.cause()), page.Age(r.since(), now), page.Dash(r.decision()), gangPods}
	if wide {
		devices, cordoned := "", "no"
		if r.Health != nil {
			devices = strings.Join(r.Health.Devices, ",")
		}
		if r.Cordoned {
			cordoned = "yes"
		}
		cells = append(cells, lease, cordoned, page.Dash(devices))
	}
	return append(cells, page.Dash(r.evidence(wide)), page.Dash(r.next()))
}

func (r Row) cause() string {
	if r.Health != nil && r.Health.Cause != "" {
		return r.Health.Cause
	}
	if r.Outage != nil {
		return r.Outage.Cause
	}
	return ""
}

// since is when the cause was first observed, otherwise when the decision was made.
func (r Row) since() time.Time {
	if r.Health != nil && r.Health.Cause != "" {
		return r.Health.Since.Time
	}
	if r.Outage != nil {
		return r.Outage.Since.Time
	}
	return time.Time{}
}

func (r Row) decision() string {
	if r.Outage == nil {
		return ""
	}
	return string(r.Outage.Decision)
}

// evidence is the newest observation and the number of earlier ones, or all of them.
func (r Row) evidence(all bool) string {
	if r.Problem != "" {
		return r.Problem
	}
	h := r.Health
	switch {
	case h != nil && len(h.Evidence) > 0:
		if all {
			var texts []string
			for i := range h.Evidence {
				texts = append(texts, Evidence(&h.Evidence[i]))
			}
			return strings.Join(texts, "; ")
		}
		text := Evidence(&h.Evidence[len(h.Evidence)-1])
		if more := len(h.Evidence) - 1; more > 0 {
			text = fmt.Sprintf("(+%d) %s", more, text)
		}
		return text
	case r.State == Dead && r.Outage != nil: // the daemon's message is older
		return r.Outage.Message
	case h != nil && h.Message != "" && r.State != Unreachable:
		return h.Message
	case r.State == Unreachable && r.LeaseSeconds != nil:
		return fmt.Sprintf("lease not renewed for %.0fs", *r.LeaseSeconds)
	case r.Outage != nil:
		return r.Outage.Message
	}
	return ""
}

// Evidence is one observation, in one line.
func Evidence(e *v1alpha1.NodeEvidence) string {
	if e.Device == "" {
		return e.Source + ": " + e.Text
	}
	return fmt.Sprintf("%s %s: %s", e.Source, e.Device, e.Text)
}

// next is the remedy, and how the user's request ends.
func (r Row) next() string {
	request := ""
	if q := r.Request; q != nil {
		request = fmt.Sprintf("the request ends at %s, or with kubectl holdfast evict node/%s --undo", q.Until.UTC().Format(time.RFC3339), r.Name)
	}
	remedy := r.remedy()
	if remedy != "" && request != "" {
		return remedy + "; " + request
	}
	return remedy + request
}

func (r Row) remedy() string {
	if r.Health != nil && r.Health.Next != "" {
		return r.Health.Next
	}
	switch r.State {
	case Dead, Unreachable:
		return "look at the machine: power, network, kubelet"
	case Unknown:
		return "look at holdfast-node on it: kubectl get pods -A -o wide -l app.kubernetes.io/name=holdfast-node"
	case Unreadable:
		return "use the kubectl-holdfast of the version that the cluster runs"
	case Evict, Exclude, Watch, Unwatched, Healthy:
	}
	return ""
}
