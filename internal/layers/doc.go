// Package layers has only tests. The tests enforce the import rules of docs/architecture.md. Cores are pure. Each
// external library is imported only by the packages that the rules allow. Every package has a comment.
package layers
