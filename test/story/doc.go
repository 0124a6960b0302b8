// Package story plays one job on a real cluster, with one failure after the other: too few nodes, killed ranks, a
// killed agent, a stopped control plane, and at last a bug in the script for which the job is given up. After each
// failure it checks what the documentation promises. The end-to-end test runs the story, and the demo shows the same
// story.
package story
