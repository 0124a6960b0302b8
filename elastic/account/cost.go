package account

import (
	"slices"
	"time"
)

// GenerationCost returns what another generation costs this gang: the median, over its recoveries, of the time to end and start ranks and
// to do steps again; 0: unknown.
func (a *Account) GenerationCost() time.Duration {
	var costs []time.Duration
	for i := range a.recoveries {
		if r := &a.recoveries[i]; r.Closed && r.FirstStep >= 0 {
			again := time.Duration(0)
			if r.CostKnown() {
				again = a.recomputeTime(r)
			}
			costs = append(costs, max(0, r.Stop)+max(0, r.Start)+max(0, r.Restore)+r.FirstStep+again)
		}
	}
	if len(costs) == 0 {
		return 0
	}
	slices.Sort(costs)
	return costs[len(costs)/2]
}
