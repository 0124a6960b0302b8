// Package layers has only the tests that enforce the import rules of docs/architecture.md: cores stay pure, each external library is
// imported only in its packages, every package comment describes its package.
package layers
