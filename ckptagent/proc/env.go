//go:build linux

package proc

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/launch"
)

func sortedEnv(set map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out = append(out, name+"="+set[name])
	}
	return out
}

func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if name, v, ok := strings.Cut(kv, "="); ok && name != "" {
			m[name] = v
		}
	}
	return m
}

// constantEnv is what torchrun adds for a local rank and no generation changes.
func constantEnv(base map[string]string, spec launch.Spec, root Root, local int) map[string]string {
	env := map[string]string{
		"LOCAL_RANK": strconv.Itoa(local), "LOCAL_WORLD_SIZE": strconv.Itoa(spec.Ranks), "ROLE_NAME": spec.Role,
		"TORCHELASTIC_MAX_RESTARTS": strconv.Itoa(spec.MaxRestarts), "TORCHELASTIC_RUN_ID": spec.RunID,
		// Each generation has a store of its own, in rank 0's process.
		"TORCHELASTIC_USE_AGENT_STORE":    "False",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
		EnvSocket:                         root.ClientSocket(),
		EnvLocalRank:                      strconv.Itoa(local),
		EnvModulesFile:                    root.ModulesFile(local),
	}
	if v, ok := base["TORCH_NCCL_ASYNC_ERROR_HANDLING"]; ok {
		env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = v
	}
	if _, ok := base["OMP_NUM_THREADS"]; !ok && spec.Ranks > 1 {
		env["OMP_NUM_THREADS"] = "1"
	}
	return env
}

// generationEnv is what a local rank is told anew in each generation.
func generationEnv(run ckptagent.Run, root Root, local int) map[string]string {
	rank := strconv.Itoa(run.BaseRank + local)
	world := strconv.Itoa(run.WorldSize)
	return map[string]string{
		"RANK": rank, "ROLE_RANK": rank, "WORLD_SIZE": world, "ROLE_WORLD_SIZE": world,
		"GROUP_RANK": strconv.Itoa(run.NodeRank), "GROUP_WORLD_SIZE": strconv.Itoa(run.Nodes),
		"MASTER_ADDR": run.MasterAddr, "MASTER_PORT": strconv.Itoa(run.MasterPort),
		"TORCHELASTIC_RESTART_COUNT": strconv.Itoa(run.RestartCount),
		EnvGeneration:                strconv.FormatUint(run.Number, 10),
		EnvRestoreStep:               strconv.FormatUint(run.RestoreStep, 10),
		EnvErrorFile:                 root.ErrorFile(run.Number, local),
	}
}

// ArenaFile is the arena of a local rank.
func (r Root) ArenaFile(local int) string {
	return filepath.Join(r.Memory(), "rank-"+strconv.Itoa(local)+".arena")
}
