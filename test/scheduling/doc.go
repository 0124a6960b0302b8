// Package scheduling proves on a real API server, with simulated nodes and the scheduler's own binary, what a
// fake one cannot: how long a replaced pod waits for its node, that two replicas place as one though the acting
// one is killed at any moment, that room is
// reserved for a gang that waits, and that a preview is answered to those alone who may ask.
package scheduling
