package elastic

import "slices"

// RestorePoint is the newest step that every rank holds; ok is false where there is none, and training
// starts from the beginning. Each inventory lists one rank's steps, ascending.
func RestorePoint(inventories [][]int64) (step int64, ok bool) {
	if len(inventories) == 0 {
		return 0, false
	}
	for i := len(inventories[0]) - 1; i >= 0; i-- {
		step := inventories[0][i]
		if !slices.ContainsFunc(inventories[1:], func(inv []int64) bool { return !holds(inv, step) }) {
			return step, true
		}
	}
	return 0, false
}

func holds(inventory []int64, step int64) bool {
	_, found := slices.BinarySearch(inventory, step)
	return found
}

// newest step of an inventory; 0: none.
func newest(inventory []int64) int64 {
	if len(inventory) == 0 {
		return 0
	}
	return inventory[len(inventory)-1]
}

// inventory lists what each rank of a pod holds; a rank that the agent does not know holds nothing.
func inventory(r *Report) [][]int64 {
	out := make([][]int64, r.Ranks)
	for _, k := range r.Rank {
		if k.Local >= 0 && k.Local < len(out) {
			out[k.Local] = k.Sealed
		}
	}
	return out
}
