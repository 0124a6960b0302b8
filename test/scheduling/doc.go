// Package scheduling tests the scheduler's own binary on a real API server with simulated nodes. These tests need a
// real API server and a real scheduler:
//
//   - a replaced pod waits for its node;
//   - two replicas never contradict each other, although the acting one is killed at any moment;
//   - the scheduler selects victims, and preempts no pod without need;
//   - elastic gangs hold no room beyond their minimum, and no gang beside them starves;
//   - held and reserved room stays with its gang, also against jobs that exceed their run time;
//   - no pod is bound to a node that is not ready, and nodes that reject pods are excluded;
//   - devices of resource claims are allocated once;
//   - no gang is left placed in part beside another scheduler on the same nodes;
//   - only accounts with the right get previews.
package scheduling
