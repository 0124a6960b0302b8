// Package conformance has the tests that run one thing under the installed PyTorch's torchrun and under the agent, and compare. What
// may differ stands in lists, each entry with its reason; an entry that nothing needs any more is a failure, too.
package conformance
