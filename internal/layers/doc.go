// Package layers holds no code, only the tests that keep the import rules of docs/architecture.md:
// cores stay pure, each foreign tree stays in its room, every package says what it promises.
package layers
