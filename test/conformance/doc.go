// Package conformance has the tests that run one thing under the installed PyTorch's torchrun and under the agent,
// and compare. Allowed differences are listed, each with its reason; an entry that is no longer needed is a failure,
// too.
package conformance
