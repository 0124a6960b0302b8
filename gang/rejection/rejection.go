// Package rejection decides which nodes gangs do not use because these nodes, although ready, rejected pods.
//   - A node is excluded when it rejects two pods within ten minutes. A pod that starts on the node resets the count. After an exclusion,
//     one further rejection of a pod of the same namespace excludes the node again.
//   - An exclusion lasts a minute at first, and twice as long each further time, up to 30 minutes.
//   - If all rejected pods have the same namespace, the node is excluded only for pods of that namespace. If the pods have two namespaces,
//     the node is excluded for pods of all namespaces.
//   - If more than a quarter of all nodes, and more than two nodes, would be excluded, the pods are probably at fault, and no node is
//     excluded.
//   - The exclusions depend only on the recorded events and their times.
package rejection

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// strikes within window exclude a node: those of one namespace for that namespace, those of as many namespaces for all.
	strikes = 2
	window  = 10 * time.Minute
	// firstPause is the duration of a node's first exclusion, longestPause the longest.
	firstPause   = time.Minute
	longestPause = 30 * time.Minute
	// forgetAfter is how long after its last rejection a node counts as new.
	forgetAfter = 2 * time.Hour
	// alwaysExcludable is how many nodes may be excluded in any cluster; more may be only up to a share of all nodes.
	alwaysExcludable = 2
	excludableShare  = 4
)

// everybody is the namespace of exclusions for all.
const everybody = ""

// Tracker records which nodes rejected pods. The zero value is ready for use; it is not safe for concurrent use.
type Tracker struct {
	entries map[place]*entry
}

// place is a node for one namespace, or for all.
type place struct{ node, namespace string }

// entry is one node that rejected pods of one namespace, or of any.
type entry struct {
	// recent are the newest rejections within window, oldest first, as many as exclude the node; said is the message of the newest one,
	// last its time.
	recent  []strike
	last    time.Time
	message string
	// times counts how often in a row the node was excluded, until is the end of the last exclusion.
	times int
	until time.Time
}

// strike is one rejection of a pod of a namespace.
type strike struct {
	namespace string
	at        time.Time
}

// Exclusion is a node that is excluded for the pods of a namespace; empty: for all.
type Exclusion struct {
	Node, Namespace string
	// Message is that of the last rejection.
	Message string
	Times   int
	Until   time.Time
}

// Reject records that a node rejected a pod of a namespace, and reports whether that excludes the node.
func (b *Tracker) Reject(node, namespace, said string, now time.Time) bool {
	if b.entries == nil {
		b.entries = map[place]*entry{}
	}
	b.forget(now)
	s := strike{namespace, now}
	own, all := b.entry(node, namespace), b.entry(node, everybody)
	own.recent = append(own.recent, s)
	// Only the newest rejection of each namespace counts here, so that one namespace cannot exclude a node for others.
	all.recent = append(slices.DeleteFunc(all.recent, func(o strike) bool { return o.namespace == namespace }), s)
	forOwn, forAll := own.judge(said, now, strikes-1), all.judge(said, now, strikes)
	return forOwn || forAll
}

func (b *Tracker) entry(node, namespace string) *entry {
	at := place{node, namespace}
	if b.entries[at] == nil {
		b.entries[at] = &entry{}
	}
	return b.entries[at]
}

// judge excludes the node if due. again is the number of recent rejections required after an earlier exclusion.
func (e *entry) judge(said string, now time.Time, again int) bool {
	e.recent = slices.DeleteFunc(e.recent, func(s strike) bool { return now.Sub(s.at) >= window })
	e.recent = e.recent[max(0, len(e.recent)-strikes):]
	e.last, e.message = now, said
	needed := strikes
	if e.times > 0 {
		needed = again
	}
	if now.Before(e.until) || len(e.recent) < needed {
		return false
	}
	e.times++
	e.until = now.Add(pause(e.times))
	return true
}

// pause returns for how long a node is excluded the nth time in a row.
func pause(n int) time.Duration { return min(firstPause<<min(n-1, 5), longestPause) }

// NoteStarted records that a pod of a namespace started on a node: its exclusions for that namespace and for all end. back: there was one.
func (b *Tracker) NoteStarted(node, namespace string, now time.Time) (back bool) {
	for _, at := range []place{{node, namespace}, {node, everybody}} {
		if e := b.entries[at]; e != nil {
			back = back || now.Before(e.until)
			delete(b.entries, at)
		}
	}
	return back
}

// Forget drops the state of a deleted node.
func (b *Tracker) Forget(node string) {
	maps.DeleteFunc(b.entries, func(at place, _ *entry) bool { return at.node == node })
}

// forget drops nodes without rejections for forgetAfter.
func (b *Tracker) forget(now time.Time) {
	maps.DeleteFunc(b.entries, func(_ place, e *entry) bool { return now.Sub(e.last) >= forgetAfter && !now.Before(e.until) })
}

// Excluded returns the nodes that are excluded now, by name, in a cluster of that many nodes. If there would be so many that the pods must
// be at fault, it returns none: for all, or for the namespace of those pods.
func (b *Tracker) Excluded(now time.Time, nodes int) (excluded []Exclusion) {
	by := map[string][]Exclusion{}
	for at, e := range b.entries {
		if now.Before(e.until) {
			by[at.namespace] = append(
				by[at.namespace],
				Exclusion{Node: at.node, Namespace: at.namespace, Message: e.message, Times: e.times, Until: e.until},
			)
		}
	}
	most := max(alwaysExcludable, nodes/excludableShare)
	if excluded = by[everybody]; len(excluded) > most {
		excluded = nil
	}
	delete(by, everybody)
	forAll := map[string]bool{}
	for _, a := range excluded {
		forAll[a.Node] = true
	}
	for _, own := range by {
		own = slices.DeleteFunc(own, func(a Exclusion) bool { return forAll[a.Node] })
		if len(forAll)+len(own) <= most {
			excluded = append(excluded, own...)
		}
	}
	slices.SortFunc(excluded, func(a, c Exclusion) int {
		return cmp.Or(cmp.Compare(a.Node, c.Node), cmp.Compare(a.Namespace, c.Namespace))
	})
	return excluded
}
