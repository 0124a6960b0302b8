// Package scheduling proves on a real API server, with simulated nodes and the scheduler's own binary, what a
// fake one cannot: how long a replaced pod waits for its node, that two replicas place as one though the acting
// one is killed at any moment, who leaves for whom and that nobody does for nothing, that room is held and reserved and
// made free by who overstays there, that nodes which are not ready get nobody and those which reject pods are excluded, that devices of claims go to those who asked, that another scheduler on the same nodes
// leaves no gang half placed, and that a preview is answered to those alone who may ask.
package scheduling
