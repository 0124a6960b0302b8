// Package launch parses the command line of the user's launcher (torchrun or python -m torch.distributed.run) and the
// PET_* variables as torch does, and returns what to run. Each flag is carried out, replaced by a decision of the
// coordinator, or refused with the flag's name and a remedy. No flag is ignored. The package is pure.
package launch
