// Package launch reads the command line of the user's launcher (torchrun, python -m
// torch.distributed.run) and the PET_* environment the way torch's own parser does, and says what must
// be run. It promises that every flag acts, or is one that the coordinator decides in its place, or is
// refused with the flag's name and the remedy; nothing is ignored. It is pure.
package launch
