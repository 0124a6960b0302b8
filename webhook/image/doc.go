// Package image reads from its registry what a container image starts, ENTRYPOINT and CMD, for containers that name no
// command. It promises:
//
//   - an answer, or a reason that people can act on, within a time well below that of an admission call;
//   - no registry makes it read more than 256 KiB;
//   - it speaks plain HTTP, and reaches addresses that only this process should reach, for no registry but those that
//     flags name, and no answer tells what the cluster's network holds;
//   - each Job's image is read by itself, with the credentials of that Job alone, and without the right to read pull secrets
//     none is asked for.
package image
