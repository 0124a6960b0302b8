// Package story plays one job's life on a real cluster: placed all together or not at all, killed rank by rank, its agent killed,
// its control plane taken away, given up for a bug; and checks at every point what people were promised. The demo and the
// end-to-end test are this one story: what the demo shows is what the test asserts.
package story
