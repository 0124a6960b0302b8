// Package avoid keeps count of nodes that say they are ready and then reject pods. It promises that a node is set
// aside only after it rejected again and again with nothing started there in between, for a bounded time that
// doubles from one time to the next; that it comes back by itself; and that no nodes are set aside where so many
// reject that the fault is not theirs. The same history gives the same answer.
package avoid

import (
	"maps"
	"slices"
	"time"
)

const (
	// strikes within window set a node aside.
	strikes = 2
	window  = 10 * time.Minute
	// first is for how long the first time, longest at most.
	first   = time.Minute
	longest = 30 * time.Minute
	// forgotten is how long after its last rejection a node is as good as new.
	forgotten = 2 * time.Hour
	// few nodes may always be set aside; more than that only up to the share of all nodes.
	few   = 2
	share = 4
)

// Book is what is known of nodes that rejected. The zero value is ready for use; it is not safe for concurrent use.
type Book struct {
	nodes map[string]*entry
}

// entry is one node that rejected.
type entry struct {
	// recent are rejections within window, oldest first; last is the newest one, said what it was.
	recent []time.Time
	last   time.Time
	said   string
	// times counts how often in a row the node was set aside, until is to when.
	times int
	until time.Time
}

// Aside is a node that is set aside.
type Aside struct {
	Node string
	// Said is what the last rejection was.
	Said  string
	Times int
	Until time.Time
}

// Reject notes that a node rejected a pod; it reports whether that sets it aside.
func (b *Book) Reject(node, said string, now time.Time) bool {
	if b.nodes == nil {
		b.nodes = map[string]*entry{}
	}
	b.forget(now)
	e := b.nodes[node]
	if e == nil {
		e = &entry{}
		b.nodes[node] = e
	}
	e.recent = append(e.recent, now)
	e.recent = slices.DeleteFunc(e.recent, func(at time.Time) bool { return now.Sub(at) >= window })
	e.last, e.said = now, said
	if now.Before(e.until) || (e.times == 0 && len(e.recent) < strikes) {
		return false
	}
	e.times++
	e.until = now.Add(pause(e.times))
	return true
}

// pause is for how long a node is set aside the nth time in a row.
func pause(n int) time.Duration {
	d := first
	for range n - 1 {
		if d *= 2; d >= longest {
			return longest
		}
	}
	return d
}

// Start notes that a pod started on a node: whatever it rejected before, it works. It reports whether that ends its
// being set aside.
func (b *Book) Start(node string, now time.Time) bool {
	e := b.nodes[node]
	delete(b.nodes, node)
	return e != nil && now.Before(e.until)
}

// Forget drops what is known of a node that is no more.
func (b *Book) Forget(node string) { delete(b.nodes, node) }

// forget drops nodes that have been quiet for long.
func (b *Book) forget(now time.Time) {
	maps.DeleteFunc(b.nodes, func(_ string, e *entry) bool { return now.Sub(e.last) >= forgotten && !now.Before(e.until) })
}

// Set lists the nodes that are set aside now, by name, of a cluster of so many nodes. none says that there would be
// some, but so many that the fault is not theirs: then there are none.
func (b *Book) Set(now time.Time, nodes int) (aside []Aside, none bool) {
	for name, e := range b.nodes {
		if now.Before(e.until) {
			aside = append(aside, Aside{Node: name, Said: e.said, Times: e.times, Until: e.until})
		}
	}
	if len(aside) > few && len(aside) > nodes/share {
		return nil, true
	}
	slices.SortFunc(aside, func(a, c Aside) int {
		if a.Node < c.Node {
			return -1
		}
		return 1
	})
	return aside, false
}
