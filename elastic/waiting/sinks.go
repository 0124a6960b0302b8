package waiting

// sinks returns the sets of ranks that wait for nobody outside their set: each rank waits, in the end, for one of them. A set of several
// ranks waits in a circle. certain leaves out edges that are not.
func (j *judge) sinks() [][]int {
	t := tarjan{waits: j.waits, ranks: len(j.ranks)}
	t.run()
	leaves := make([]bool, t.components)
	for v, edges := range j.waits {
		for _, e := range edges {
			if t.component[e.to] != t.component[v] {
				leaves[t.component[v]] = true
			}
		}
	}
	sets := make([][]int, t.components)
	for r := range j.ranks {
		sets[t.component[r]] = append(sets[t.component[r]], r)
	}
	var out [][]int
	for c, set := range sets {
		if len(set) > 0 && !leaves[c] {
			out = append(out, set)
		}
	}
	return out
}

// circle reports whether ranks of a set wait for each other by certain edges alone.
func (j *judge) circle(set []int) bool {
	only := make([][]edge, len(j.waits))
	for v, edges := range j.waits {
		for _, e := range edges {
			if e.certain {
				only[v] = append(only[v], e)
			}
		}
	}
	t := tarjan{waits: only, ranks: len(j.ranks)}
	t.run()
	size := make([]int, t.components)
	for _, r := range set {
		if size[t.component[r]]++; size[t.component[r]] > 1 {
			return true
		}
	}
	return false
}

// tarjan finds the strongly connected components of a graph, without recursion: a gang has thousands of ranks.
type tarjan struct {
	waits      [][]edge
	ranks      int
	component  []int
	components int

	index, low, next []int
	onStack          []bool
	stack, path      []int
	count            int
}

func (t *tarjan) run() {
	n := len(t.waits)
	t.component, t.index, t.low, t.next = make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	t.onStack = make([]bool, n)
	for v := range n {
		if t.index[v] == 0 {
			t.visit(v)
		}
	}
}

func (t *tarjan) enter(v int) {
	t.count++
	t.index[v], t.low[v], t.onStack[v] = t.count, t.count, true
	t.stack, t.path = append(t.stack, v), append(t.path, v)
}

func (t *tarjan) visit(root int) {
	t.enter(root)
	for len(t.path) > 0 {
		v := t.path[len(t.path)-1]
		if t.next[v] < len(t.waits[v]) {
			to := t.waits[v][t.next[v]].to
			t.next[v]++
			switch {
			case t.index[to] == 0:
				t.enter(to)
			case t.onStack[to]:
				t.low[v] = min(t.low[v], t.index[to])
			}
			continue
		}
		t.path = t.path[:len(t.path)-1]
		if len(t.path) > 0 {
			above := t.path[len(t.path)-1]
			t.low[above] = min(t.low[above], t.low[v])
		}
		if t.low[v] == t.index[v] {
			t.close(v)
		}
	}
}

// close takes the component of v from the stack.
func (t *tarjan) close(v int) {
	for {
		w := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		t.onStack[w], t.component[w] = false, t.components
		if w == v {
			break
		}
	}
	t.components++
}
