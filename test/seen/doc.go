// Package seen proves on a real cluster, with the manifests that are shipped and the rights of a user, that
// people see what the pages of the documentation promise: kubectl holdfast nodes, explain and preview.
package seen
