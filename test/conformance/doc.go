// Package conformance runs the same job under torchrun of the installed PyTorch and under the agent, and compares the
// results. Each allowed difference is listed with its reason. A listed difference that does not occur fails the test.
package conformance
