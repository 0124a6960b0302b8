// Package image reads the entry point of a container image, ENTRYPOINT and CMD, from its registry, for containers that
// name no command. It promises:
//
//   - an answer, or a reason with a remedy, well within the time of an admission call;
//   - it reads at most 256 KiB, whatever a registry sends;
//   - it uses plain HTTP, and addresses that only this process should reach, only for registries that flags name, and no
//     message reveals the cluster's network;
//   - each Job's image is read by itself, with the credentials of that Job alone; without the right to read pull secrets
//     none is read.
package image
