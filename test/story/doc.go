// Package story plays one job's life on a real cluster: placed all together or not at all, killed rank by rank, its agent killed, its
// control plane stopped, given up for a bug. It checks the documented promises at every point. The demo and the end-to-end test are this
// one story: the demo shows what the test asserts.
package story
