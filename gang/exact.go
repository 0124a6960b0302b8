package gang

// rows are the costs of 0, 1, 2 … units, in one part or in several together.
type rows struct {
	width int
	c     []int32
}

func newRows(width, n int) rows { return rows{width, make([]int32, width*n)} }

func (r rows) at(u int) cost { return r.c[u*r.width : (u+1)*r.width] }
func (r rows) most() int     { return len(r.c)/r.width - 1 }

// exact distributes u over the parts at the least cost; of equal results it returns the one that gives earlier parts more.
func (s *spread) exact(parts []part, u int) []part {
	_, gets := s.together(parts, u)
	var chosen []part
	for k := len(parts) - 1; k >= 0; k-- {
		if parts[k].u = gets[k][u]; parts[k].u > 0 {
			chosen = append(chosen, parts[k])
			u -= parts[k].u
		}
	}
	for i, j := 0, len(chosen)-1; i < j; i, j = i+1, j-1 {
		chosen[i], chosen[j] = chosen[j], chosen[i]
	}
	return chosen
}

// together returns the least costs of 0 to u in the parts together, and what each part gets of each sum over it and the parts before it.
func (s *spread) together(parts []part, u int) (rows, [][]int) {
	sum := newRows(s.width, 1)
	gets := make([][]int, len(parts))
	for k, p := range parts {
		p.u = min(p.u, u)
		one := s.table(p)
		n := min(sum.most()+p.u, u)
		next := newRows(s.width, n+1)
		gets[k] = make([]int, n+1)
		for total := range n + 1 {
			least, first := next.at(total), true
			for x := max(0, total-sum.most()); x <= min(p.u, total); x++ {
				a, b := sum.at(total-x), one.at(x)
				if !first && !sumLess(a, b, least) {
					continue
				}
				for i := range least {
					least[i] = a[i] + b[i]
				}
				gets[k][total], first = x, false
			}
		}
		sum = next
	}
	return sum, gets
}

// table returns the costs of 0 to p.u in one part.
func (s *spread) table(p part) rows {
	node := len(s.span) - 1
	r := newRows(s.width, p.u+1)
	switch {
	case p.node:
		for u := 1; u <= p.u; u++ {
			s.node(r.at(u), p.at, u)
		}
		return r
	case s.tree.LevelOf(p.at) == s.unitAt && s.unitAt < node:
		for u := 1; u <= p.u; u++ {
			copy(r.at(u), s.value(s.down(part{at: p.at, u: u})))
		}
		return r
	case s.flat(p.at):
		for u := 1; u <= p.u; u++ {
			s.nodes(r.at(u), p.at, u)
		}
	default:
		r, _ = s.together(s.children(p.at), p.u)
	}
	for u := 1; u <= p.u; u++ {
		s.own(r.at(u), p.at, s.members(p.at, u))
	}
	return r
}

// work returns how many sums together would compare for u in d; it stops above limit.
func (s *spread) work(d, u, limit int) int {
	cells, before := 0, 0
	for _, p := range s.children(d) {
		p.u = min(p.u, u)
		cells += (min(before, u) + 1) * (p.u + 1)
		before += p.u
		if !p.node && !s.flat(p.at) && cells <= limit {
			cells += s.work(p.at, s.down(p).u, limit-cells)
		}
		if cells > limit {
			break
		}
	}
	return cells
}

// look is equal for domains that are interchangeable, except for their order.
func (s *spread) look(d int) uint64 {
	if h, ok := s.looks[d]; ok {
		return h
	}
	h := mix(uint64(s.tree.LevelOf(d)+1)<<8, uint64(one(s.tree.Named(d)))<<1|uint64(one(s.tree.Whole(d))))
	h = mix(h, uint64(s.places[d]))
	if s.unitAt < len(s.span)-1 {
		h = mix(h, uint64(s.units[d]))
	}
	if !s.flat(d) {
		sum := uint64(0)
		for _, i := range s.tree.Nodes(d) {
			if s.rooms[i] > 0 {
				sum += mix(uint64(s.rooms[i]), uint64(one(s.tree.Used(int(i)))))
			}
		}
		for _, c := range s.tree.Children(d) {
			if s.places[c] > 0 {
				sum += s.look(int(c))
			}
		}
		h = mix(h, sum)
	}
	s.looks[d] = h
	return h
}

// mix is a step of a hash.
func mix(h, v uint64) uint64 {
	h = h*0x9e3779b97f4a7c15 + v + 0x94d049bb133111eb
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
