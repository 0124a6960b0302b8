package launch

import (
	"encoding/json"
	"fmt"
	"path"
	"time"
)

// APICommand replaces the launcher's name if a Python process passes on a call of torch.distributed.launcher.api.launch_agent. The
// configuration (APIConfig in JSON), the entrypoint and its arguments follow.
const APICommand = "torch.distributed.launcher.api"

// APIConfig is what the site hook reads from torch's LaunchConfig.
type APIConfig struct {
	MinNodes        int      `json:"min_nodes"`
	MaxNodes        int      `json:"max_nodes"`
	Ranks           int      `json:"nproc_per_node"`
	Role            string   `json:"role"`
	RunID           string   `json:"run_id"`
	MaxRestarts     int      `json:"max_restarts"`
	ShutdownTimeout *float64 `json:"shutdown_timeout"`
	Logs            Logs     `json:"logs"`
	// VirtualLocalRank: see Spec.
	VirtualLocalRank bool `json:"virtual_local_rank"`
	// Refused lists options with unsupported values, as name and value.
	Refused []string `json:"refused"`
}

// remedyNodes is the remedy for a launcher that would train in each pod alone.
const remedyNodes = "each pod would be a training of its own: give the launcher the number of pods (accelerate launch --num_machines, torchrun --nnodes), " +
	"or run the job with one pod"

// parseAPI parses the site hook's request.
func parseAPI(args []string) (Spec, error) {
	if len(args) < 2 {
		return Spec{}, refuse(APICommand, "lacks its configuration or its entrypoint", RemedyPlain)
	}
	var c APIConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return Spec{}, refuse(APICommand, "has a configuration that cannot be read: "+err.Error(), RemedyPlain)
	}
	switch {
	case len(c.Refused) > 0:
		return Spec{}, refuse("LaunchConfig."+c.Refused[0], "is not honoured under holdfast", RemedyPlain)
	case c.Ranks < 1:
		return Spec{}, refuse(fmt.Sprintf("LaunchConfig.nproc_per_node=%d", c.Ranks), "is not a number of processes", "give a number from 1 on")
	case c.MinNodes < 1 || c.MaxNodes < c.MinNodes:
		return Spec{}, refuse(fmt.Sprintf("LaunchConfig.min_nodes=%d, max_nodes=%d", c.MinNodes, c.MaxNodes), "is not a number of nodes",
			"give the number of pods of the job for both")
	}
	if r := tooMany(fmt.Sprintf("LaunchConfig.nproc_per_node=%d", c.Ranks), c.Ranks); r != nil {
		return Spec{}, r
	}
	s := Spec{
		NoPython:         true,
		Exact:            true,
		Script:           args[1],
		Args:             args[2:],
		Ranks:            c.Ranks,
		Nodes:            c.MaxNodes,
		MinNodes:         least(c.MinNodes, c.MaxNodes),
		NodesFlag:        fmt.Sprintf("LaunchConfig.max_nodes=%d", c.MaxNodes),
		NodesRemedy:      remedyNodes,
		Role:             c.Role,
		RunID:            c.RunID,
		MaxRestarts:      c.MaxRestarts,
		Logs:             c.Logs,
		VirtualLocalRank: c.VirtualLocalRank,
		ShutdownTimeout:  DefaultShutdownTimeout,
	}
	if c.ShutdownTimeout != nil {
		s.ShutdownTimeout = time.Duration(*c.ShutdownTimeout * float64(time.Second))
	}
	return s, nil
}

// StartsPython reports whether ranks are Python interpreters by their command line, so that standbys can replace them.
func (s Spec) StartsPython() bool {
	return !s.NoPython || s.Exact && pythonName.MatchString(path.Base(s.Script))
}
