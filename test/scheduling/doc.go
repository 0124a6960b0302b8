// Package scheduling tests the scheduler's own binary on a real API server with simulated nodes, where a fake one is
// not enough: the wait of a replaced pod for its node; two replicas that place consistently although the acting one is killed at any
// moment; selection of victims, and no preemption without need; held and reserved room, also against jobs that exceed their run time; no
// pod on nodes that are not ready, and exclusion of nodes that reject pods; devices of claims; no half placed gang beside another scheduler
// on the same nodes; previews only for accounts with the right.
package scheduling
