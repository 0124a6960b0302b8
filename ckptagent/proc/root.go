//go:build linux

package proc

import (
	"fmt"
	"os"
	"path/filepath"
)

// Variables that init sets for everything below it.
const (
	EnvRoot        = "HOLDFAST_ROOT"
	EnvContainer   = "HOLDFAST_CONTAINER" // identifies this start of the container
	EnvInit        = "HOLDFAST_INIT"      // init's pid, for the agent
	EnvCoordinator = "HOLDFAST_COORDINATOR"
	EnvCA          = "HOLDFAST_COORDINATOR_CA"
	EnvAddresses   = "HOLDFAST_COORDINATOR_ADDRESSES" // of its Service, separated by commas
	EnvMasterPort  = "HOLDFAST_MASTER_PORT"           // FIRST-LAST
	EnvSlot        = "HOLDFAST_SLOT"                  // where EnvMasterPort is set
	EnvPodIP       = "HOLDFAST_POD_IP"
	EnvNetwork     = "HOLDFAST_NETWORK" // "host": the pod uses its node's network
	EnvPodUID      = "HOLDFAST_POD_UID"
	EnvRanks       = "HOLDFAST_RANKS"
	EnvStateBytes  = "HOLDFAST_STATE_BYTES"
	EnvSlots       = "HOLDFAST_SLOTS"
	EnvStandbys    = "HOLDFAST_STANDBYS"
	EnvStandbySkip = "HOLDFAST_STANDBY_SKIP_MODULES"
	EnvStorage     = "HOLDFAST_STORAGE"
	EnvGang        = "HOLDFAST_GANG"
	EnvJobUID      = "HOLDFAST_JOB_UID"
	EnvGrace       = "HOLDFAST_GRACE_SECONDS"
	EnvMaxRestarts = "HOLDFAST_MAX_RESTARTS"
	EnvShm         = "HOLDFAST_SHM" // "own": no other container shares /dev/shm
	// EnvRunnerPython is the interpreter of deepspeed's runner, to parse its command line; EnvRunnerRead marks that it was parsed.
	EnvRunnerPython = "HOLDFAST_RUNNER_PYTHON"
	EnvRunnerRead   = "HOLDFAST_RUNNER_READ"
	// EnvLaunchResult is the descriptor to which a shim writes the result.
	EnvLaunchResult = "HOLDFAST_LAUNCH_RESULT"
	// EnvTimeout is how many seconds a command may run without a launcher before it counts as a rank, if the user sets it.
	EnvTimeout = "HOLDFAST_LAUNCHER_TIMEOUT_SECONDS"
)

// Variables of ranks and standbys.
const (
	// EnvMark is set for each rank and standby, and inherited by their descendants.
	EnvMark        = "HOLDFAST_MARK"
	EnvGeneration  = "HOLDFAST_GENERATION"
	EnvRestoreStep = "HOLDFAST_RESTORE_STEP"
	// EnvRestoreBranch is the branch of that step.
	EnvRestoreBranch = "HOLDFAST_RESTORE_BRANCH"
	// EnvDonor is protocol.Run.Donor; absent: all hold their state.
	EnvDonor     = "HOLDFAST_DONOR"
	EnvArena     = "HOLDFAST_ARENA"
	EnvSocket    = "HOLDFAST_SOCKET"
	EnvLocalRank = "HOLDFAST_LOCAL_RANK"
	EnvErrorFile = "HOLDFAST_ERROR_FILE"
	// EnvStandbyFD is a source's own socket, EnvStandbyFDs those of the ranks that it serves.
	EnvStandbyFD  = "HOLDFAST_STANDBY_FD"
	EnvStandbyFDs = "HOLDFAST_STANDBY_FDS"
	// EnvPage is the file in which the rank's site hook writes its imports and steps.
	EnvPage = "HOLDFAST_PAGE"
	// EnvLooks is the common beginning of the files that the rank's site hook prepares for looks of the agent.
	EnvLooks = "HOLDFAST_LOOKS"
	// EnvStdout and EnvStderr are the files of a standby's output once it has become the rank.
	EnvStdout = "HOLDFAST_STDOUT"
	EnvStderr = "HOLDFAST_STDERR"
)

// Root is the folder that install created; all paths of one pod are below it.
type Root string

// FindRoot returns the folder of this installation: from init's variable, else the parent of this binary's folder.
func FindRoot() (Root, error) {
	if r := os.Getenv(EnvRoot); r != "" {
		return Root(r), nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this binary: %w", err)
	}
	return Root(filepath.Dir(filepath.Dir(exe))), nil
}

func (r Root) join(parts ...string) string {
	return filepath.Join(append([]string{string(r)}, parts...)...)
}

// Binary is the agent's own file, Shims the folder that comes first on PATH, Python the one on PYTHONPATH.
func (r Root) Binary() string { return r.join("bin", "holdfast-agent") }
func (r Root) Shims() string  { return r.join("shims") }
func (r Root) Python() string { return r.join("python") }
func (r Root) Run() string    { return r.join("run") }

// LaunchSocket accepts launchers, ClientSocket receives the datagrams of ranks.
func (r Root) LaunchSocket() string { return r.join("run", "launch.sock") }
func (r Root) ClientSocket() string { return r.join("run", "agent.sock") }

// SharedFile records the content of shared memory before ranks were started.
func (r Root) SharedFile() string { return r.join("run", "shared.json") }

// AuthoritiesFile has the authorities that the coordinator sent, in PEM.
func (r Root) AuthoritiesFile() string { return r.join("run", "authorities.pem") }

// StateFile has an agent's state for the next agent, ExitsFile init's records.
func (r Root) StateFile() string { return r.join("run", "agent.json") }
func (r Root) ExitsFile() string { return r.join("run", "exits") }

// CommandFile has the command that init started. HeldFile exists, with the process of the present run, while the agent has taken that
// command over, so that its end does not end the container. CodeFile then gets the container's exit code.
func (r Root) CommandFile() string { return r.join("run", "command.json") }
func (r Root) HeldFile() string    { return r.join("run", "held") }
func (r Root) CodeFile() string    { return r.join("run", "code") }

// Memory is the mount of the memory volume, Token that of the projected token.
func (r Root) Memory() string { return r.join("memory") }
func (r Root) Token() string  { return r.join("token", "token") }

// ErrorFile is the file for the traceback of one rank of one generation.
func (r Root) ErrorFile(generation int64, local int) string {
	return filepath.Join(r.Ranks(), fmt.Sprintf("error-%d-%d.txt", generation, local))
}

// Ranks is the folder for files that ranks create.
func (r Root) Ranks() string { return r.join("run", "ranks") }

// TailFile records how much of a generation's output was copied to the console.
func (r Root) TailFile(generation int64) string {
	return r.join("run", fmt.Sprintf("tail-%d", generation))
}

// KnownModulesFile has the list of modules that standbys import.
func (r Root) KnownModulesFile() string { return r.join("run", "modules.json") }

// ProvenModulesFile exists once a source that is copied has imported these.
func (r Root) ProvenModulesFile() string { return r.join("run", "modules.proven") }

// LooksFile is the common beginning of the files for looks at a local rank, which the rank creates.
func (r Root) LooksFile(local int) string {
	return filepath.Join(r.Ranks(), fmt.Sprintf("looks-%d", local))
}

// Hangs is the folder of files about ranks that stood still.
func (r Root) Hangs() string { return r.join("run", "hangs") }

// PageFile is the page of a local rank.
func (r Root) PageFile(local int) string { return r.join("run", fmt.Sprintf("page-%d", local)) }
