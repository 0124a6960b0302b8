// Package elastic tests, on real kubelets, jobs with a minimum of pods. TestElastic has three nodes: the job goes on with
// fewer pods when a node dies and no other one is there, takes the pod in again without a step done twice once the node
// returns, and ends Complete with a pod missing.
//
// TestMore plays further cases, on nodes of which each may be lost: the pod of rank 0 and all pods but one are lost
// (first), leaders are killed while the job goes on with fewer and while it takes a pod in (leaders), a script without the
// client goes on from its own snapshot (snapshot), a state that is divided over all ranks waits for all pods (whole), so
// does a script that runs with one number of ranks alone (fixed), a node is lost again and again (flaps), and a job goes
// on with whole blocks of pods (blocks). Two cases have parts of other projects: Kueue admits the job and keeps its quota
// (kueue), and PyTorch Elastic's own example runs unchanged (example).
package elastic
