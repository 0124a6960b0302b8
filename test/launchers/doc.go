// Package launchers has the tests that run real launchers and frameworks, with and without agents, and compare the results. They write the
// tables of docs/launchers.md.
package launchers
