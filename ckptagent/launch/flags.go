package launch

import (
	"slices"
	"strings"
)

// handling is what the agent does with a flag.
type handling int

const (
	// honoured: the flag acts as it does in torchrun.
	//lint:ignore U1000 the zero value: flags without a handling in the table
	honoured handling = iota
	// superseded: the coordinator decides instead of the flag; its value is checked and reported.
	superseded
	// refused: only a value that changes nothing (flag.neutral) is accepted.
	refused
)

// flag is one option of torchrun. The name is the option's longest spelling with hyphens; torchrun also accepts underscores.
type flag struct {
	name    string
	short   byte
	boolean bool
	// noEnv marks the few options that torchrun does not read from PET_<NAME>.
	noEnv    bool
	handling handling
	// neutral lists the values of a refused option that change nothing and are accepted.
	neutral []string
	remedy  string
}

const (
	remedyLogs  = "remove it, and direct the output of ranks with --log-dir, --redirects and --tee"
	remedyDrop  = "leave it out"
	RemedyPlain = "leave it out, or take the annotation holdfast.dev/enabled off the job to run it with plain torchrun"
)

// flags are the options of torch.distributed.run as of torch 2.15.
var flags = []*flag{
	{name: "nnodes"},
	{name: "nproc-per-node"},
	{name: "rdzv-backend", handling: superseded},
	{name: "rdzv-endpoint", handling: superseded},
	{name: "rdzv-id"},
	{name: "rdzv-conf", handling: superseded},
	{name: "standalone", boolean: true},
	{name: "max-restarts"},
	{name: "monitor-interval", handling: superseded},
	{name: "start-method"},
	{name: "event-log-handler", handling: refused, neutral: []string{"null"}, remedy: remedyDrop},
	{name: "role"},
	{name: "module", short: 'm', boolean: true},
	{name: "no-python", boolean: true},
	{name: "run-path", boolean: true, handling: superseded}, // each rank is its own interpreter, which runs the script
	{name: "log-dir"},
	{name: "redirects", short: 'r'},
	{name: "tee", short: 't'},
	{name: "log-line-prefix-template"},
	{name: "local-ranks-filter"},
	{name: "duplicate-stdout-filters"},
	{name: "duplicate-stderr-filters"},
	{name: "node-rank", handling: superseded},
	{name: "master-addr", handling: superseded},
	{name: "master-port", handling: superseded},
	{name: "local-addr", handling: superseded},
	{name: "logs-specs", noEnv: true, handling: refused, remedy: remedyLogs},
	{name: "numa-binding", noEnv: true, handling: refused, remedy: RemedyPlain},
	{name: "signals-to-handle", handling: refused, neutral: []string{"SIGTERM,SIGINT,SIGHUP,SIGQUIT"}, remedy: remedyDrop},
	{name: "shutdown-timeout"},
	{name: "virtual-local-rank", boolean: true},
	{name: "print-completion", noEnv: true, handling: refused, remedy: "ask the torchrun of the image by its full path"},
	{name: "help", short: 'h', boolean: true, noEnv: true, handling: refused, remedy: "ask the torchrun of the image by its full path"},
}

// useEnvFlag is the one option that only torch.distributed.launch has.
var useEnvFlag = &flag{name: "use-env", boolean: true, noEnv: true}

// envName returns the variable from which torchrun reads the option's default.
func (f *flag) envName() string {
	return "PET_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
}

// passes reports whether a refused option accepts the value v, which changes nothing.
func (f *flag) passes(v string) bool {
	return slices.Contains(f.neutral, v)
}

// byLong returns the option with a long spelling (without hyphens), in full or, like argparse, by an unambiguous prefix.
func byLong(name string, deprecated bool) (*flag, []string) {
	want := strings.ReplaceAll(name, "_", "-")
	known := flags
	if deprecated {
		known = append(slices.Clone(flags), useEnvFlag)
	}
	var found []*flag
	for _, f := range known {
		if f.name == want {
			return f, nil
		}
		if strings.HasPrefix(f.name, want) {
			found = append(found, f)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var names []string
	for _, f := range found {
		names = append(names, "--"+f.name)
	}
	return nil, names
}

func byShort(c byte) *flag {
	for _, f := range flags {
		if f.short != 0 && f.short == c {
			return f
		}
	}
	return nil
}
