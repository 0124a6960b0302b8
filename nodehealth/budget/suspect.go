package budget

import (
	"cmp"
	"slices"
	"time"
)

// A gang's word that a node is at fault is a tenant's word: it excludes the node for a limited time, and the gangs of each namespace, and
// all together, exclude a bounded number of nodes. The exclusion ends if the node passes a later node check of another gang. Pods of other
// gangs leave the node, within the outage budget, only if node checks of gangs of two namespaces found it; no pass ends that.

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

// suspect sets which nodes are out by the word of gangs alone. First come those that are out for it, then those that were suspected first.
// Nodes beyond the limits of cluster and namespace are not out for it.
func suspect(c Config, of int, nodes []judged, now time.Time) {
	type accusation struct {
		*judged
		newest *Suspicion
		proven bool // twice
	}
	var accused []accusation
	for i := range nodes {
		a := accusation{judged: &nodes[i], newest: nodes[i].provenTwice(now)}
		if a.proven = a.newest != nil; !a.proven && a.want == None {
			a.newest = a.newestWord(now, func(string) bool { return true })
		}
		if a.newest != nil && a.want != Evict {
			accused = append(accused, a)
		}
	}
	slices.SortStableFunc(accused, func(a, b accusation) int {
		return cmp.Or(a.suspectedSince(now).Compare(b.suspectedSince(now)), a.newest.At.Compare(b.newest.At))
	})
	all, by := 0, map[string]int{}
	room := func(namespace string) bool { return by[namespace] < c.MaxSuspectedPerNamespace.Of(of) }
	for _, a := range accused {
		if all >= c.MaxSuspected.Of(of) {
			return
		}
		if a.proven {
			a.word, a.want, a.red = a.newest, Evict, a.newest.At
		} else if a.word = a.newestWord(now, room); a.word != nil {
			a.want = Exclude
			by[a.word.Namespace]++
		} else {
			continue
		}
		all++
	}
}

// suspectedSince returns since when the node is out by the word of gangs; later than now: it is not. What stands is not withdrawn for
// another node.
func (j *judged) suspectedSince(now time.Time) time.Time {
	if j.Stands.Cause == CauseSuspected {
		return j.Stands.Since
	}
	return now.Add(1)
}

// newestWord returns the newest suspicion that excludes the node, of a namespace that has room; nil: none does.
func (j *judged) newestWord(now time.Time, room func(namespace string) bool) (newest *Suspicion) {
	for i := range j.Suspicions {
		s := &j.Suspicions[i]
		if now.Before(s.Until) && !j.cleared(s) && room(s.Namespace) && (newest == nil || s.newer(newest)) {
			newest = s
		}
	}
	return newest
}

// newer orders suspicions, so that their order in the view does not matter.
func (s *Suspicion) newer(than *Suspicion) bool {
	return cmp.Or(s.At.Compare(than.At), cmp.Compare(s.Namespace, than.Namespace), cmp.Compare(s.Gang, than.Gang)) > 0
}

// wordText is the decision for users of any namespace: gangs and their evidence are only in the suspicions.
func (j *judged) wordText() string {
	if j.want == Evict {
		return "node checks of gangs of different namespaces named it"
	}
	if j.word.Proven {
		return "the node check of a gang named it"
	}
	return "a gang suspects its hardware"
}
