// Package words has only tests of the words in the source tree. Retired names must not come back as names of files,
// packages or declarations, in JSON, protobuf, metrics or reasons, or in golden output. Identifiers in comments must
// exist. The rest of the prose is not checked.
package words
