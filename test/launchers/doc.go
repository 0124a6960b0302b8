// Package launchers runs real launchers and training frameworks with an agent and without one, and compares the
// results. The tests write the tables of docs/launchers.md.
package launchers
