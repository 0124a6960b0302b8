package stock

// layout says what a shard is part of: the "shards" of docs/formats/checkpoint.md.
type layout struct {
	shape, mesh []int64
	// at is this rank's coordinate; nil: it is not on the mesh.
	at         []int64
	placements []placement
}

type placement struct {
	kind string
	dim  int64
	// split is the split factor of one that is strided.
	split int64
}

// maxRuns bounds how many ranges of one dimension a shard is looked for in.
const maxRuns = 1 << 10

// span is a range of indices of one dimension.
type span struct{ from, to int64 }

// box is where in the whole tensor the shard of this layout lies; ok is false where the rank holds none of it. The error says what is not
// one box that covers the whole shard. It follows holdfast._regions.
func (l *layout) box(local []int64) (offsets []int64, ok bool, err error) {
	if l.at == nil {
		return nil, false, nil
	}
	for _, p := range l.placements {
		if p.kind == "partial" {
			return nil, false, notNamed("it is to be reduced over ranks first")
		}
	}
	empty, whole := false, true
	for dim, size := range l.shape {
		runs := l.runs(size, int64(dim))
		held := total(runs)
		if held != local[dim] {
			return nil, false, notNamed("a rank holds %v of it, where its layout says %d of dimension %d", local, held, dim)
		}
		if len(runs) > 1 {
			return nil, false, notNamed("a rank's shard is of several places of it")
		}
		from := int64(0)
		if len(runs) == 1 {
			from = runs[0].from
		}
		offsets = append(offsets, from)
		empty, whole = empty || held == 0, whole && size > 0
	}
	return offsets, !empty || !whole, nil
}

func total(runs []span) (n int64) {
	for _, r := range runs {
		n += r.to - r.from
	}
	return n
}

// runs are the indices of one dimension that the shard has, in its order. Meshes are gone through from left to right.
func (l *layout) runs(size, dim int64) []span {
	runs := []span{{0, size}}
	for i, p := range l.placements {
		if p.dim != dim || i >= len(l.mesh) {
			continue
		}
		switch p.kind {
		case "shard":
			runs = chunk(runs, l.mesh[i], l.at[i])
		case "strided":
			var all []span
			for k := range p.split {
				if all = append(all, chunk(chunk(runs, p.split, k), l.mesh[i], l.at[i])...); len(all) > maxRuns {
					return all // whatever it is, it is not one box
				}
			}
			runs = all
		}
	}
	var joined []span
	for _, r := range runs {
		if n := len(joined); n > 0 && joined[n-1].to == r.from {
			joined[n-1].to = r.to
		} else if r.from < r.to {
			joined = append(joined, r)
		}
	}
	return joined
}

// chunk is one of so many, cut as torch.chunk cuts: all of equal size, then a smaller one, then empty ones.
func chunk(runs []span, chunks, index int64) (out []span) {
	size := (total(runs) + chunks - 1) / chunks
	first, last := index*size, (index+1)*size
	at := int64(0)
	for _, r := range runs {
		from, to := max(r.from, r.from+first-at), min(r.to, r.from+last-at)
		if from < to {
			out = append(out, span{from, to})
		}
		at += r.to - r.from
	}
	return out
}

// parseLayout reads the last field of a dtensor's row.
func parseLayout(v *node) (*layout, error) {
	bad := notNamed("a shard's layout is not known here")
	if v.kind != record {
		return nil, bad
	}
	l := &layout{}
	var ok, on bool
	if l.shape, ok = v.get("shape").numbers(); !ok {
		return nil, bad
	}
	if l.mesh, ok = v.get("mesh").numbers(); !ok {
		return nil, bad
	}
	if at := v.get("at"); at == nil || at.kind != null {
		if l.at, on = at.numbers(); !on || len(l.at) != len(l.mesh) {
			return nil, bad
		}
	}
	all := v.get("placements")
	if all == nil || all.kind != array || len(all.kids) != len(l.mesh) {
		return nil, bad
	}
	if len(l.mesh) > maxDims || len(l.shape) > maxDims {
		return nil, bad
	}
	for i, n := range l.mesh {
		if n < 1 || n > 1<<24 || l.at != nil && l.at[i] >= n {
			return nil, bad
		}
		p, ok := parsePlacement(&all.kids[i])
		if !ok || p.dim >= int64(max(len(l.shape), 1)) {
			return nil, bad
		}
		l.placements = append(l.placements, p)
	}
	return l, nil
}

func parsePlacement(v *node) (p placement, ok bool) {
	if v.kind != array || len(v.kids) == 0 || v.kids[0].kind != text {
		return p, false
	}
	p.kind, p.dim = v.kids[0].s, -1
	switch {
	case p.kind == "replicate" || p.kind == "partial":
		return p, true
	case p.kind == "shard" && len(v.kids) == 2:
		p.dim, ok = v.kids[1].int64()
		return p, ok
	case p.kind == "strided" && len(v.kids) == 3:
		if p.split, ok = v.kids[2].int64(); !ok || p.split < 1 || p.split > maxRuns {
			return p, false
		}
		p.dim, ok = v.kids[1].int64()
		return p, ok
	}
	return p, false
}
