//go:build linux

package proc

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
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

// constantEnv returns torchrun's variables of a local rank that no generation changes.
func constantEnv(base map[string]string, spec launch.Spec, root Root, local int) map[string]string {
	env := map[string]string{
		"LOCAL_RANK": strconv.Itoa(local), "LOCAL_WORLD_SIZE": strconv.Itoa(spec.Ranks), "ROLE_NAME": spec.Role,
		"TORCHELASTIC_MAX_RESTARTS": strconv.Itoa(spec.MaxRestarts), "TORCHELASTIC_RUN_ID": spec.RunID,
		// Each generation has its own store, in rank 0's process.
		"TORCHELASTIC_USE_AGENT_STORE":    "False",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
		"TORCHELASTIC_SIGNALS_TO_HANDLE":  "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
		EnvSocket:                         root.ClientSocket(),
		EnvLocalRank:                      strconv.Itoa(local),
	}
	for _, name := range []string{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE"} {
		if v, ok := base[name]; ok {
			env[name] = v
		}
	}
	if _, ok := base["OMP_NUM_THREADS"]; !ok && spec.Ranks > 1 && !spec.Exact {
		env["OMP_NUM_THREADS"] = "1"
	}
	return env
}

// generationEnv returns a local rank's variables that change with each generation.
func generationEnv(run protocol.Run, root Root, local int) map[string]string {
	rank := strconv.Itoa(run.BaseRank + local)
	world := strconv.Itoa(run.WorldSize)
	env := map[string]string{
		"RANK": rank, "ROLE_RANK": rank, "WORLD_SIZE": world, "ROLE_WORLD_SIZE": world,
		"GROUP_RANK": strconv.Itoa(run.NodeRank), "GROUP_WORLD_SIZE": strconv.Itoa(run.Nodes),
		"MASTER_ADDR": run.MasterAddr, "MASTER_PORT": strconv.Itoa(run.MasterPort),
		"TORCHELASTIC_RESTART_COUNT": strconv.Itoa(run.RestartCount),
		EnvGeneration:                strconv.FormatInt(run.Number, 10),
		EnvRestoreStep:               strconv.FormatInt(run.RestoreStep, 10),
		EnvRestoreBranch:             strconv.FormatInt(run.RestoreBranch, 10),
		EnvErrorFile:                 root.ErrorFile(run.Number, local),
		EnvPage:                      root.PageFile(local),
		EnvLooks:                     root.LooksFile(local),
	}
	if run.Donor > 0 {
		env[EnvDonor] = strconv.Itoa(run.Donor)
	}
	return env
}

// asDeepSpeed keeps those of torchrun's variables that deepspeed also sets, under deepspeed's names.
func asDeepSpeed(env map[string]string, spec launch.Spec) {
	env["CROSS_RANK"], env["CROSS_SIZE"], env["LOCAL_SIZE"] = env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]
	env["CUDA_VISIBLE_DEVICES"] = spec.DeepSpeed.Devices
	for name := range env {
		switch {
		case strings.HasPrefix(name, "GROUP_"), strings.HasPrefix(name, "ROLE_"), strings.HasPrefix(name, "TORCHELASTIC_"),
			name == "LOCAL_WORLD_SIZE", name == "OMP_NUM_THREADS", name == "TORCH_NCCL_ASYNC_ERROR_HANDLING":
			delete(env, name)
		}
	}
}

// ArenaFile returns the path of a local rank's arena.
func (r Root) ArenaFile(local int) string {
	return filepath.Join(r.Memory(), "rank-"+strconv.Itoa(local)+".arena")
}
