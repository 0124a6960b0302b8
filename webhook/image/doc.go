// Package image reads ENTRYPOINT and CMD of a container image from its registry. The webhook calls Reader.Process for a
// container that has no command.
//
//   - Process returns within Options.Timeout: the image's process, or an error with a text for users.
//   - Process reads at most 256 KiB from the registry.
//   - Process uses plain HTTP, and connects to addresses of the controller's own machine, only for the registries in
//     Options.Insecure.
//   - The errors of a registry that cannot be reached are all the same, so that a user cannot explore the cluster's
//     network by them.
//   - Process reads each image with the pull secrets of that Job alone. Without Options.PullSecrets it sends no
//     credentials.
package image
