package topology

import (
	"cmp"
	"slices"
	"strings"
)

// keptIndexes is how many shapes a Tree has counts for; each costs a few bytes per node, and some time at every change of a node.
const keptIndexes = 8

// maxRoom is the room of a node for a shape that requests nothing.
const maxRoom = 1 << 14

// Shape is what one member requests of a node.
type Shape struct {
	Requests Resources
	// Whole: only nodes without tenants count.
	Whole bool
}

// Index is how often a shape fits now, by node and by domain. Every change updates it while the Tree stores it; calls for other shapes may
// drop it.
type Index struct {
	key   string
	wants []want
	whole bool
	// Room is by node; Places (its sum) and Open (the number of nodes with room) are by domain. Callers must not change them.
	Room   []int32
	Places []int32
	Open   []int32
}

type want struct {
	column int
	amount int64
}

// Index returns the counts for a shape. The first call for a shape visits every node.
func (t *Tree) Index(s Shape) *Index {
	wants, key := t.wants(s)
	at := slices.IndexFunc(t.indexes, func(x *Index) bool { return x.key == key })
	if at < 0 {
		x := &Index{key: key, wants: wants, whole: s.Whole}
		x.grow(len(t.domains))
		t.indexes = append(t.indexes[:min(len(t.indexes), keptIndexes-1)], x)
		at = len(t.indexes) - 1
		x.build(t)
	}
	x := t.indexes[at]
	copy(t.indexes[1:at+1], t.indexes[:at])
	t.indexes[0] = x
	return x
}

func (t *Tree) wants(s Shape) ([]want, string) {
	var wants []want
	for name, amount := range s.Requests {
		if amount > 0 {
			wants = append(wants, want{t.column(name), amount})
		}
	}
	slices.SortFunc(wants, func(a, b want) int { return cmp.Compare(a.column, b.column) })
	var key strings.Builder
	for _, w := range wants {
		var buf [16]byte
		for i := range 8 {
			buf[i], buf[8+i] = byte(w.column>>(8*i)), byte(w.amount>>(8*i))
		}
		key.Write(buf[:])
	}
	if s.Whole {
		key.WriteByte('w')
	}
	return wants, key.String()
}

func (x *Index) grow(domains int) {
	for len(x.Places) < domains {
		x.Places, x.Open = append(x.Places, 0), append(x.Open, 0)
	}
}

// build counts leaves first, then adds up, so that the cost per node does not depend on the tree's depth.
func (x *Index) build(t *Tree) {
	x.Room = make([]int32, len(t.nodes))
	for i := range t.nodes {
		if n := &t.nodes[i]; n.Name != "" {
			room := x.roomOf(n)
			x.Room[i] = room
			x.Places[n.leaf] += room
			x.Open[n.leaf] += flag(room > 0)
		}
	}
	var sum func(d int32)
	sum = func(d int32) {
		for _, c := range t.domains[d].children {
			sum(c)
			x.Places[d] += x.Places[c]
			x.Open[d] += x.Open[c]
		}
	}
	sum(Root)
}

func (x *Index) roomOf(n *node) int32 {
	if n.Exclusive || (x.whole && n.Tenants > 0) {
		return 0
	}
	return x.fits(n)
}

func (x *Index) fits(n *node) int32 {
	room := int64(maxRoom)
	for _, w := range x.wants {
		switch free := n.at(w.column); {
		case free < w.amount:
			return 0
		case free < 2*w.amount:
			room = 1
		case room > 1:
			room = min(room, free/w.amount)
		}
	}
	return int32(room)
}

// Fits returns how often the shape fits on a node by its counts alone, whatever its tenants are.
func (x *Index) Fits(t *Tree, i int) int { return int(x.fits(&t.nodes[i])) }

// update counts a node again and updates its domains.
func (x *Index) update(t *Tree, i int32) {
	for len(x.Room) <= int(i) {
		x.Room = append(x.Room, 0)
	}
	x.put(t, i, x.roomOf(&t.nodes[i]))
}

func (x *Index) put(t *Tree, i, room int32) {
	more, open := room-x.Room[i], flag(room > 0)-flag(x.Room[i] > 0)
	if more == 0 {
		return
	}
	x.Room[i] = room
	for d := t.nodes[i].leaf; d >= 0; d = t.domains[d].parent {
		x.Places[d] += more
		x.Open[d] += open
	}
}
