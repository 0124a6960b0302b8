// Package launch parses the command line of the user's launcher (torchrun, python -m torch.distributed.run) and the
// PET_* environment as torch's own parser does, and returns what to run. It promises that every flag acts, or is
// decided by the coordinator in its place, or is refused with the flag's name and the remedy; no flag is ignored. It
// is pure.
package launch
