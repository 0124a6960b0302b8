// Package words has only a test: names that were retired do not come back. It looks at what people and programs meet:
// names of files, packages and declarations, JSON, protobuf and metric names, reasons, and what code is expected to
// answer. Prose is free.
package words
