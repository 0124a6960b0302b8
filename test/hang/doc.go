// Package hang tests, on real kubelets, what Holdfast makes of jobs whose ranks make no step: plain torchrun jobs over
// gloo that know nothing of Holdfast. Healthy silences end by themselves: none may be ended, or be taken for a fault. In
// Faults ranks stand still for ever: each needs its verdict, and the rank at fault, in a minute; what Holdfast ends must
// then train on in the same containers.
package hang
