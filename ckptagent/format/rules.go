package format

// SlotReusable says whether a slot sealed at step may be granted again, by the gang's levels: common is
// the newest step that every rank holds sealed, frontier the lowest of all ranks' newest sealed steps.
func SlotReusable(step, common, frontier uint64) bool {
	return step != common && step < frontier
}

// Abandoned says whether a sealed step belongs to a history that ends where a generation restores from
// restoreStep: it must be emptied before that generation starts.
func Abandoned(step, restoreStep uint64) bool {
	return step > restoreStep
}

// NewestCommon is the newest step that all inventories (sealed steps of each rank, in any order) hold;
// 0: none.
func NewestCommon(inventories [][]uint64) uint64 {
	if len(inventories) == 0 {
		return 0
	}
	var best uint64
	for _, step := range inventories[0] {
		if step > best && heldByAll(step, inventories[1:]) {
			best = step
		}
	}
	return best
}

func heldByAll(step uint64, inventories [][]uint64) bool {
	for _, inventory := range inventories {
		found := false
		for _, s := range inventory {
			found = found || s == step
		}
		if !found {
			return false
		}
	}
	return true
}

// Frontier is the lowest of all ranks' newest sealed steps; 0 if a rank holds none.
func Frontier(inventories [][]uint64) uint64 {
	var lowest uint64
	for i, inventory := range inventories {
		var newest uint64
		for _, s := range inventory {
			newest = max(newest, s)
		}
		if i == 0 || newest < lowest {
			lowest = newest
		}
	}
	return lowest
}
