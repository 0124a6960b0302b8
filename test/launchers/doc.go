// Package launchers has the tests that run real launchers and frameworks, with and without agents, and compare. The page
// docs/launchers.md has the table that they fill.
package launchers
