// Package launchers runs real launchers and training frameworks with an agent and without one, and compares the
// results. Its tests write the tables of docs/launchers.md.
package launchers
