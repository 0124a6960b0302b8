// Package launch parses the command line of the user's launcher (torchrun, python -m torch.distributed.run) and the PET_* environment as
// torch's own parser does, and returns what to run. Every flag acts, or is replaced by a decision of the coordinator, or is refused with
// the flag's name and a remedy; no flag is ignored. The package is pure.
package launch
