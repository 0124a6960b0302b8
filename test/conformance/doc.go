// Package conformance has the tests that run the same job under the installed PyTorch's torchrun and under the agent, and compare. Allowed
// differences are listed with their reasons; an unused entry is a failure, too.
package conformance
