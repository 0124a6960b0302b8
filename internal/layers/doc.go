// Package layers has only tests. They enforce the import rules of docs/architecture.md: cores are pure, each external
// library is imported only by the packages that the rules allow, and every package has a comment.
package layers
