// Package words has only a test: retired names do not come back. It reads names that users and programs meet: names
// of files, packages and declarations, JSON, protobuf and metric names, reasons, and golden output. It does not check
// prose.
package words
