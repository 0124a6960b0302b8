package budget

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A gang's word that a node is at fault is a tenant's word: it excludes the node for a limited time, and the gangs of each namespace, and
// all together, exclude a bounded number of nodes. Pods of other gangs leave the node, within the outage budget, only if node checks of
// gangs of two namespaces found it.

// provenTwice returns the newest suspicion if node checks of gangs of two namespaces found the node at fault; nil: they did not.
func (j *judged) provenTwice(now time.Time) (newest *Suspicion) {
	namespaces := map[string]bool{}
	for i := range j.Suspicions {
		s := &j.Suspicions[i]
		if !s.Proven || now.Sub(s.At) >= SuspicionMemory {
			continue
		}
		namespaces[s.Namespace] = true
		if newest == nil || s.newer(newest) {
			newest = s
		}
	}
	if len(namespaces) < 2 {
		return nil
	}
	return newest
}

// suspect excludes the nodes that gangs suspect: first those that are excluded for it, then those that were suspected first, up to the
// limits of cluster and namespace.
func suspect(c Config, of int, nodes []judged, now time.Time) {
	var words []*judged
	for i := range nodes {
		if n := &nodes[i]; n.want == None {
			if n.word = n.newestWord(now); n.word != nil {
				words = append(words, n)
			}
		}
	}
	slices.SortStableFunc(words, func(a, b *judged) int {
		return cmp.Or(-cmp.Compare(a.Stands.Outcome, b.Stands.Outcome), a.word.At.Compare(b.word.At))
	})
	all, by := 0, map[string]int{}
	for _, n := range words {
		if all >= c.MaxSuspected.Of(of) || by[n.word.Namespace] >= c.MaxSuspectedPerNamespace.Of(of) {
			n.word = nil
			continue
		}
		all++
		by[n.word.Namespace]++
		n.want = Exclude
	}
}

// newestWord returns the newest suspicion that excludes the node; nil: none does.
func (j *judged) newestWord(now time.Time) (newest *Suspicion) {
	for i := range j.Suspicions {
		s := &j.Suspicions[i]
		if now.Before(s.Until) && (newest == nil || s.newer(newest)) {
			newest = s
		}
	}
	return newest
}

// newer orders suspicions, so that their order in the view does not matter.
func (s *Suspicion) newer(than *Suspicion) bool {
	return cmp.Or(s.At.Compare(than.At), cmp.Compare(s.Namespace, than.Namespace), cmp.Compare(s.Gang, than.Gang)) > 0
}

// wordText is the suspicion for users of any namespace: it names no gang.
func (j *judged) wordText() string {
	if j.want == Evict {
		return "node checks of gangs of different namespaces found it, the last time: " + j.word.Message
	}
	return fmt.Sprintf("a gang suspects it, until %s: %s", j.word.Until.UTC().Format(time.RFC3339), j.word.Message)
}
